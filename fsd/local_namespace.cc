#include "fsd/local_namespace.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <stdio.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

namespace nram {
namespace {

constexpr uint64_t kDirectoryEntryBytes = 20;  // what a directory's size counts an entry as, as tmpfs does
constexpr int64_t kRelatimeSeconds = 24 * 60 * 60;

timespec SystemTime() {
  timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now;
}

bool IsLater(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

bool IsDotName(absl::string_view name) { return name == "." || name == ".."; }

}  // namespace

std::unique_ptr<Namespace> NewLocalNamespace(LocalNamespaceOptions options) {
  return std::make_unique<LocalNamespace>(std::move(options));
}

LocalNamespace::LocalNamespace(LocalNamespaceOptions options)
    : options_([&] {
        if (!options.now) options.now = SystemTime;
        if (!options.bury) options.bury = [](std::unique_ptr<FileBody>) {};
        options.inodes_max = std::clamp<uint64_t>(options.inodes_max, 1, UINT32_MAX - 1);
        return std::move(options);
      }()),
      first_generation_(std::random_device{}()) {
  WriterLock lock(&mu_);
  InodeNumber root = 0;
  CHECK(Ok(NewInode(0, S_IFDIR | (options_.root_mode & 07777), {options_.root_uid, options_.root_gid, 0}, &root)));
  CHECK_EQ(root, kRootInode);
  Inode* const inode = Get(root);
  inode->directory()->parent = root;
  inode->link_count = 2;
  inode->lookups = 1;  // never forgotten
}

LocalNamespace::~LocalNamespace() {
  for (const auto& block : blocks_) {
    for (Inode& inode : *block) {
      auto* const body = std::get_if<std::unique_ptr<FileBody>>(&inode.content);
      if (body != nullptr) options_.bury(std::move(*body));
    }
  }
}

LocalNamespace::Inode* LocalNamespace::Get(InodeNumber number) const {
  if (number == 0 || number >= slots_used_) return nullptr;
  Inode* const inode = &(*blocks_[number / kInodesPerBlock])[number % kInodesPerBlock];
  return inode->mode == 0 ? nullptr : inode;
}

Errno LocalNamespace::GetDirectory(InodeNumber number, Inode** inode) const {
  *inode = Get(number);
  if (*inode == nullptr) return Err(ESTALE);
  return S_ISDIR((*inode)->mode) ? Errno::kOk : Err(ENOTDIR);
}

Errno LocalNamespace::FindEntry(InodeNumber parent, absl::string_view name, Inode** directory,
                                InodeNumber* number) const {
  NRAM_RETURN_IF_ERRNO(GetDirectory(parent, directory));
  if (name.size() > kNameBytesMax) return Err(ENAMETOOLONG);
  *number = (*directory)->directory()->entries.Find(name);
  return *number == 0 ? Err(ENOENT) : Errno::kOk;
}

Errno LocalNamespace::FindRoom(InodeNumber parent, absl::string_view name, Inode** directory) const {
  NRAM_RETURN_IF_ERRNO(GetDirectory(parent, directory));
  if (name.size() > kNameBytesMax) return Err(ENAMETOOLONG);
  if (name.empty()) return Err(ENOENT);
  if (IsDotName(name) || (*directory)->directory()->entries.Find(name) != 0) return Err(EEXIST);
  return (*directory)->link_count == 0 ? Err(ENOENT) : Errno::kOk;
}

void LocalNamespace::SetTime(Inode* inode, Time which, const timespec& time) {
  inode->seconds[which] = time.tv_sec;
  inode->nanoseconds[which] = static_cast<uint32_t>(time.tv_nsec);
}

void LocalNamespace::Touch(Inode* inode, std::initializer_list<Time> times) {
  const timespec now = options_.now();
  for (const Time which : times) SetTime(inode, which, now);
}

void LocalNamespace::DropSetId(Inode* inode, SetIdBits set_id) {
  if (S_ISDIR(inode->mode) || set_id == SetIdBits::kKeep) return;
  inode->mode &= ~S_ISUID;
  if ((inode->mode & S_IXGRP) != 0 || set_id == SetIdBits::kDropByStranger) inode->mode &= ~S_ISGID;
}

void LocalNamespace::Fill(InodeNumber number, const Inode& inode, InodeAttr* attr) const {
  *attr = {};
  attr->st_ino = number;
  attr->generation = number == kRootInode ? 0 : first_generation_ + inode.generation;
  attr->st_mode = inode.mode;
  attr->st_nlink = inode.link_count;
  attr->st_uid = inode.uid;
  attr->st_gid = inode.gid;
  attr->st_rdev = inode.rdev;
  attr->st_blksize = 4096;
  attr->st_atim = GetTime(inode, kAccess);
  attr->st_mtim = GetTime(inode, kModify);
  attr->st_ctim = GetTime(inode, kChange);
  if (const DirectoryNode* directory = inode.directory()) {
    attr->st_size = static_cast<off_t>(directory->entries.size() * kDirectoryEntryBytes);
  } else if (const auto* target = std::get_if<std::unique_ptr<std::string>>(&inode.content)) {
    attr->st_size = static_cast<off_t>((*target)->size());
  } else if (const auto* body = std::get_if<std::unique_ptr<FileBody>>(&inode.content)) {
    attr->st_size = static_cast<off_t>((*body)->size());
    attr->st_blocks = static_cast<blkcnt_t>((*body)->blocks());
  }
}

Errno LocalNamespace::NewInode(InodeNumber parent, mode_t mode, const Caller& caller, InodeNumber* number) {
  if (inodes_ >= options_.inodes_max) return Err(ENOSPC);
  gid_t gid = caller.gid;
  std::unique_ptr<Xattrs> xattrs;
  if (parent != 0) {
    const Inode& above = *Get(parent);
    if ((above.mode & S_ISGID) != 0) {
      gid = above.gid;
      if (S_ISDIR(mode)) mode |= S_ISGID;
    }
    const std::string* const inherited = S_ISLNK(mode) ? nullptr : FindXattr(above, kDefaultAclName);
    if (inherited == nullptr) {
      mode &= ~(caller.umask & 0777);
    } else {
      Acl acl = *Acl::Parse(*inherited);
      mode = acl.Inherit(mode);
      xattrs = std::make_unique<Xattrs>();
      if (!acl.minimal()) xattrs->Set(kAccessAclName, acl.Encode());
      if (S_ISDIR(mode)) xattrs->Set(kDefaultAclName, *inherited);
      if (xattrs->values.empty()) xattrs = nullptr;
    }
  }
  NRAM_RETURN_IF_ERRNO(TakeText(xattrs == nullptr ? 0 : xattrs->text_bytes));
  if (free_.empty()) {
    if (slots_used_ / kInodesPerBlock >= blocks_.size()) blocks_.push_back(std::make_unique<Block>());
    *number = slots_used_++;
  } else {
    *number = free_.back();
    free_.pop_back();
  }
  ++inodes_;
  Inode& inode = (*blocks_[*number / kInodesPerBlock])[*number % kInodesPerBlock];
  inode.mode = mode;
  inode.uid = caller.uid;
  inode.gid = gid;
  inode.link_count = 0;
  inode.rdev = 0;
  inode.lookups = 0;
  ++inode.generation;
  inode.xattrs = std::move(xattrs);
  inode.content = std::monostate();
  if (S_ISDIR(mode)) inode.content = std::make_unique<DirectoryNode>(parent);
  Touch(&inode, {kAccess, kModify, kChange});
  return Errno::kOk;
}

void LocalNamespace::Enter(Inode* directory, absl::string_view name, InodeNumber number, InodeAttr* attr) {
  directory->directory()->entries.Insert(name, number);
  Touch(directory, {kModify, kChange});
  Inode* const inode = Get(number);
  ++inode->link_count;
  AddLookup(inode);
  if (S_ISDIR(inode->mode)) {
    ++inode->link_count;  // its own "."
    ++directory->link_count;
  }
  Fill(number, *inode, attr);
}

void LocalNamespace::ReleaseIfUnused(InodeNumber number, Inode* inode) {
  if (inode->link_count > 0 || inode->lookups > 0) return;
  if (auto* body = std::get_if<std::unique_ptr<FileBody>>(&inode->content)) options_.bury(std::move(*body));
  text_bytes_ -= TextBytes(*inode);
  inode->content = std::monostate();
  inode->xattrs = nullptr;
  inode->mode = 0;
  free_.push_back(static_cast<uint32_t>(number));
  --inodes_;
}

void LocalNamespace::DropName(InodeNumber number, Inode* inode) {
  Touch(inode, {kChange});
  if (!S_ISDIR(inode->mode) && inode->link_count > 1) --inodes_;
  inode->link_count -= S_ISDIR(inode->mode) ? 2 : 1;
  ReleaseIfUnused(number, inode);
}

Errno LocalNamespace::Lookup(InodeNumber parent, absl::string_view name, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  InodeNumber number = 0;
  if (IsDotName(name)) {
    // The kernel asks so for what it does not know any more; nobody has it open.
    if (Get(parent) == nullptr || Get(parent)->link_count == 0) return Err(ESTALE);
    number = parent;
    if (name == "..") {
      NRAM_RETURN_IF_ERRNO(GetDirectory(parent, &directory));
      number = directory->directory()->parent;
    }
  } else {
    NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &directory, &number));
  }
  Inode* const inode = Get(number);
  AddLookup(inode);
  Fill(number, *inode, attr);
  return Errno::kOk;
}

