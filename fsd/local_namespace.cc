#include "fsd/local_namespace.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <stdio.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

namespace nram {
namespace {

constexpr uint64_t kTextBytesPerInode = 1024;  // of all texts, on average
// The memory that an inode takes with its name and a little data, and a name alone: estimates for the bound.
constexpr uint64_t kInodeMemory = 700;
constexpr uint64_t kNameMemory = 128;
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
        if (!options.may_grow) options.may_grow = [](uint64_t) { return true; };
        if (!options.bury) options.bury = [](std::unique_ptr<FileBody>) {};
        options.inodes_max = std::clamp<uint64_t>(options.inodes_max, 1, UINT32_MAX - 1);
        return std::move(options);
      }()),
      first_generation_(std::random_device{}()) {
  WriterLock lock(&mu_);
  InodeNumber root = 0;
  CHECK(Ok(NewInode(0, S_IFDIR | (options_.root_mode & 07777), {options_.root_uid, options_.root_gid, 0}, &root)));
  CHECK_EQ(root, kRootInode);
  Inode* const inode = table_.Get(root);
  inode->directory()->parent = root;
  inode->link_count = 2;
  inode->lookups = 1;  // never forgotten
}

LocalNamespace::~LocalNamespace() {
  table_.ForEach([this](Inode* inode) { BuryBody(inode); });
}

Errno LocalNamespace::GetDirectory(InodeNumber number, Inode** inode) const {
  *inode = table_.Get(number);
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

void LocalNamespace::Touch(Inode* inode, std::initializer_list<Inode::Time> times) {
  const timespec now = options_.now();
  for (const Inode::Time which : times) inode->SetTime(which, now);
}

void LocalNamespace::BuryBody(Inode* inode) {
  if (auto* body = std::get_if<std::unique_ptr<FileBody>>(&inode->content)) options_.bury(std::move(*body));
}

Errno LocalNamespace::TakeText(size_t bytes) {
  if (text_bytes_ + bytes > options_.inodes_max * kTextBytesPerInode) return Err(ENOSPC);
  if (bytes > 0 && !options_.may_grow(bytes)) return Err(ENOSPC);
  text_bytes_ += bytes;
  return Errno::kOk;
}

Errno LocalNamespace::NewInode(InodeNumber parent, mode_t mode, const Caller& caller, InodeNumber* number) {
  if (inodes_ >= options_.inodes_max || (parent != 0 && !options_.may_grow(kInodeMemory))) return Err(ENOSPC);
  gid_t gid = caller.gid;
  std::unique_ptr<Xattrs> xattrs;
  if (parent != 0) {
    const Inode& above = *table_.Get(parent);
    if ((above.mode & S_ISGID) != 0) {
      gid = above.gid;
      if (S_ISDIR(mode)) mode |= S_ISGID;
    }
    const std::string* const inherited = S_ISLNK(mode) ? nullptr : above.FindXattr(kDefaultAclName);
    if (inherited == nullptr) {
      mode &= ~(caller.umask & 0777);
    } else {
      Acl acl = *Acl::Parse(*inherited);
      mode = acl.Inherit(mode);
      xattrs = std::make_unique<Xattrs>();
      if (!acl.minimal()) xattrs->Set(kAccessAclName, acl.Encode());
      if (S_ISDIR(mode)) xattrs->Set(kDefaultAclName, *inherited);
      if (xattrs->empty()) xattrs = nullptr;
    }
  }
  NRAM_RETURN_IF_ERRNO(TakeText(xattrs == nullptr ? 0 : xattrs->text_bytes()));
  Inode* const inode = table_.Add(number);
  ++inodes_;
  inode->mode = mode;
  inode->uid = caller.uid;
  inode->gid = gid;
  inode->link_count = 0;
  inode->rdev = 0;
  inode->lookups = 0;
  inode->xattrs = std::move(xattrs);
  inode->content = std::monostate();
  if (S_ISDIR(mode)) inode->content = std::make_unique<Inode::DirectoryNode>(parent);
  Touch(inode, {Inode::kAccess, Inode::kModify, Inode::kChange});
  return Errno::kOk;
}

void LocalNamespace::Enter(Inode* directory, absl::string_view name, InodeNumber number, InodeAttr* attr) {
  directory->directory()->entries.Insert(name, number);
  Touch(directory, {Inode::kModify, Inode::kChange});
  Inode* const inode = table_.Get(number);
  ++inode->link_count;
  inode->AddLookup();
  if (S_ISDIR(inode->mode)) {
    ++inode->link_count;  // its own "."
    ++directory->link_count;
  }
  inode->Fill(number, first_generation_, attr);
}

void LocalNamespace::ReleaseIfUnused(InodeNumber number, Inode* inode) {
  if (inode->link_count > 0 || inode->lookups > 0) return;
  BuryBody(inode);
  text_bytes_ -= inode->TextBytes();
  table_.Remove(number);
  --inodes_;
}

void LocalNamespace::DropName(InodeNumber number, Inode* inode) {
  Touch(inode, {Inode::kChange});
  if (!S_ISDIR(inode->mode) && inode->link_count > 1) --inodes_;
  inode->link_count -= S_ISDIR(inode->mode) ? 2 : 1;
  ReleaseIfUnused(number, inode);
}

Errno LocalNamespace::Lookup(InodeNumber parent, absl::string_view name, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  InodeNumber number = 0;
  if (IsDotName(name)) {
    // The kernel asks so when it has forgotten the inode; no process has it open.
    if (table_.Get(parent) == nullptr || table_.Get(parent)->link_count == 0) return Err(ESTALE);
    number = parent;
    if (name == "..") {
      NRAM_RETURN_IF_ERRNO(GetDirectory(parent, &directory));
      number = directory->directory()->parent;
    }
  } else {
    NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &directory, &number));
  }
  Inode* const inode = table_.Get(number);
  inode->AddLookup();
  inode->Fill(number, first_generation_, attr);
  return Errno::kOk;
}

