// libfuse's low-level callbacks: each decodes, calls, and replies once.

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "fsd/fuse_adapter.h"
#include "fsd/set_id_bits.h"

namespace nram {
namespace {

FuseAdapter* AdapterOf(fuse_req_t req) { return static_cast<FuseAdapter*>(fuse_req_userdata(req)); }
Filesystem* FilesystemOf(fuse_req_t req) { return AdapterOf(req)->filesystem(); }
Namespace* NamesOf(fuse_req_t req) { return FilesystemOf(req)->names(); }

Caller CallerOf(fuse_req_t req) {
  const fuse_ctx* const context = fuse_req_ctx(req);
  return {context->uid, context->gid, context->umask};
}

void ReplyError(fuse_req_t req, Errno error) { fuse_reply_err(req, Raw(error)); }

// The attributes as the kernel gets them. It does not tell of data that it has not written back yet, and programs such
// as tar take a file without blocks for a hole, so a file has one at least.
struct stat StatOf(fuse_req_t req, const InodeAttr& attr) {
  struct stat told = attr;
  if (S_ISREG(told.st_mode) && told.st_blocks == 0 && AdapterOf(req)->options().writeback) told.st_blocks = 1;
  return told;
}

fuse_entry_param EntryOf(fuse_req_t req, const InodeAttr& attr) {
  fuse_entry_param entry{};
  entry.ino = attr.st_ino;
  entry.generation = attr.generation;
  entry.attr = StatOf(req, attr);
  entry.attr_timeout = AdapterOf(req)->AttrSeconds(attr);
  entry.entry_timeout = FuseAdapter::kForeverSeconds;
  return entry;
}

void ReplyEntry(fuse_req_t req, Errno error, const InodeAttr& attr) {
  if (!Ok(error)) return ReplyError(req, error);
  Namespace* const names = NamesOf(req);  // the reply ends the request
  const fuse_entry_param entry = EntryOf(req, attr);
  // If the kernel does not take the reply, it does not know of the lookup.
  if (fuse_reply_entry(req, &entry) == -ENOENT) names->Forget(attr.st_ino, 1);
}

void ReplyAttr(fuse_req_t req, Errno error, const InodeAttr& attr) {
  if (!Ok(error)) return ReplyError(req, error);
  const struct stat told = StatOf(req, attr);
  fuse_reply_attr(req, &told, AdapterOf(req)->AttrSeconds(attr));
}

void Init(void* user_data, fuse_conn_info* conn) {
  const auto& options = static_cast<FuseAdapter*>(user_data)->options();
  const auto want = [&](unsigned capability) { conn->want |= conn->capable & capability; };
  // Splice is not wanted: one more pipe, no fewer copies. Nor are locks: the kernel keeps those of one mount itself.
  conn->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_POSIX_LOCKS |
                  FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_HANDLE_KILLPRIV);
  want(FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
       FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_DONT_MASK | FUSE_CAP_POSIX_ACL | FUSE_CAP_CACHE_SYMLINKS |
       FUSE_CAP_NO_OPEN_SUPPORT | FUSE_CAP_NO_OPENDIR_SUPPORT | FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_EXPORT_SUPPORT);
  if (options.writeback) want(FUSE_CAP_WRITEBACK_CACHE);
  conn->max_write = kFuseIoBytesMax;
  conn->max_readahead = 8 * kFuseIoBytesMax;
  conn->max_background = options.background_max;
  conn->congestion_threshold = options.background_max;
  conn->time_gran = 1;
}

void Lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  InodeAttr attr;
  const Errno error = NamesOf(req)->Lookup(parent, name, &attr);
  if (error == Err(ENOENT)) {
    // The kernel may remember that there is no such name.
    fuse_entry_param none{};
    none.entry_timeout = FuseAdapter::kForeverSeconds;
    fuse_reply_entry(req, &none);
    return;
  }
  ReplyEntry(req, error, attr);
}

void Forget(fuse_req_t req, fuse_ino_t inode, uint64_t count) {
  NamesOf(req)->Forget(inode, count);
  fuse_reply_none(req);
}

