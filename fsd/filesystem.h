#ifndef NRAM_FSD_FILESYSTEM_H_
#define NRAM_FSD_FILESYSTEM_H_

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "fsd/errno.h"
#include "fsd/file_copy.h"
#include "fsd/file_data.h"
#include "fsd/memory_bound.h"
#include "fsd/namespace.h"

namespace nram {

// The notes that a read leaves behind.
struct ReadNotes {
  bool for_page_cache = false;  // the kernel keeps the bytes in its page cache
  bool touch = true;            // the file's access time is now
};

// The notes that a write leaves behind beside the bytes.
struct WriteNotes {
  bool for_page_cache = false;  // the kernel keeps the bytes in its page cache
  // The file's times are now. Not if the kernel writes its page cache back: it keeps the times itself then.
  bool touch = true;
  WriteOrigin origin = WriteOrigin::kWriter;
};

struct FilesystemOptions {
  uint64_t bytes_max = UINT64_MAX;
  uint64_t memory_bytes_max = 0;                     // of this process (MemoryBound); 0: no bound
  std::function<uint64_t()> heap_bytes = HeapBytes;  // likewise; another one is for tests
  bool free_at_end = true;  // the files that are left when it ends; not needed if the store does so by itself
  LocalNamespaceOptions names;
};

// Names and data together: all that a mount does, without FUSE. Thread-safe. Operations on names are the namespace's
// own; the operations here touch data.
class Filesystem {
 public:
  // `blocks` must outlive it.
  Filesystem(BlockStore* blocks, FilesystemOptions options);
  ~Filesystem();

  Namespace* names() { return names_.get(); }

  // These wait for servers (FileData::Read, FileData::Write).
  Errno Read(InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes, PaddedBytes buffer,
             absl::Span<const std::byte>* got);
  Errno Write(InodeNumber inode, uint64_t offset, PaddedBytes bytes, WriteNotes notes, SetIdBits set_id);
  // These start the same operations without waiting (FileData::StartRead), for a handle over store(). If `notes.touch`,
  // the caller calls ReadEnded or WriteEnded once the operation has ended well.
  bool StartRead(InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes, FileIo* io);
  bool StartWrite(InodeNumber inode, uint64_t offset, size_t size, WriteNotes notes, FileIo* io);
  void ReadEnded(InodeNumber inode) { names_->TouchAccess(inode); }
  void WriteEnded(InodeNumber inode) { names_->TouchData(inode, SetIdBits::kKeep); }
  FileStore* store() { return &store_; }
  const MemoryBound& memory() const { return memory_; }
  // For a write past the page cache that has ended (FileData::NoteDirectWrite, FileData::NoteDropped).
  FileData::Stale NoteDirectWrite(InodeNumber inode, uint32_t* token);
  void NoteDropped(InodeNumber inode, uint32_t token);
  // If `size` is given, truncates or extends the file first.
  Errno SetAttr(InodeNumber inode, const AttrChange& change, std::optional<uint64_t> size, InodeAttr* attr);
  // fallocate(2): 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE with and without KEEP_SIZE; else
  // EOPNOTSUPP.
  Errno Allocate(InodeNumber inode, int mode, uint64_t offset, uint64_t length, SetIdBits set_id);
  // SEEK_DATA or SEEK_HOLE.
  Errno Seek(InodeNumber inode, uint64_t offset, int whence, uint64_t* found);
  // copy_file_range(2): the target shares the source's pages where it can (adr/0024), else gets the bytes. *copied may
  // be less than `length`, though there is more. It is all of a source only if this was its state at one moment. Asks
  // `stop` now and then whether to end. EINVAL: the ranges are of one file and overlap.
  struct CopyRange {
    InodeNumber from = 0;
    uint64_t from_offset = 0;
    InodeNumber to = 0;
    uint64_t to_offset = 0;
    uint64_t length = 0;
  };
  Errno Copy(const CopyRange& range, PaddedBytes buffer, SetIdBits set_id, absl::FunctionRef<bool()> stop,
             uint64_t* copied);
  void StatFs(struct statvfs* stat) const;
  // `callback` runs when a change of data has cleared a file's set-id bits, before Write, Allocate or Copy returns. Set
  // it before any of them is called.
  void set_on_set_id_dropped(std::function<void(InodeNumber)> callback) { on_set_id_dropped_ = std::move(callback); }

 private:
  Errno Data(InodeNumber inode, FileData** data);
  Errno CopyChecked(FileCopy copy, PaddedBytes buffer, absl::FunctionRef<bool()> stop, uint64_t* copied);
  void NoteChange(InodeNumber inode, SetIdBits set_id);

  const bool free_at_end_;
  MemoryBound memory_;
  FileStore store_;
  std::function<void(InodeNumber)> on_set_id_dropped_;
  const std::unique_ptr<Namespace> names_;  // after store_: it buries its files there when it goes away
};

}  // namespace nram

#endif  // NRAM_FSD_FILESYSTEM_H_