void LocalNamespace::Forget(InodeNumber number, uint64_t count) {
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr || number == kRootInode) return;
  if (inode->lookups == UINT32_MAX) return;
  inode->lookups -= static_cast<uint32_t>(std::min<uint64_t>(count, inode->lookups));
  ReleaseIfUnused(number, inode);
}

Errno LocalNamespace::GetAttr(InodeNumber number, InodeAttr* attr) {
  ReaderLock lock(&mu_);
  const Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  inode->Fill(number, first_generation_, attr);
  return Errno::kOk;
}

Errno LocalNamespace::SetAttr(InodeNumber number, const AttrChange& change, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (change.mode) {
    inode->mode = (inode->mode & S_IFMT) | (*change.mode & 07777);
    if (const std::string* const stored = inode->FindXattr(kAccessAclName)) {
      Acl acl = *Acl::Parse(*stored);
      acl.SetPermissionBits(inode->mode);
      inode->xattrs->Set(kAccessAclName, acl.Encode());
    }
  }
  if (change.uid) inode->uid = *change.uid;
  if (change.gid) inode->gid = *change.gid;
  inode->DropSetId(change.set_id);
  if (change.atime) inode->SetTime(Inode::kAccess, *change.atime);
  if (change.mtime) inode->SetTime(Inode::kModify, *change.mtime);
  inode->SetTime(Inode::kChange, change.ctime ? *change.ctime : options_.now());
  inode->Fill(number, first_generation_, attr);
  return Errno::kOk;
}

// As the kernel's relatime has it: later than the last change, and less than a day old.
bool LocalNamespace::AccessIsRecent(const Inode& inode) const {
  const timespec access = inode.GetTime(Inode::kAccess);
  return IsLater(access, inode.GetTime(Inode::kModify)) && IsLater(access, inode.GetTime(Inode::kChange)) &&
         options_.now().tv_sec - access.tv_sec < kRelatimeSeconds;
}

void LocalNamespace::TouchAccess(InodeNumber number) {
  if (!options_.touch_files) return;
  {
    ReaderLock lock(&mu_);
    const Inode* const inode = table_.Get(number);
    if (inode == nullptr) return;
    if (AccessIsRecent(*inode)) return;
  }
  WriterLock lock(&mu_);
  if (Inode* const inode = table_.Get(number)) Touch(inode, {Inode::kAccess});
}