void ForgetMulti(fuse_req_t req, size_t count, fuse_forget_data* forgets) {
  for (size_t i = 0; i < count; ++i) NamesOf(req)->Forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(req);
}

void GetAttr(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) {
  InodeAttr attr;
  const Errno error = NamesOf(req)->GetAttr(inode, &attr);
  ReplyAttr(req, error, attr);
}

void SetAttr(fuse_req_t req, fuse_ino_t inode, struct stat* in, int to_set, fuse_file_info*) {
  AttrChange change;
  std::optional<uint64_t> size;
  timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);  // the namespace's clock
  if ((to_set & FUSE_SET_ATTR_MODE) != 0) change.mode = in->st_mode;
  if ((to_set & FUSE_SET_ATTR_UID) != 0) change.uid = in->st_uid;
  if ((to_set & FUSE_SET_ATTR_GID) != 0) change.gid = in->st_gid;
  if ((to_set & FUSE_SET_ATTR_SIZE) != 0) size = static_cast<uint64_t>(in->st_size);
  if ((to_set & FUSE_SET_ATTR_ATIME) != 0) change.atime = in->st_atim;
  if ((to_set & FUSE_SET_ATTR_MTIME) != 0) change.mtime = in->st_mtim;
  if ((to_set & FUSE_SET_ATTR_CTIME) != 0) change.ctime = in->st_ctim;
  if ((to_set & FUSE_SET_ATTR_ATIME_NOW) != 0) change.atime = now;
  if ((to_set & FUSE_SET_ATTR_MTIME_NOW) != 0) change.mtime = now;
  // The kernel says when set-id bits must go (FATTR_KILL_SUIDGID): with a change of owner, and with a change of size by
  // a user without the right to keep them.
  const uint32_t valid = FuseWorker::Current()->body<fuse_setattr_in>().valid;
  if ((valid & FATTR_KILL_SUIDGID) != 0) {
    change.set_id = DropSetIdBits(req, NamesOf(req), inode);
  } else if ((valid & ~(FATTR_CTIME | FATTR_FH | FATTR_LOCKOWNER)) == 0) {
    const bool is_chown = (valid & FATTR_CTIME) != 0;
    const Errno error = DropSetIdBitsByOwner(req, NamesOf(req), inode, is_chown, &change.set_id);
    if (!Ok(error)) return ReplyError(req, error);
  }
  if (size.has_value()) FuseWorker::Current()->BeforeWaiting();
  InodeAttr attr;
  const Errno error = FilesystemOf(req)->SetAttr(inode, change, size, &attr);
  if (!Ok(error) && size.has_value()) AdapterOf(req)->cache()->NoteFailedChange(inode);
  ReplyAttr(req, error, attr);
}

void ReadLink(fuse_req_t req, fuse_ino_t inode) {
  std::string target;
  const Errno error = NamesOf(req)->ReadLink(inode, &target);
  if (!Ok(error)) return ReplyError(req, error);
  fuse_reply_readlink(req, target.c_str());
}

void MakeNode(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t rdev) {
  InodeAttr attr;
  const Errno error = NamesOf(req)->Create(parent, name, mode, rdev, CallerOf(req), &attr);
  ReplyEntry(req, error, attr);
}

void MakeDirectory(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
  MakeNode(req, parent, name, S_IFDIR | (mode & 07777), 0);
}

void Unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
  ReplyError(req, NamesOf(req)->Unlink(parent, name));
}

void RemoveDirectory(fuse_req_t req, fuse_ino_t parent, const char* name) {
  ReplyError(req, NamesOf(req)->RemoveDirectory(parent, name));
}

void Symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  InodeAttr attr;
  const Errno error = NamesOf(req)->Symlink(parent, name, target, CallerOf(req), &attr);
  ReplyEntry(req, error, attr);
}

void Rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
            unsigned flags) {
  ReplyError(req, NamesOf(req)->Rename(parent, name, new_parent, new_name, flags));
}

void Link(fuse_req_t req, fuse_ino_t inode, fuse_ino_t new_parent, const char* new_name) {
  InodeAttr attr;
  const Errno error = NamesOf(req)->Link(inode, new_parent, new_name, &attr);
  ReplyEntry(req, error, attr);
}

