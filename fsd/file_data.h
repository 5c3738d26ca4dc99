#ifndef NRAM_FSD_FILE_DATA_H_
#define NRAM_FSD_FILE_DATA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/sync.h"
#include "fsd/block_file.h"
#include "fsd/clone_file.h"
#include "fsd/errno.h"
#include "fsd/failed_pages.h"
#include "fsd/file_io.h"
#include "fsd/file_pages.h"
#include "fsd/file_store.h"
#include "fsd/namespace.h"

namespace nram {

// The data of one regular file: bytes at any offset, over a BlockFile's units. Thread-safe. Each operation is atomic
// towards those that change sizes, make holes or touch parts of units; reads and writes of whole units run beside each
// other.
//
// Errors: ENOSPC (the mount's limit or the pool), EFBIG (beyond 2^62), EIO (a server is away or has lost data, or a
// page has failed to be written back and has not been written whole, punched or cut off since).
class FileData : public FileBody {
 public:
  // `store` must outlive it.
  explicit FileData(FileStore* store) : pages_(store) {}
  ~FileData() override { failed_pages()->CutOff(&failed_, 0); }

  uint64_t size() const override { return size_.load(std::memory_order_acquire); }
  uint64_t blocks() const override { return pages_.Count() * kChunksPerPage; }

  // Reads up to `size` bytes into `buffer` and its pads, and waits for them. *got says where they are; at the end of
  // the file they are fewer. `buffer.size` is at least `size` rounded up to units.
  Errno Read(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got);
  // The same, with no write under way: all that it reads is of one moment.
  Errno ReadAtOnce(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got);
  // Writes and waits for it. The pads of `bytes` are overwritten. After an error, each unit is as it was or as written,
  // and the size is as it was; from the page cache, the file then reaches to the range's end, whose pages have failed.
  Errno Write(uint64_t offset, PaddedBytes bytes, WriteOrigin origin = WriteOrigin::kWriter);

  // These start the same operations into io->buffer() or from it, and do not wait, but for room that a write may have
  // to reserve. False: the operation cannot be had so now, and nothing was begun; use Read or Write.
  bool StartRead(FileIo* io, uint64_t offset, size_t size) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool StartWrite(FileIo* io, uint64_t offset, size_t size,
                  WriteOrigin origin = WriteOrigin::kWriter) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // The kernel is about to read something for its page cache, or has written something from there, and keeps it. After
  // a later write past the cache, the cache may have older bytes.
  void NoteCached() {
    if (direct_writes_ != 1) direct_writes_ = 1;
  }
  // A write past the page cache has ended. The answer says which pages must leave the cache before the writer is told.
  enum class Stale { kNothing, kItsRange, kWholeFile };
  Stale NoteDirectWrite(uint32_t* token);
  // The whole file has left the page cache since NoteDirectWrite gave out `token`.
  void NoteDropped(uint32_t token) { direct_writes_.compare_exchange_strong(token, 0); }

  // These wait for servers too. After an error, the range is promised no room any more.
  Errno Truncate(uint64_t size);
  // Later writes to the range do not fail for lack of room, until it is punched, truncated away or made a copy's: only
  // a page that is shared with another file may need room that is not there. kZeros: the range is zeros then, and has
  // not changed if its holes find no room (ENOSPC); other clients may take the room of its data in the meantime.
  enum class Contents : uint8_t { kStay, kZeros };
  Errno Allocate(uint64_t offset, uint64_t length, bool keep_size, Contents contents = Contents::kStay);
  Errno PunchHole(uint64_t offset, uint64_t length);
  // Writes zeros that take no memory, also behind the end: the file then reaches to the range's end at least.
  Errno PutHole(uint64_t offset, uint64_t length);

  // The bytes that a file had in a range at one moment, from the range's first page on.
  struct SharedBytes {
    SharedPages pages;
    uint64_t end = 0;       // the range's begin: there is nothing to share, or it cannot be
    bool followed = false;  // the last page may have bytes other than zeros behind `end`
  };
  // A copy that takes no room before either file changes (adr/0024), from one file to the same place of another.
  // Share returns the file's pages in [offset, end) at this moment, up to a page that has failed; `offset` is a page's.
  // It asks no server, unless the
  // file has as many bases as it may (CloneFile::Share). The result is Adopt's, of a file over the same store.
  // *adopted_end is less than `shared.end` if the target has bytes of its own in the last page. UNIMPLEMENTED is
  // EOPNOTSUPP: copy the bytes. Adopt needs ENOSPC's room in the mount's limit alone. After an error nothing has
  // changed, but that holes may be where the target's bytes were if that is EIO.
  void Share(uint64_t offset, uint64_t end, SharedBytes* shared);
  Errno Adopt(uint64_t offset, SharedBytes shared, uint64_t* adopted_end);