bool LocalNamespace::TouchData(InodeNumber number, SetIdBits set_id) {
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr) return false;
  const mode_t before = inode->mode;
  inode->DropSetId(set_id);
  Touch(inode, {Inode::kModify, Inode::kChange});
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
  if (S_ISCHR(mode) || S_ISBLK(mode)) table_.Get(number)->rdev = static_cast<uint32_t>(rdev);
  Enter(directory, name, number, attr);
  return Errno::kOk;
}

Errno LocalNamespace::CreateUnnamed(InodeNumber parent, mode_t mode, const Caller& caller, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  NRAM_RETURN_IF_ERRNO(GetDirectory(parent, &directory));
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(NewInode(parent, S_IFREG | (mode & 07777), caller, &number));
  Inode* const inode = table_.Get(number);
  inode->AddLookup();
  inode->Fill(number, first_generation_, attr);
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
  table_.Get(number)->content = std::make_unique<std::string>(target);
  Enter(directory, name, number, attr);
  return Errno::kOk;
}

Errno LocalNamespace::ReadLink(InodeNumber number, std::string* target) {
  ReaderLock lock(&mu_);
  const Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  const std::string* const stored = inode->target();
  if (stored == nullptr) return Err(EINVAL);
  *target = *stored;
  return Errno::kOk;
}

Errno LocalNamespace::Link(InodeNumber number, InodeNumber parent, absl::string_view name, InodeAttr* attr) {
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (S_ISDIR(inode->mode)) return Err(EPERM);
  if (inode->link_count >= kLinksMax) return Err(EMLINK);
  Inode* directory = nullptr;
  NRAM_RETURN_IF_ERRNO(FindRoom(parent, name, &directory));
  if (!options_.may_grow(kNameMemory)) return Err(ENOSPC);
  if (inode->link_count > 0) {
    if (inodes_ >= options_.inodes_max) return Err(ENOSPC);
    ++inodes_;
  }
  Touch(inode, {Inode::kChange});
  Enter(directory, name, number, attr);
  return Errno::kOk;
}

Errno LocalNamespace::Unlink(InodeNumber parent, absl::string_view name) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &directory, &number));
  Inode* const inode = table_.Get(number);
  if (S_ISDIR(inode->mode)) return Err(EISDIR);
  directory->directory()->entries.Erase(name);
  Touch(directory, {Inode::kModify, Inode::kChange});
  DropName(number, inode);
  return Errno::kOk;
}

Errno LocalNamespace::RemoveDirectory(InodeNumber parent, absl::string_view name) {
  WriterLock lock(&mu_);
  Inode* directory = nullptr;
  InodeNumber number = 0;
  NRAM_RETURN_IF_ERRNO(FindEntry(parent, name, &directory, &number));
  Inode* const inode = table_.Get(number);
  if (!S_ISDIR(inode->mode)) return Err(ENOTDIR);
  if (!inode->directory()->entries.empty()) return Err(ENOTEMPTY);
  directory->directory()->entries.Erase(name);
  --directory->link_count;
  Touch(directory, {Inode::kModify, Inode::kChange});
  DropName(number, inode);
  return Errno::kOk;
}

bool LocalNamespace::IsAncestor(InodeNumber above, InodeNumber below) const {
  while (below != above && below != kRootInode) below = table_.Get(below)->directory()->parent;
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
  Inode* const moved = table_.Get(moved_number);
  Inode* const present = table_.Get(present_number);
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

  Touch(from, {Inode::kModify, Inode::kChange});
  Touch(to, {Inode::kModify, Inode::kChange});
  Touch(moved, {Inode::kChange});
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
    Touch(present, {Inode::kChange});
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
  const Inode::DirectoryNode& directory = *inode->directory();
  InodeAttr attr;
  if (cookie < 1) {
    inode->Fill(number, first_generation_, &attr);
    if (!emit(".", attr, 1)) return Errno::kOk;
  }
  if (cookie < 2) {
    // The parent of a removed directory may be gone.
    const Inode* const above = inode->link_count == 0 ? inode : table_.Get(directory.parent);
    above->Fill(above == inode ? number : directory.parent, first_generation_, &attr);
    if (!emit("..", attr, 2)) return Errno::kOk;
  }
  Directory::Entry entry{cookie < Directory::kFirstCookie ? 0 : cookie, 0, {}};
  while (directory.entries.Next(entry.cookie, &entry)) {
    Inode* const found = table_.Get(entry.inode);
    found->Fill(entry.inode, first_generation_, &attr);
    if (!emit(entry.name, attr, entry.cookie)) break;
    if (look_up) found->AddLookup();
  }
  if (options_.touch_directories && !AccessIsRecent(*inode)) Touch(inode, {Inode::kAccess});
  return Errno::kOk;
}