void Open(fuse_req_t req, fuse_ino_t, fuse_file_info*) {
  // "Not implemented" tells the kernel that files need neither opening nor closing, and that its cache of a file stays
  // good: two requests fewer for each use of a file. It truncates with SetAttr then.
  fuse_reply_err(req, ENOSYS);
}

void Create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  InodeAttr attr;
  const Errno error = NamesOf(req)->Create(parent, name, S_IFREG | (mode & 07777), 0, CallerOf(req), &attr);
  if (!Ok(error)) return ReplyError(req, error);
  info->keep_cache = 1;
  const fuse_entry_param entry = EntryOf(req, attr);
  Namespace* const names = NamesOf(req);
  if (fuse_reply_create(req, &entry, info) == -ENOENT) names->Forget(attr.st_ino, 1);
}

void Read(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  FuseWorker* const worker = FuseWorker::Current();
  const auto& in = worker->body<fuse_read_in>();
  // Only reads past the page cache have a lock owner.
  const ReadNotes notes{.for_page_cache = (in.read_flags & FUSE_READ_LOCKOWNER) == 0,
                        .touch = (in.flags & O_NOATIME) == 0};
  if (AdapterOf(req)->small()->StartRead(req, inode, static_cast<uint64_t>(offset), size, notes)) return;
  worker->BeforeWaiting();
  absl::Span<const std::byte> got;
  const Errno error = FilesystemOf(req)->Read(inode, static_cast<uint64_t>(offset), std::min(size, kFuseIoBytesMax),
                                              notes, worker->reply(), &got);
  if (!Ok(error)) return ReplyError(req, error);
  fuse_reply_buf(req, reinterpret_cast<const char*>(got.data()), got.size());
}

void Write(fuse_req_t req, fuse_ino_t inode, const char* data, size_t size, off_t offset, fuse_file_info*) {
  // `data` lies in the worker's request buffer, where it has pads.
  const PaddedBytes bytes{reinterpret_cast<std::byte*>(const_cast<char*>(data)), size};
  const uint32_t flags = FuseWorker::Current()->body<fuse_write_in>().write_flags;
  // Without write-back these are of shared mappings, whose times the kernel leaves to the daemon.
  const bool from_cache = (flags & FUSE_WRITE_CACHE) != 0;
  const bool direct = (flags & FUSE_WRITE_LOCKOWNER) != 0;  // only writes past the page cache have an owner
  const WriteNotes notes{.for_page_cache = !direct,
                         .touch = !from_cache || !AdapterOf(req)->options().writeback,
                         .origin = from_cache ? WriteOrigin::kPageCache : WriteOrigin::kWriter};
  const bool kill = (flags & FUSE_WRITE_KILL_SUIDGID) != 0;
  const SetIdBits set_id = kill ? DropSetIdBits(req, NamesOf(req), inode) : SetIdBits::kKeep;
  const auto at = static_cast<uint64_t>(offset);
  if (set_id == SetIdBits::kKeep &&
      AdapterOf(req)->small()->StartWrite(req, inode, at, {bytes.data, size}, notes, direct)) {
    return;
  }
  FuseWorker::Current()->BeforeWaiting();
  const Errno error = FilesystemOf(req)->Write(inode, at, bytes, notes, set_id);
  if (from_cache) AdapterOf(req)->cache()->NoteWriteBack(inode, size, error);
  if (!Ok(error)) return ReplyError(req, error);
  if (direct) return AdapterOf(req)->cache()->ReplyDirectWrite(req, inode, at, size);
  fuse_reply_write(req, size);
}

void OpenDirectory(fuse_req_t req, fuse_ino_t, fuse_file_info*) {
  // "Not implemented" tells the kernel that directories need no opening, and that it may cache their listings.
  fuse_reply_err(req, ENOSYS);
}

