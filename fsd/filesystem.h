#ifndef NRAM_FSD_FILESYSTEM_H_
#define NRAM_FSD_FILESYSTEM_H_

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "fsd/errno.h"
#include "fsd/file_data.h"
#include "fsd/namespace.h"

namespace nram {

// What is to be remembered of a read.
struct ReadNotes {
  bool for_page_cache = false;  // the kernel keeps what it is given
  bool touch = true;            // the file's access time
};

struct FilesystemOptions {
  uint64_t bytes_max = UINT64_MAX;
  bool free_at_end = true;  // what is still there when it ends; not needed where the store does so by itself
  LocalNamespaceOptions names;
};

// Names and data together: what a mount does, without FUSE. Thread-safe. Operations on names are the namespace's own;
// here is what touches data.
class Filesystem {
 public:
  // `blocks` must outlive it.
  Filesystem(BlockStore* blocks, FilesystemOptions options);
  ~Filesystem();

  Namespace* names() { return names_.get(); }

  Errno Read(InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes, PaddedBytes buffer,
             absl::Span<const std::byte>* got);
  // `cached`: written back from the kernel's page cache, which keeps the times itself.
  Errno Write(InodeNumber inode, uint64_t offset, PaddedBytes bytes, bool cached, SetIdBits set_id);
  // The same for small ones without waiting (FileData::StartRead); what ended well is then to be noted.
  std::unique_ptr<FileIo> NewIo() { return std::make_unique<FileIo>(&store_); }
  bool StartRead(InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes, FileIo* io);
  bool StartWrite(InodeNumber inode, uint64_t offset, size_t size, FileIo* io);
  void ReadEnded(InodeNumber inode) { names_->TouchAccess(inode); }
  void WriteEnded(InodeNumber inode) { names_->TouchData(inode, SetIdBits::kKeep); }
  // The page cache has what a write brings (FileData::NoteCached).
  void NoteCached(InodeNumber inode);
  // For a write past the page cache that has ended (FileData::NoteDirectWrite).
  FileData::Stale NoteDirectWrite(InodeNumber inode, uint32_t* token);
  void NoteDropped(InodeNumber inode, uint32_t token);
  // With `size`, truncates or extends first.
  Errno SetAttr(InodeNumber inode, const AttrChange& change, std::optional<uint64_t> size, InodeAttr* attr);
  // fallocate(2): 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE with and without KEEP_SIZE; else
  // EOPNOTSUPP.
  Errno Allocate(InodeNumber inode, int mode, uint64_t offset, uint64_t length, SetIdBits set_id);
  // SEEK_DATA or SEEK_HOLE.
  Errno Seek(InodeNumber inode, uint64_t offset, int whence, uint64_t* found);
  // Copies through `buffer`; *copied may be short.
  Errno Copy(InodeNumber from, uint64_t from_offset, InodeNumber to, uint64_t to_offset, uint64_t length,
             PaddedBytes buffer, SetIdBits set_id, uint64_t* copied);
  void StatFs(struct statvfs* stat) const;
  // Called when a change of data has cleared a file's set-id bits, before Write, Allocate or Copy returns. Set it
  // before any of them is called.
  void set_on_set_id_dropped(std::function<void(InodeNumber)> callback) { on_set_id_dropped_ = std::move(callback); }

 private:
  Errno Data(InodeNumber inode, FileData** data);
  void NoteChange(InodeNumber inode, SetIdBits set_id);

  const bool free_at_end_;
  FileStore store_;
  std::function<void(InodeNumber)> on_set_id_dropped_;
  const std::unique_ptr<Namespace> names_;  // gone before the store that takes its files
};

}  // namespace nram

#endif  // NRAM_FSD_FILESYSTEM_H_
