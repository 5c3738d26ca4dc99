#ifndef NRAM_FSD_FILE_DATA_H_
#define NRAM_FSD_FILE_DATA_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "base/sync.h"
#include "base/units.h"
#include "fsd/block_file.h"
#include "fsd/errno.h"
#include "fsd/namespace.h"
#include "fsd/page_set.h"

namespace nram {

class FileData;
class FileStore;

// Bytes with a chunk's worth of memory before and behind them that may be scribbled on, so that what is not aligned can
// be rounded out in place.
struct PaddedBytes {
  static constexpr size_t kPadBytes = kChunkBytes;
  std::byte* data = nullptr;
  size_t size = 0;
};

// A small read or write that is under way without a thread that waits for it, and its buffer. Used again and again.
class FileIo {
 public:
  static constexpr size_t kBytesMax = 64 * kKiB;

  explicit FileIo(FileStore* store);
  PaddedBytes buffer() { return {memory_.get() + PaddedBytes::kPadBytes, kBytesMax}; }

  // Called when it is over, on any thread, as the last thing; must not block. `got`: what was read.
  void (*done)(FileIo* io, Errno error, absl::Span<const std::byte> got) = nullptr;
  void* context = nullptr;
  // Of the file of a write that has just ended: false if FileData::NoteDirectWrite would say kNothing.
  bool MayBeCached() const;

 private:
  friend class FileData;
  friend class FileStore;

  const std::unique_ptr<BlockIo> block_;
  const std::unique_ptr<std::byte[]> memory_;
  FileData* file_ = nullptr;
  uint64_t offset_ = 0;
  uint64_t retry_when_freed_ = 0;
  int64_t retry_at_ns_ = 0;
  absl::Status failed_;                 // the write that was started
  absl::Span<std::byte> bytes_;         // whole chunks
  absl::Span<const std::byte> wanted_;  // of them
};

// The data of one regular file: bytes at any offset, over a BlockFile's chunks. Thread-safe. Each operation is atomic
// towards those that change sizes, make holes or touch parts of chunks; reads and writes of whole chunks run beside
// each other.
//
// Errors: ENOSPC (the mount's limit or the pool), EFBIG (beyond 2^62), EIO (a server is away or has lost data).
class FileData : public FileBody {
 public:
  explicit FileData(FileStore* store) : store_(store) {}
  ~FileData() override;

  uint64_t size() const override { return size_.load(std::memory_order_acquire); }
  uint64_t blocks() const override;

  // Reads up to `size` bytes into `buffer`, which has room for them and a pad; *got is where they are in it, shorter at
  // the end of the file. `buffer.size` is at least `size` rounded up to chunks.
  Errno Read(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got);
  // After an error, each chunk is as it was or as written; the size is as it was.
  Errno Write(uint64_t offset, PaddedBytes bytes);
  // The same without waiting, in io->buffer() or from it. False: it cannot be done so now, and nothing was begun; use
  // Read or Write. At most FileIo::kBytesMax; a write may still wait for room to be reserved.
  bool StartRead(FileIo* io, uint64_t offset, size_t size) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool StartWrite(FileIo* io, uint64_t offset, size_t size) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // The kernel is about to read something for its page cache, or has written something from there, and keeps it: after
  // a write past the cache it may have there what was before.
  void NoteCached() {
    if (direct_writes_ != 1) direct_writes_ = 1;
  }
  // Of a write past the page cache that has ended: what must leave the cache before its writer is told.
  enum class Stale { kNothing, kItsRange, kWholeFile };
  Stale NoteDirectWrite(uint32_t* token);
  // The whole file has left the page cache since NoteDirectWrite said `token`.
  void NoteDropped(uint32_t token) { direct_writes_.compare_exchange_strong(token, 0); }
  Errno Truncate(uint64_t size);
  // Later writes there do not fail for lack of room.
  Errno Allocate(uint64_t offset, uint64_t length, bool keep_size);
  Errno PunchHole(uint64_t offset, uint64_t length);
  // The next data or hole as lseek has them; ENXIO.
  Errno SeekData(uint64_t offset, uint64_t* found) const;
  Errno SeekHole(uint64_t offset, uint64_t* found) const;

 private:
  friend class FileIo;
  friend class FileStore;

