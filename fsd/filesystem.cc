#include "fsd/filesystem.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t kCopyBytesMax = 64 * kMiB;  // by one request; the kernel asks for the rest

}  // namespace

Filesystem::Filesystem(BlockStore* blocks, FilesystemOptions options)
    : free_at_end_(options.free_at_end),
      memory_(options.memory_bytes_max, options.heap_bytes),
      store_(blocks, options.bytes_max, &memory_),
      names_([&] {
        options.names.may_grow = [this](uint64_t bytes) { return memory_.TryGrow(bytes); };
        options.names.make_body = [this] { return store_.NewFile(); };
        options.names.bury = [this](std::unique_ptr<FileBody> body) { store_.Bury(std::move(body)); };
        return NewLocalNamespace(std::move(options.names));
      }()) {}

Filesystem::~Filesystem() {
  if (!free_at_end_) store_.StopFreeing();
}

Errno Filesystem::Data(InodeNumber inode, FileData** data) {
  FileBody* body = nullptr;
  NRAM_RETURN_IF_ERRNO(names_->Body(inode, &body));
  *data = static_cast<FileData*>(body);
  return Errno::kOk;
}

void Filesystem::NoteChange(InodeNumber inode, SetIdBits set_id) {
  if (names_->TouchData(inode, set_id) && on_set_id_dropped_) on_set_id_dropped_(inode);
}

Errno Filesystem::Read(InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes, PaddedBytes buffer,
                       absl::Span<const std::byte>* got) {
  FileData* data = nullptr;
  NRAM_RETURN_IF_ERRNO(Data(inode, &data));
  if (notes.for_page_cache) data->NoteCached();
  NRAM_RETURN_IF_ERRNO(data->Read(offset, size, buffer, got));
  if (notes.touch) names_->TouchAccess(inode);
  return Errno::kOk;
}

Errno Filesystem::Write(InodeNumber inode, uint64_t offset, PaddedBytes bytes, WriteNotes notes, SetIdBits set_id) {
  FileData* data = nullptr;
  NRAM_RETURN_IF_ERRNO(Data(inode, &data));
  if (notes.for_page_cache) data->NoteCached();
  NRAM_RETURN_IF_ERRNO(data->Write(offset, bytes, notes.origin));
  if (notes.touch || set_id != SetIdBits::kKeep) NoteChange(inode, set_id);
  return Errno::kOk;
}

bool Filesystem::StartRead(InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes, FileIo* io) {
  FileData* data = nullptr;
  if (!Ok(Data(inode, &data))) return false;
  if (notes.for_page_cache) data->NoteCached();
  return data->StartRead(io, offset, size);
}

bool Filesystem::StartWrite(InodeNumber inode, uint64_t offset, size_t size, WriteNotes notes, FileIo* io) {
  FileData* data = nullptr;
  if (!Ok(Data(inode, &data))) return false;
  if (notes.for_page_cache) data->NoteCached();
  return data->StartWrite(io, offset, size, notes.origin);
}

FileData::Stale Filesystem::NoteDirectWrite(InodeNumber inode, uint32_t* token) {
  FileData* data = nullptr;
  return Ok(Data(inode, &data)) ? data->NoteDirectWrite(token) : FileData::Stale::kNothing;
}

void Filesystem::NoteDropped(InodeNumber inode, uint32_t token) {
  FileData* data = nullptr;
  if (Ok(Data(inode, &data))) data->NoteDropped(token);
}

Errno Filesystem::SetAttr(InodeNumber inode, const AttrChange& change, std::optional<uint64_t> size, InodeAttr* attr) {
  if (!size) return names_->SetAttr(inode, change, attr);
  FileData* data = nullptr;
  NRAM_RETURN_IF_ERRNO(Data(inode, &data));
  NRAM_RETURN_IF_ERRNO(data->Truncate(*size));
  if (!change.mtime) names_->TouchData(inode, SetIdBits::kKeep);
  return names_->SetAttr(inode, change, attr);
}

