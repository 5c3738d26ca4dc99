#include "fsd/block_file.h"

#include <glog/logging.h>

#include "base/clock.h"
#include "base/sync.h"

namespace nram {
namespace {

// A waiter looks again after this time, whatever happens to its wake-up.
constexpr int64_t kLookAgainMs = 1'000;

}  // namespace

BlockIo::~BlockIo() {
  const uint32_t state = state_.load(std::memory_order_relaxed);
  CHECK(state != kRunning && state != kSleeping) << "a handle went away while its operation was under way";
}

void BlockIo::Begin(Op op, uint64_t offset, absl::Span<std::byte> to, absl::Span<const std::byte> from) {
  CHECK_EQ(state_.load(std::memory_order_relaxed), kIdle) << "a handle was used twice at a time";
  op_ = op;
  offset_ = offset;
  to_ = to;
  from_ = from;
  state_.store(kRunning, std::memory_order_relaxed);
}

void BlockIo::Cancel() {
  CHECK(!waited_for()) << "a store refused to wait";
  state_.store(kIdle, std::memory_order_relaxed);
}

void BlockIo::End(absl::Status status) {
  status_ = std::move(status);
  if (done_ != nullptr) {
    CHECK_EQ(state_.load(std::memory_order_relaxed), kRunning) << "an operation ended twice";
    state_.store(kIdle, std::memory_order_relaxed);
    done_(this);
    return;
  }
  const uint32_t before = state_.exchange(kEnded, std::memory_order_acq_rel);
  if (before == kSleeping) FutexWakeAll(&state_);
}

absl::Status BlockIo::Wait() {
  CHECK(waited_for());
  CHECK_NE(state_.load(std::memory_order_relaxed), kIdle) << "nothing was started";
  while (state_.load(std::memory_order_acquire) != kEnded) {
    uint32_t expected = kRunning;
    if (state_.compare_exchange_strong(expected, kSleeping) || expected == kSleeping) {
      FutexWaitUntil(&state_, kSleeping, DeadlineAfterMs(kLookAgainMs));
    }
  }
  state_.store(kIdle, std::memory_order_relaxed);
  return status_;
}

bool BlockFile::StartRead(BlockIo* io, uint64_t offset, absl::Span<std::byte> to) {
  io->Begin(BlockIo::Op::kRead, offset, to, {});
  if (Start(io)) return true;
  io->Cancel();
  return false;
}

bool BlockFile::StartWrite(BlockIo* io, uint64_t offset, absl::Span<const std::byte> from) {
  io->Begin(BlockIo::Op::kWrite, offset, {}, from);
  if (Start(io)) return true;
  io->Cancel();
  return false;
}

absl::Status BlockFile::Read(uint64_t offset, absl::Span<std::byte> to) {
  BlockIo io;
  StartRead(&io, offset, to);
  return io.Wait();
}

absl::Status BlockFile::Write(uint64_t offset, absl::Span<const std::byte> from) {
  BlockIo io;
  StartWrite(&io, offset, from);
  return io.Wait();
}

}  // namespace nram
