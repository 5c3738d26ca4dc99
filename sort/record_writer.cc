#include "sort/record_writer.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

// No wait here ends by itself: the reader of a pipe may pause for as long as it likes.
constexpr int64_t kLookAgainMs = 1'000;

}  // namespace

absl::Status RecordWriter::AppendSlowly(absl::string_view bytes) {
  while (!bytes.empty()) {
    if (filled_ == room_.size()) NRAM_RETURN_IF_ERROR(Flush());
    const size_t part = std::min(bytes.size(), room_.size() - filled_);
    std::memcpy(room_.data() + filled_, bytes.data(), part);
    filled_ += part;
    bytes.remove_prefix(part);
  }
  return absl::OkStatus();
}

RunWriter::RunWriter(Scratch* scratch, uint64_t offset, absl::Span<char> memory)
    : memory_(memory), offset_(offset), transfers_{scratch->NewTransfer(), scratch->NewTransfer()} {
  room_ = memory_.subspan(0, memory_.size() / 2);
}

absl::Status RunWriter::Flush() {
  const size_t bytes = RoundUp(filled_, Scratch::kBlockBytes);
  std::memset(room_.data() + filled_, 0, bytes - filled_);
  transfers_[half_]->StartWrite(offset_, room_.subspan(0, bytes));
  offset_ += bytes;
  half_ = 1 - half_;
  filled_ = 0;
  room_ = memory_.subspan(static_cast<size_t>(half_) * memory_.size() / 2, memory_.size() / 2);
  return transfers_[half_]->Wait();
}

absl::Status RunWriter::Finish() {
  absl::Status status = filled_ > 0 ? Flush() : absl::OkStatus();
  status.Update(transfers_[0]->Wait());
  status.Update(transfers_[1]->Wait());
  return status;
}

OutputWriter::OutputWriter(int fd, std::string name, absl::Span<char> memory)
    : fd_(fd), name_(std::move(name)), memory_(memory) {
  room_ = memory_.subspan(0, memory_.size() / kBlocks);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    // Flush writes.
  }
}

OutputWriter::~OutputWriter() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status OutputWriter::Flush() {
  if (!thread_.joinable()) return WriteAll(room_.subspan(0, std::exchange(filled_, 0)));
  MutexLock lock(&mu_);
  sizes_[given_ % kBlocks] = filled_;
  ++given_;
  changed_.SignalAll();
  while (Count() == kBlocks && status_.ok()) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
  filled_ = 0;
  room_ = memory_.subspan(given_ % kBlocks * (memory_.size() / kBlocks), memory_.size() / kBlocks);
  return status_;
}

absl::Status OutputWriter::Finish() {
  if (filled_ > 0) NRAM_RETURN_IF_ERROR(Flush());
  MutexLock lock(&mu_);
  while (Count() > 0 && status_.ok()) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
  return status_;
}

void OutputWriter::Run() {
  MutexLock lock(&mu_);
  for (;;) {
    while (Count() == 0 && !stopping_) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
    // Blocks that are left when it is told to stop belong to a sort that has failed.
    if (stopping_ || !status_.ok()) return;
    const size_t block = written_ % kBlocks;
    const auto bytes = memory_.subspan(block * (memory_.size() / kBlocks), sizes_[block]);
    mu_.Unlock();
    const absl::Status status = WriteAll(bytes);
    mu_.Lock();
    status_.Update(status);
    ++written_;
    changed_.SignalAll();
  }
}

absl::Status OutputWriter::WriteAll(absl::Span<const char> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write " + name_);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace nram