void LocalNamespace::Forget(InodeNumber number, uint64_t count) {
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr || number == kRootInode) return;
  if (inode->lookups == UINT32_MAX) return;
  inode->lookups -= static_cast<uint32_t>(std::min<uint64_t>(count, inode->lookups));
  ReleaseIfUnused(number, inode);
}

Errno LocalNamespace::GetAttr(InodeNumber number, InodeAttr* attr) {
  ReaderLock lock(&mu_);
  const Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  Fill(number, *inode, attr);
  return Errno::kOk;
}

Errno LocalNamespace::SetAttr(InodeNumber number, const AttrChange& change, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (change.mode) {
    inode->mode = (inode->mode & S_IFMT) | (*change.mode & 07777);
    if (FindXattr(*inode, kAccessAclName) != nullptr) {
      Acl acl = *Acl::Parse(*FindXattr(*inode, kAccessAclName));
      acl.SetPermissionBits(inode->mode);
      inode->xattrs->Set(kAccessAclName, acl.Encode());
    }
  }
  if (change.uid) inode->uid = *change.uid;
  if (change.gid) inode->gid = *change.gid;
  DropSetId(inode, change.set_id);
  if (change.atime) SetTime(inode, kAccess, *change.atime);
  if (change.mtime) SetTime(inode, kModify, *change.mtime);
  SetTime(inode, kChange, change.ctime ? *change.ctime : options_.now());
  Fill(number, *inode, attr);
  return Errno::kOk;
}