void List(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, bool plus) {
  char* const buffer = reinterpret_cast<char*>(FuseWorker::Current()->reply().data);
  size = std::min(size, kFuseIoBytesMax);
  size_t used = 0;
  const auto emit = [&](absl::string_view name, const InodeAttr& attr, uint64_t cookie) {
    const std::string terminated(name);
    size_t entry_bytes = 0;
    if (plus) {
      fuse_entry_param entry = EntryOf(req, attr);
      // These were not looked up: the kernel knows both.
      if (name == "." || name == "..") entry.ino = 0;
      entry_bytes = fuse_add_direntry_plus(req, buffer + used, size - used, terminated.c_str(), &entry,
                                           static_cast<off_t>(cookie));
    } else {
      entry_bytes =
          fuse_add_direntry(req, buffer + used, size - used, terminated.c_str(), &attr, static_cast<off_t>(cookie));
    }
    if (entry_bytes > size - used) return false;
    used += entry_bytes;
    return true;
  };
  const Errno error = NamesOf(req)->List(inode, static_cast<uint64_t>(offset), plus, emit);
  if (!Ok(error)) return ReplyError(req, error);
  fuse_reply_buf(req, buffer, used);
}

void ReadDirectory(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  List(req, inode, size, offset, false);
}

void ReadDirectoryPlus(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  List(req, inode, size, offset, true);
}

void StatFs(fuse_req_t req, fuse_ino_t) {
  struct statvfs stat;
  FilesystemOf(req)->StatFs(&stat);
  fuse_reply_statfs(req, &stat);
}

void SetXattr(fuse_req_t req, fuse_ino_t inode, const char* name, const char* value, size_t size, int flags) {
  const bool drop_set_group_id = DropsSetGroupId(req, NamesOf(req), inode, name);
  ReplyError(req, NamesOf(req)->SetXattr(inode, name, {value, size}, flags, drop_set_group_id));
}

// Replies with `value`; if `room` is 0, with its size alone.
void ReplyXattr(fuse_req_t req, Errno error, const std::string& value, size_t room) {
  if (!Ok(error)) return ReplyError(req, error);
  if (room == 0) {
    fuse_reply_xattr(req, value.size());
  } else if (value.size() > room) {
    fuse_reply_err(req, ERANGE);
  } else {
    fuse_reply_buf(req, value.data(), value.size());
  }
}

void GetXattr(fuse_req_t req, fuse_ino_t inode, const char* name, size_t size) {
  std::string value;
  const Errno error = NamesOf(req)->GetXattr(inode, name, &value);
  ReplyXattr(req, error, value, size);
}

// Each name ends in a null byte.
std::string WithoutTrusted(absl::string_view names) {
  std::string kept;
  for (; !names.empty(); names.remove_prefix(names.find('\0') + 1)) {
    const absl::string_view name = names.substr(0, names.find('\0') + 1);
    if (!absl::StartsWith(name, "trusted.")) kept.append(name.data(), name.size());
  }
  return kept;
}

void ListXattr(fuse_req_t req, fuse_ino_t inode, size_t size) {
  std::string names;
  const Errno error = NamesOf(req)->ListXattr(inode, &names);
  // Trusted attributes are hidden from all users but the administrator.
  if (fuse_req_ctx(req)->uid != 0) names = WithoutTrusted(names);
  ReplyXattr(req, error, names, size);
}

void RemoveXattr(fuse_req_t req, fuse_ino_t inode, const char* name) {
  ReplyError(req, NamesOf(req)->RemoveXattr(inode, name, DropsSetGroupId(req, NamesOf(req), inode, name)));
}

void Allocate(fuse_req_t req, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info*) {
  FuseWorker::Current()->BeforeWaiting();
  const SetIdBits set_id = DropSetIdBitsUnlessRoot(req, NamesOf(req), inode);
  const Errno error =
      FilesystemOf(req)->Allocate(inode, mode, static_cast<uint64_t>(offset), static_cast<uint64_t>(length), set_id);
  const bool makes_zeros = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  if (!Ok(error) && makes_zeros) AdapterOf(req)->cache()->NoteFailedChange(inode);
  ReplyError(req, error);
}

