#include "fsd/file_copy.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/sync.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t kReadAheadBytes = 4 * kMiB;  // below that, a thread costs more than it saves
constexpr int64_t kLookAgainMs = 1'000;

// A part that is copied at once. No bytes and no error: the source has no more.
struct Piece {
  Errno error = Errno::kOk;
  uint64_t bytes = 0;
  bool hole = false;
  absl::Span<const std::byte> data;  // unless it is a hole
};

// The piece after `done` bytes, read into `buffer`.
Piece ReadPiece(const FileCopy& copy, uint64_t done, PaddedBytes buffer) {
  Piece piece;
  const uint64_t at = copy.from_offset + done;
  uint64_t left = copy.length - done;
  uint64_t data_at = 0, data_end = 0;
  Errno error = left == 0 ? Err(ENXIO) : copy.from->SeekData(at, &data_at);
  if (left == 0 || data_at > at) {
    piece.hole = true;
    piece.bytes = std::min(left, data_at - at);
    return piece;
  }
  if (Ok(error)) error = copy.from->SeekHole(at, &data_end);
  if (error == Err(ENXIO)) return piece;  // the end of the file, perhaps since a moment ago
  // Pieces end where the target's do, so that most are written as they are stored.
  left = std::min(
      {left, data_end - at, kCopyPieceBytes - (copy.to_offset + done) % kCopyPieceBytes, uint64_t{buffer.size}});
  if (Ok(error)) error = copy.from->Read(at, left, buffer, &piece.data);
  piece.error = error;
  piece.bytes = piece.data.size();
  return piece;
}

Errno WritePiece(const FileCopy& copy, uint64_t done, const Piece& piece) {
  if (piece.hole) return copy.to->PutHole(copy.to_offset + done, piece.bytes);
  // The data lies in a buffer of ours, and has that one's pads.
  return copy.to->Write(copy.to_offset + done, {const_cast<std::byte*>(piece.data.data()), piece.data.size()});
}

// Reads the pieces of a copy in order, one ahead of the thread that takes them. One thread takes them.
class PieceReader {
 public:
  PieceReader(const FileCopy& copy, PaddedBytes buffer) : copy_(copy) {
    buffers_[0] = buffer;
    if (copy.length < kReadAheadBytes) return;
    memory_.reset(new std::byte[buffer.size + 2 * PaddedBytes::kPadBytes]);
    buffers_[1] = {memory_.get() + PaddedBytes::kPadBytes, buffer.size};
    // Without another thread it goes on, slower.
    has_thread_ = pthread_create(&thread_, nullptr, &Run, this) == 0;
    if (has_thread_) pthread_setname_np(thread_, "nram-copy");
  }
  ~PieceReader() {
    if (!has_thread_) return;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    pthread_join(thread_, nullptr);
  }
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;

  // The next piece; it stays until the call after this one.
  Piece Next() {
    if (!has_thread_) {
      const Piece piece = ReadPiece(copy_, done_, buffers_[0]);
      done_ += piece.bytes;
      return piece;
    }
    MutexLock lock(&mu_);
    if (taken_ > freed_) freed_ = taken_;
    changed_.SignalAll();
    // The reads under way end in a bounded time.
    while (read_ == taken_) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
    return pieces_[taken_++ % 2];
  }

 private:
  static void* Run(void* reader) {
    static_cast<PieceReader*>(reader)->ReadAll();
    return nullptr;
  }

  void ReadAll() {
    uint64_t done = 0;
    for (uint64_t number = 0;; ++number) {
      {
        MutexLock lock(&mu_);
        while (!stopping_ && number >= freed_ + 2) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
        if (stopping_) return;
      }
      const Piece piece = ReadPiece(copy_, done, buffers_[number % 2]);
      done += piece.bytes;
      MutexLock lock(&mu_);
      pieces_[number % 2] = piece;
      read_ = number + 1;
      changed_.SignalAll();
      if (piece.bytes == 0 || !Ok(piece.error)) return;
    }
  }

  const FileCopy copy_;
  PaddedBytes buffers_[2];
  std::unique_ptr<std::byte[]> memory_;
  uint64_t done_ = 0;  // without a thread
  bool has_thread_ = false;
  pthread_t thread_{};

  // No other lock is taken while this one is held.
  Mutex mu_;
  CondVar changed_;
  Piece pieces_[2] ABSL_GUARDED_BY(mu_);
  // Numbers of pieces, counted from the first: each is below the next.
  uint64_t freed_ ABSL_GUARDED_BY(mu_) = 0;  // whose buffers may be used again
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t read_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

Errno CopyBytes(const FileCopy& copy, PaddedBytes buffer, absl::FunctionRef<bool()> stop, uint64_t* copied) {
  *copied = 0;
  PieceReader reader(copy, buffer);
  while (*copied < copy.length) {
    const Piece piece = reader.Next();
    Errno error = piece.error;
    if (Ok(error) && piece.bytes == 0) break;
    if (Ok(error)) error = WritePiece(copy, *copied, piece);
    if (!Ok(error)) return *copied == 0 ? error : Errno::kOk;
    *copied += piece.bytes;
    if (*copied < copy.length && stop()) break;
  }
  return Errno::kOk;
}

Errno CopyAtOnce(const FileCopy& copy, PaddedBytes buffer, uint64_t* copied) {
  *copied = 0;
  absl::Span<const std::byte> got;
  NRAM_RETURN_IF_ERRNO(
      copy.from->ReadAtOnce(copy.from_offset, std::min<uint64_t>(copy.length, buffer.size), buffer, &got));
  const auto is_hole = [&](uint64_t at) {
    const absl::Span<const std::byte> page = got.subspan(at, kPageBytes);
    return std::all_of(page.begin(), page.end(), [](std::byte byte) { return byte == std::byte{0}; });
  };
  // Copied out first, because writes overwrite pads, which here are bytes still to be written.
  const std::unique_ptr<std::byte[]> memory(new std::byte[got.size() + 2 * PaddedBytes::kPadBytes]);
  std::byte* const data = memory.get() + PaddedBytes::kPadBytes;
  while (*copied < got.size()) {
    const bool hole = is_hole(*copied);
    uint64_t end = *copied;
    while (end < got.size() && is_hole(end) == hole) end = std::min<uint64_t>(end + kPageBytes, got.size());
    const uint64_t bytes = end - *copied;
    Errno error;
    if (hole) {
      error = copy.to->PutHole(copy.to_offset + *copied, bytes);
    } else {
      memcpy(data, &got[*copied], bytes);
      error = copy.to->Write(copy.to_offset + *copied, {data, bytes});
    }
    if (!Ok(error)) return *copied == 0 ? error : Errno::kOk;
    *copied = end;
  }
  return Errno::kOk;
}

Errno ShareBytes(const FileCopy& copy, uint64_t* shared) {
  *shared = 0;
  if (copy.from == copy.to || copy.from_offset != copy.to_offset || copy.length < kCopyPieceBytes) return Errno::kOk;
  FileData::SharedBytes bytes;
  copy.from->Share(copy.from_offset, copy.from_offset + copy.length, &bytes);
  if (bytes.end - copy.from_offset < kCopyPieceBytes) return Errno::kOk;
  uint64_t adopted_end = 0;
  const Errno error = copy.to->Adopt(copy.from_offset, std::move(bytes), &adopted_end);
  if (error == Err(EOPNOTSUPP)) return Errno::kOk;
  *shared = adopted_end - copy.from_offset;
  return error;
}

}  // namespace nram