Errno LocalNamespace::GetXattr(InodeNumber number, absl::string_view name, std::string* value) {
  ReaderLock lock(&mu_);
  const Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  const std::string* const stored = inode->FindXattr(name);
  if (stored == nullptr) return Err(ENODATA);
  *value = *stored;
  return Errno::kOk;
}

Errno LocalNamespace::StoreXattr(Inode* inode, absl::string_view name, absl::string_view value) {
  const std::string* const stored = inode->FindXattr(name);
  const size_t freed = stored == nullptr ? 0 : TextCost(name.size() + stored->size());
  const size_t added = TextCost(name.size() + value.size());
  if (inode->TextBytes() - freed + added > kXattrBytesMax) return Err(ENOSPC);
  text_bytes_ -= freed;
  if (const Errno error = TakeText(added); !Ok(error)) {
    text_bytes_ += freed;
    return error;
  }
  if (inode->xattrs == nullptr) inode->xattrs = std::make_unique<Xattrs>();
  inode->xattrs->Set(name, std::string(value));
  return Errno::kOk;
}

bool LocalNamespace::EraseXattr(Inode* inode, absl::string_view name) {
  const std::string* const stored = inode->FindXattr(name);
  if (stored == nullptr) return false;
  text_bytes_ -= TextCost(name.size() + stored->size());
  inode->xattrs->Erase(name);
  if (inode->xattrs->empty()) inode->xattrs = nullptr;
  return true;
}

Errno LocalNamespace::SetXattr(InodeNumber number, absl::string_view name, absl::string_view value, int flags,
                               bool drop_set_group_id) {
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  std::optional<Acl> acl;
  NRAM_RETURN_IF_ERRNO(Xattrs::Check(name, value, flags, inode->mode, inode->FindXattr(name) != nullptr, &acl));
  const bool is_access_acl = name == kAccessAclName;
  if (is_access_acl && acl->minimal()) {
    EraseXattr(inode, name);  // the mode says it all
  } else {
    NRAM_RETURN_IF_ERRNO(StoreXattr(inode, name, value));
  }
  if (is_access_acl) {
    inode->mode = (inode->mode & ~0777) | acl->PermissionBits();
    if (drop_set_group_id) inode->mode &= ~S_ISGID;
  }
  Touch(inode, {Inode::kChange});
  return Errno::kOk;
}

Errno LocalNamespace::ListXattr(InodeNumber number, std::string* names) {
  ReaderLock lock(&mu_);
  const Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  names->clear();
  if (inode->xattrs != nullptr) inode->xattrs->AppendNames(names);
  return Errno::kOk;
}

Errno LocalNamespace::RemoveXattr(InodeNumber number, absl::string_view name, bool drop_set_group_id) {
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (name == kAccessAclName && drop_set_group_id) inode->mode &= ~S_ISGID;
  if (!EraseXattr(inode, name)) {
    // The mode is an ACL too.
    return name == kAccessAclName || name == kDefaultAclName ? Errno::kOk : Err(ENODATA);
  }
  Touch(inode, {Inode::kChange});
  return Errno::kOk;
}

Errno LocalNamespace::Body(InodeNumber number, FileBody** body) {
  {
    ReaderLock lock(&mu_);
    const Inode* const inode = table_.Get(number);
    if (inode == nullptr) return Err(ESTALE);
    *body = inode->body();
    if (*body != nullptr) return Errno::kOk;
    if (S_ISDIR(inode->mode)) return Err(EISDIR);
    if (!S_ISREG(inode->mode)) return Err(EINVAL);
  }
  WriterLock lock(&mu_);
  Inode* const inode = table_.Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (inode->body() == nullptr) inode->content = options_.make_body();
  *body = inode->body();
  return Errno::kOk;
}

NamespaceUsage LocalNamespace::Usage() const {
  ReaderLock lock(&mu_);
  return {inodes_, options_.inodes_max};
}

}  // namespace nram