// As the kernel's relatime: later than all else, and of today.
bool LocalNamespace::AccessIsRecent(const Inode& inode) const {
  const timespec access = GetTime(inode, kAccess);
  return IsLater(access, GetTime(inode, kModify)) && IsLater(access, GetTime(inode, kChange)) &&
         options_.now().tv_sec - access.tv_sec < kRelatimeSeconds;
}

void LocalNamespace::TouchAccess(InodeNumber number) {
  if (!options_.touch_files) return;
  {
    ReaderLock lock(&mu_);
    const Inode* const inode = Get(number);
    if (inode == nullptr) return;
    if (AccessIsRecent(*inode)) return;
  }
  WriterLock lock(&mu_);
  if (Inode* const inode = Get(number)) Touch(inode, {kAccess});
}

bool LocalNamespace::TouchData(InodeNumber number, SetIdBits set_id) {
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr) return false;
  const mode_t before = inode->mode;
  DropSetId(inode, set_id);
  Touch(inode, {kModify, kChange});
  return inode->mode != before;
}

Errno LocalNamespace::Create(InodeNumber parent, absl::string_view name, mode_t mode, dev_t rdev, const Caller& caller,
                             InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  NRAM_RETURN_IF_ERRNO(FindRoom(parent, name, &directory));
  if (S_ISLNK(mode)) return Err(EINVAL);
  if (S_ISDIR(mode) && directory->link_count >= kLinksMax) return Err(EMLINK);
  if ((mode & S_IFMT) == 0) mode |= S_IFREG;
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(NewInode(parent, mode, caller, &number));
  if (S_ISCHR(mode) || S_ISBLK(mode)) Get(number)->rdev = static_cast<uint32_t>(rdev);
  Enter(directory, name, number, attr);
  return Errno::kOk;
}