  Errno CheckRange(uint64_t offset, uint64_t length) const;
  // Counts the pages of [offset, end) as taken; ENOSPC.
  Errno TakePages(uint64_t offset, uint64_t end);
  uint64_t ReturnPages(uint64_t first, uint64_t end);
  // Reserves the pages of [offset, end) that it has not, and takes them; all or nothing.
  Errno ReserveAndTake(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t CountPages(uint64_t offset, uint64_t end) const;
  BlockFile* File(absl::Status* status);
  Errno WriteAligned(uint64_t offset, absl::Span<const std::byte> bytes);
  // Completes the first and last chunk of a write in its pads.
  Errno RoundOut(uint64_t* offset, PaddedBytes* bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Zeros in [offset, end), which lies in one chunk.
  Errno ZeroWithinChunk(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Errno ZeroRange(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes what a failed write may have left behind the end of the file.
  Errno CleanTail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GrowTo(uint64_t size);
  // These hold the gate on behalf of an operation.
  static void OnReadDone(BlockIo* block, const absl::Status& status) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  static void OnWriteDone(BlockIo* block, const absl::Status& status);
  static void OnRetryDone(BlockIo* block, const absl::Status& status);
  void EndWrite(FileIo* io, Errno error) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  FileStore* const store_;
  // Shared: whole chunks are read and written. Exclusive: all else.
  mutable SharedGate mu_;
  std::atomic<bool> tail_unsure_{false};  // a write behind the end failed; zeros are not certain there
  // 0: the page cache has nothing of what there was before now. Else one more than the direct writes since it was given
  // something: after many, dropping all of the file once is cheaper than asking for each.
  std::atomic<uint32_t> direct_writes_{0};
  std::atomic<uint64_t> size_{0};
  PageSet pages_;                    // under the store's lock for it; a superset of what is stored
  std::unique_ptr<BlockFile> file_;  // likewise; made with the first write
};

inline bool FileIo::MayBeCached() const { return file_->direct_writes_ != 0; }

// All files' data: the store that it is in, the mount's limit, and the freeing of what was deleted. Thread-safe.
class FileStore {
 public:
  // At most `bytes_max` of data. `blocks` must outlive it.
  FileStore(BlockStore* blocks, uint64_t bytes_max);
  // Frees what is still to be freed.
  ~FileStore();

  std::unique_ptr<FileBody> NewFile() { return std::make_unique<FileData>(this); }
  // Takes a file that is no more; its memory is freed in the background, soon. Does not block.
  void Bury(std::unique_ptr<FileBody> file);

  // From here on, files that are buried stay in the store.
  void StopFreeing() { frees_ = false; }

  // What statfs says: at most the limit, and at most what the store has.
  StoreCapacity Capacity() const;

 private:
  friend class FileData;
  friend class FileIo;

  bool HasPages(uint64_t pages) const { return pages_left_ >= 0 && static_cast<uint64_t>(pages_left_) >= pages; }
  bool TryTakePages(uint64_t pages);
  void ReturnPages(uint64_t pages) { pages_left_ += static_cast<int64_t>(pages); }
  void Free(std::unique_ptr<BlockFile> file);
  // Writes again, once what has been deleted so far is freed, or after two seconds, however long that is freed for.
  void RetryWrite(FileIo* io);
  void Retry(FileIo* io);
  // How many files have been freed, ever.
  uint64_t Freed();
  // Waits until what has been deleted so far is freed; true if anything was since Freed() was `freed_before`.
  bool AwaitFreed(uint64_t freed_before);
  void RunFreeing();
  void RunRetries();
  // Held for moments only, so that files may share one.
  Mutex* PagesLock(const FileData* file) const {
    return &pages_locks_[reinterpret_cast<uintptr_t>(file) / sizeof(FileData) % pages_locks_.size()];
  }

  static constexpr size_t kFreeAtOnce = 256;

  BlockStore* const blocks_;
  const uint64_t pages_max_;
  std::atomic<int64_t> pages_left_;
  std::atomic<bool> frees_{true};
  mutable std::array<Mutex, 64> pages_locks_;

  Mutex mu_;
  CondVar work_;
  CondVar freed_;
  CondVar retry_;
  std::deque<std::unique_ptr<BlockFile>> to_free_ ABSL_GUARDED_BY(mu_);
  std::vector<FileIo*> retries_ ABSL_GUARDED_BY(mu_);
  uint64_t given_ ABSL_GUARDED_BY(mu_) = 0;       // to be freed, ever
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;        // of them, freed
  uint64_t trimmed_at_ ABSL_GUARDED_BY(mu_) = 0;  // done_ when the heap was last trimmed
  bool hurry_ ABSL_GUARDED_BY(mu_) = false;       // somebody waits for the room
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
  std::thread retry_thread_;
};

}  // namespace nram

#endif  // NRAM_FSD_FILE_DATA_H_