void SeekInFile(fuse_req_t req, fuse_ino_t inode, off_t offset, int whence, fuse_file_info*) {
  // "Not implemented" tells the kernel that all of each file is data, from now on.
  if (!AdapterOf(req)->options().finds_holes) return ReplyError(req, Err(ENOSYS));
  AdapterOf(req)->cache()->Seek(req, inode, static_cast<uint64_t>(offset), whence);
}

void CopyFileRange(fuse_req_t req, fuse_ino_t from, off_t from_offset, fuse_file_info*, fuse_ino_t to, off_t to_offset,
                   fuse_file_info*, size_t length, int flags) {
  if (flags != 0) return ReplyError(req, Err(EINVAL));
  constexpr size_t kBytesMax = (uint64_t{1} << 32) - kPageBytes;  // that a reply can tell of
  FuseWorker::Current()->BeforeWaiting();
  const Filesystem::CopyRange range{.from = from,
                                    .from_offset = static_cast<uint64_t>(from_offset),
                                    .to = to,
                                    .to_offset = static_cast<uint64_t>(to_offset),
                                    .length = std::min(length, kBytesMax)};
  const SetIdBits set_id = DropSetIdBitsUnlessRoot(req, NamesOf(req), to);
  uint64_t copied = 0;
  // The program waits until there is a reply, whatever signals it gets.
  const Errno error = FilesystemOf(req)->Copy(
      range, FuseWorker::Current()->reply(), set_id, [req] { return fuse_req_interrupted(req) != 0; }, &copied);
  if (!Ok(error)) AdapterOf(req)->cache()->NoteFailedChange(to);
  if (!Ok(error)) return ReplyError(req, error);
  fuse_reply_write(req, copied);
}

// The one catch at the edge of C: no memory.
template <auto kOperation, typename... Args>
void Guarded(fuse_req_t req, Args... args) {
  try {
    kOperation(req, args...);
  } catch (const std::bad_alloc&) {
    fuse_reply_err(req, ENOMEM);
  }
}

template <auto kOperation, typename... Args>
constexpr auto Guard(void (*)(fuse_req_t, Args...)) {
  return &Guarded<kOperation, Args...>;
}

#define NRAM_GUARD(operation) Guard<&(operation)>(&(operation))

}  // namespace

const fuse_lowlevel_ops& FuseAdapter::Operations() {
  static const fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = &Init;
    ops.lookup = NRAM_GUARD(Lookup);
    ops.forget = NRAM_GUARD(Forget);
    ops.forget_multi = NRAM_GUARD(ForgetMulti);
    ops.getattr = NRAM_GUARD(GetAttr);
    ops.setattr = NRAM_GUARD(SetAttr);
    ops.readlink = NRAM_GUARD(ReadLink);
    ops.mknod = NRAM_GUARD(MakeNode);
    ops.mkdir = NRAM_GUARD(MakeDirectory);
    ops.unlink = NRAM_GUARD(Unlink);
    ops.rmdir = NRAM_GUARD(RemoveDirectory);
    ops.symlink = NRAM_GUARD(Symlink);
    ops.rename = NRAM_GUARD(Rename);
    ops.link = NRAM_GUARD(Link);
    ops.open = NRAM_GUARD(Open);
    ops.create = NRAM_GUARD(Create);
    ops.read = NRAM_GUARD(Read);
    ops.write = NRAM_GUARD(Write);
    ops.opendir = NRAM_GUARD(OpenDirectory);
    ops.readdir = NRAM_GUARD(ReadDirectory);
    ops.readdirplus = NRAM_GUARD(ReadDirectoryPlus);
    ops.statfs = NRAM_GUARD(StatFs);
    ops.setxattr = NRAM_GUARD(SetXattr);
    ops.getxattr = NRAM_GUARD(GetXattr);
    ops.listxattr = NRAM_GUARD(ListXattr);
    ops.removexattr = NRAM_GUARD(RemoveXattr);
    ops.fallocate = NRAM_GUARD(Allocate);
    ops.lseek = NRAM_GUARD(SeekInFile);
    ops.copy_file_range = NRAM_GUARD(CopyFileRange);
    // Neither flush nor fsync: all that the kernel has written back is stored, and it need not ask.
    return ops;
  }();
  return operations;
}

}  // namespace nram