Errno LocalNamespace::CreateUnnamed(InodeNumber parent, mode_t mode, const Caller& caller, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  NRAM_RETURN_IF_ERRNO(GetDirectory(parent, &directory));
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(NewInode(parent, S_IFREG | (mode & 07777), caller, &number));
  Inode* const inode = Get(number);
  AddLookup(inode);
  Fill(number, *inode, attr);
  return Errno::kOk;
}

Errno LocalNamespace::Symlink(InodeNumber parent, absl::string_view name, absl::string_view target,
                              const Caller& caller, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  NRAM_RETURN_IF_ERRNO(FindRoom(parent, name, &directory));
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(TakeText(TextCost(target.size())));
  if (const Errno error = NewInode(parent, S_IFLNK | 0777, {caller.uid, caller.gid, 0}, &number); !Ok(error)) {
    text_bytes_ -= TextCost(target.size());
    return error;
  }
  Get(number)->content = std::make_unique<std::string>(target);
  Enter(directory, name, number, attr);
  return Errno::kOk;
}

Errno LocalNamespace::ReadLink(InodeNumber number, std::string* target) {
  ReaderLock lock(&mu_);
  const Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  const auto* stored = std::get_if<std::unique_ptr<std::string>>(&inode->content);
  if (stored == nullptr) return Err(EINVAL);
  *target = **stored;
  return Errno::kOk;
}

Errno LocalNamespace::Link(InodeNumber number, InodeNumber parent, absl::string_view name, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (S_ISDIR(inode->mode)) return Err(EPERM);
  if (inode->link_count >= kLinksMax) return Err(EMLINK);
  Inode* directory = nullptr;
  NRAM_RETURN_IF_ERRNO(FindRoom(parent, name, &directory));
  if (inode->link_count > 0) {
    if (inodes_ >= options_.inodes_max) return Err(ENOSPC);
    ++inodes_;
  }
  Touch(inode, {kChange});
  Enter(directory, name, number, attr);
  return Errno::kOk;
}

Errno LocalNamespace::Unlink(InodeNumber parent, absl::string_view name) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &directory, &number));
  Inode* const inode = Get(number);
  if (S_ISDIR(inode->mode)) return Err(EISDIR);
  directory->directory()->entries.Erase(name);
  Touch(directory, {kModify, kChange});
  DropName(number, inode);
  return Errno::kOk;
}

Errno LocalNamespace::RemoveDirectory(InodeNumber parent, absl::string_view name) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &directory, &number));
  Inode* const inode = Get(number);
  if (!S_ISDIR(inode->mode)) return Err(ENOTDIR);
  if (!inode->directory()->entries.empty()) return Err(ENOTEMPTY);
  directory->directory()->entries.Erase(name);
  --directory->link_count;
  Touch(directory, {kModify, kChange});
  DropName(number, inode);
  return Errno::kOk;
}

bool LocalNamespace::IsAncestor(InodeNumber above, InodeNumber below) const {
  while (below != above && below != kRootInode) below = Get(below)->directory()->parent;
  return below == above;
}

Errno LocalNamespace::CheckReplaceable(const Inode& moved, const Inode& present) const {
  if (S_ISDIR(moved.mode) && !S_ISDIR(present.mode)) return Err(ENOTDIR);
  if (!S_ISDIR(moved.mode) && S_ISDIR(present.mode)) return Err(EISDIR);
  if (S_ISDIR(present.mode) && !present.directory()->entries.empty()) return Err(ENOTEMPTY);
  return Errno::kOk;
}