Errno Filesystem::Allocate(InodeNumber inode, int mode, uint64_t offset, uint64_t length, SetIdBits set_id) {
  FileData* data = nullptr;
  NRAM_RETURN_IF_ERRNO(Data(inode, &data));
  const bool keep_size = (mode & FALLOC_FL_KEEP_SIZE) != 0;
  const int kind = mode & ~FALLOC_FL_KEEP_SIZE;
  if (kind == FALLOC_FL_PUNCH_HOLE && keep_size) {
    NRAM_RETURN_IF_ERRNO(data->PunchHole(offset, length));
  } else if (kind == FALLOC_FL_ZERO_RANGE) {
    NRAM_RETURN_IF_ERRNO(data->Allocate(offset, length, keep_size, FileData::Contents::kZeros));
  } else if (kind == 0) {
    NRAM_RETURN_IF_ERRNO(data->Allocate(offset, length, keep_size));
  } else {
    return Err(EOPNOTSUPP);
  }
  NoteChange(inode, set_id);
  return Errno::kOk;
}

Errno Filesystem::Seek(InodeNumber inode, uint64_t offset, int whence, uint64_t* found) {
  FileData* data = nullptr;
  NRAM_RETURN_IF_ERRNO(Data(inode, &data));
  if (whence == SEEK_DATA) return data->SeekData(offset, found);
  if (whence == SEEK_HOLE) return data->SeekHole(offset, found);
  return Err(EINVAL);
}

Errno Filesystem::Copy(const CopyRange& range, PaddedBytes buffer, SetIdBits set_id, absl::FunctionRef<bool()> stop,
                       uint64_t* copied) {
  *copied = 0;
  FileCopy copy{.from_offset = range.from_offset, .to_offset = range.to_offset, .length = range.length};
  NRAM_RETURN_IF_ERRNO(Data(range.from, &copy.from));
  NRAM_RETURN_IF_ERRNO(Data(range.to, &copy.to));
  const uint64_t apart = std::max(range.from_offset, range.to_offset) - std::min(range.from_offset, range.to_offset);
  if (copy.from == copy.to && apart < range.length) return Err(EINVAL);
  const Errno error = CopyChecked(copy, buffer, stop, copied);
  if (*copied > 0) NoteChange(range.to, set_id);
  return *copied > 0 ? Errno::kOk : error;
}

Errno Filesystem::CopyChecked(FileCopy copy, PaddedBytes buffer, absl::FunctionRef<bool()> stop, uint64_t* copied) {
  // Perhaps all of the file. Its size may have been another when the caller, or the kernel, looked.
  const bool from_start = copy.from != copy.to && copy.from_offset == 0;
  const uint64_t size = copy.from->size();
  const uint64_t bytes = std::min(copy.length, size);
  if (from_start && bytes <= buffer.size) return CopyAtOnce(copy, buffer, copied);
  NRAM_RETURN_IF_ERRNO(ShareBytes(copy, copied));
  if (*copied > 0) return Errno::kOk;
  // A caller that copies all of a file in one call gets a state of one moment. This copy is not one, so the last page
  // takes another call.
  if (from_start) copy.length = RoundDown(bytes - 1, kPageBytes);
  // Within one file, the source would grow by the bytes written behind it.
  copy.length = std::min({copy.length, kCopyBytesMax, size - std::min(size, copy.from_offset)});
  return CopyBytes(copy, buffer, stop, copied);
}

void Filesystem::StatFs(struct statvfs* stat) const {
  const StoreCapacity capacity = store_.Capacity();
  const NamespaceUsage usage = names_->Usage();
  *stat = {};
  stat->f_bsize = stat->f_frsize = kPageBytes;
  stat->f_blocks = capacity.total_bytes / kPageBytes;
  stat->f_bfree = stat->f_bavail = capacity.free_bytes / kPageBytes;
  stat->f_files = usage.inodes_max;
  stat->f_ffree = stat->f_favail = usage.inodes_max - usage.inodes;
  stat->f_namemax = kNameBytesMax;
}

}  // namespace nram