  // The next data or hole as lseek has them; ENXIO. *found is then where the hole ends that the file ends with,
  // `offset` if the file ends before. A page that has failed is data.
  Errno SeekData(uint64_t offset, uint64_t* found) const;
  Errno SeekHole(uint64_t offset, uint64_t* found) const;

 private:
  friend class FileIo;
  friend class FileStore;

  // A read in units.
  struct ReadPlan {
    uint64_t from = 0;                   // a unit's first byte
    absl::Span<std::byte> units;         // the part of the buffer for them; empty behind the end of the file
    absl::Span<const std::byte> wanted;  // the bytes of them that were asked for
  };

  size_t unit() const { return pages_.store()->unit_bytes(); }
  FailedPages* failed_pages() const { return pages_.store()->failed_pages(); }
  bool WritesBeside(uint64_t offset, uint64_t end) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const BlockFile* const stored = pages_.stored();
    return stored == nullptr || stored->WritesBeside(offset, end - offset);
  }
  bool IsWholeUnits(uint64_t offset, uint64_t end) const { return offset % unit() == 0 && end % unit() == 0; }
  Errno ReadNow(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got)
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  ReadPlan PlanRead(uint64_t offset, size_t size, PaddedBytes buffer) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Writes whole units and waits. If there is no room, tries once more when the deleted files are freed.
  Errno WriteUnits(uint64_t offset, absl::Span<const std::byte> bytes) ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The same for any bytes.
  Errno WriteAlone(uint64_t offset, PaddedBytes bytes, bool* begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A write leaves the file larger, and its pages good; if it failed, the tail unsure or its pages failed.
  void NoteWritten(Errno error, uint64_t offset, uint64_t end, WriteOrigin origin) ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void GrowTo(uint64_t size);
  // Fills the first and last unit of a write up with the file's bytes there, in the pads.
  Errno RoundOut(uint64_t* offset, PaddedBytes* bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads the unit at `at` as the file has it: zeros behind its end and in holes.
  Errno LoadUnit(uint64_t at, absl::Span<std::byte> bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Zeros in [offset, end), which lies in one unit.
  Errno ZeroWithinUnit(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Errno ZeroRange(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the bytes that a failed write may have left behind the end of the file.
  Errno CleanTail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Zeros in the range, without the pages that are promised: no write has reached these, and they stay promised.
  Errno ZeroUnpromised(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reserves the pages of [offset, end) that do not count yet, and counts and promises them; all or nothing. If there
  // is no room, tries once more when the deleted files are freed.
  Errno Reserve(uint64_t offset, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::unique_ptr<BlockFile> TakeStored() { return pages_.TakeStored(); }

  // The ends of asynchronous operations. Each operation holds the gate shared; EndIo gives it back.
  static void OnBlockEnd(BlockIo* block);
  void OnWriteEnd(FileIo* io) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void EndIo(FileIo* io, Errno error) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Tries a failed write again. It may take as long as an operation.
  void WriteAgain(FileIo* io) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // Shared: whole units are read and written. Exclusive: all else. Taken before the lock of pages_.
  mutable SharedGate mu_;
  // 0: the page cache has nothing that was there before now. Else one more than the direct writes since it was given
  // something: after many, to drop all of the file once is cheaper than to ask for each.
  std::atomic<uint32_t> direct_writes_{0};
  std::atomic<uint64_t> size_{0};
  [[no_unique_address]] FilePages pages_;  // the next field goes into the bytes that alignment leaves over in it
  // A write behind the end has failed: the bytes there may not be zeros. Set with the gate shared, cleared with it
  // exclusive.
  std::atomic<bool> tail_unsure_{false};
  FailedPages::Mark failed_;  // set with the gate shared too
};

}  // namespace nram

#endif  // NRAM_FSD_FILE_DATA_H_