Errno LocalNamespace::Rename(InodeNumber parent, absl::string_view name, InodeNumber new_parent,
                             absl::string_view new_name, unsigned flags) {
  if (flags != 0 && flags != RENAME_NOREPLACE && flags != RENAME_EXCHANGE) return Err(EINVAL);
  WriterLock lock(&mu_);
  Inode* from = nullptr;
  Inode* to = nullptr;
  InodeNumber moved_number = 0;
  InodeNumber present_number = 0;
  NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &from, &moved_number));
  if (const Errno error = FindEntry(new_parent, new_name, &to, &present_number); error != Err(ENOENT)) {
    NRAM_RETURN_IF_ERRNO(error);
  }
  Inode* const moved = Get(moved_number);
  Inode* const present = Get(present_number);
  const bool exchange = flags == RENAME_EXCHANGE;
  if (present != nullptr && flags == RENAME_NOREPLACE) return Err(EEXIST);
  if (present == nullptr && exchange) return Err(ENOENT);
  if (to->link_count == 0 || new_name.empty()) return Err(ENOENT);
  if (IsDotName(new_name)) return Err(EBUSY);
  if (moved == present) return Errno::kOk;
  const bool moves_directory = S_ISDIR(moved->mode);
  if (moves_directory && IsAncestor(moved_number, new_parent)) return Err(EINVAL);
  if (exchange && S_ISDIR(present->mode) && IsAncestor(present_number, parent)) return Err(EINVAL);
  if (present != nullptr && !exchange) NRAM_RETURN_IF_ERRNO(CheckReplaceable(*moved, *present));

  Touch(from, {kModify, kChange});
  Touch(to, {kModify, kChange});
  Touch(moved, {kChange});
  if (moves_directory) {
    --from->link_count;
    ++to->link_count;
    moved->directory()->parent = new_parent;
  }
  if (present == nullptr && from == to) {
    from->directory()->entries.Rename(name, new_name);
    return Errno::kOk;
  }
  if (present == nullptr) {
    to->directory()->entries.Insert(new_name, moved_number);
    from->directory()->entries.Erase(name);
    return Errno::kOk;
  }
  to->directory()->entries.Replace(new_name, moved_number);
  if (S_ISDIR(present->mode)) --to->link_count;
  if (exchange) {
    from->directory()->entries.Replace(name, present_number);
    Touch(present, {kChange});
    if (S_ISDIR(present->mode)) {
      ++from->link_count;
      present->directory()->parent = parent;
    }
  } else {
    from->directory()->entries.Erase(name);
    DropName(present_number, present);
  }
  return Errno::kOk;
}

Errno LocalNamespace::List(InodeNumber number, uint64_t cookie, bool look_up, Emit emit) {
  WriterLock lock(&mu_);
  Inode* inode = nullptr;
  NRAM_RETURN_IF_ERRNO(GetDirectory(number, &inode));
  const DirectoryNode& directory = *inode->directory();
  InodeAttr attr;
  if (cookie < 1) {
    Fill(number, *inode, &attr);
    if (!emit(".", attr, 1)) return Errno::kOk;
  }
  if (cookie < 2) {
    // Of a directory that was removed, the parent may be gone.
    const Inode* const above = inode->link_count == 0 ? inode : Get(directory.parent);
    Fill(above == inode ? number : directory.parent, *above, &attr);
    if (!emit("..", attr, 2)) return Errno::kOk;
  }
  Directory::Entry entry{cookie < Directory::kFirstCookie ? 0 : cookie, 0, {}};
  while (directory.entries.Next(entry.cookie, &entry)) {
    Inode* const found = Get(entry.inode);
    Fill(entry.inode, *found, &attr);
    if (!emit(entry.name, attr, entry.cookie)) break;
    if (look_up) AddLookup(found);
  }
  if (options_.touch_directories && !AccessIsRecent(*inode)) Touch(inode, {kAccess});
  return Errno::kOk;
}

Errno LocalNamespace::Body(InodeNumber number, FileBody** body) {
  {
    ReaderLock lock(&mu_);
    const Inode* const inode = Get(number);
    if (inode == nullptr) return Err(ESTALE);
    if (const auto* present = std::get_if<std::unique_ptr<FileBody>>(&inode->content)) {
      *body = present->get();
      return Errno::kOk;
    }
    if (S_ISDIR(inode->mode)) return Err(EISDIR);
    if (!S_ISREG(inode->mode)) return Err(EINVAL);
  }
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (!std::holds_alternative<std::unique_ptr<FileBody>>(inode->content)) inode->content = options_.make_body();
  *body = std::get<std::unique_ptr<FileBody>>(inode->content).get();
  return Errno::kOk;
}

NamespaceUsage LocalNamespace::Usage() const {
  ReaderLock lock(&mu_);
  return {inodes_, options_.inodes_max};
}

}  // namespace nram
