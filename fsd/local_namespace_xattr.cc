// Extended attributes and ACLs, and the memory that they and the targets of symbolic links may take.

#include <sys/xattr.h>

#include <utility>

#include "absl/strings/match.h"
#include "fsd/local_namespace.h"

namespace nram {
namespace {

constexpr uint64_t kTextBytesPerInode = 1024;  // of all, on average

}  // namespace

void LocalNamespace::Xattrs::Set(absl::string_view name, std::string value) {
  const auto [it, added] = values.try_emplace(std::string(name));
  text_bytes += value.size() + (added ? TextCost(name.size()) : 0) - it->second.size();
  it->second = std::move(value);
}

void LocalNamespace::Xattrs::Erase(absl::string_view name) {
  const auto it = values.find(name);
  if (it == values.end()) return;
  text_bytes -= TextCost(name.size() + it->second.size());
  values.erase(it);
}

size_t LocalNamespace::TextBytes(const Inode& inode) {
  const size_t bytes = inode.xattrs == nullptr ? 0 : inode.xattrs->text_bytes;
  const auto* const target = std::get_if<std::unique_ptr<std::string>>(&inode.content);
  return target == nullptr ? bytes : bytes + TextCost((*target)->size());
}

Errno LocalNamespace::TakeText(size_t bytes) {
  if (text_bytes_ + bytes > options_.inodes_max * kTextBytesPerInode) return Err(ENOSPC);
  text_bytes_ += bytes;
  return Errno::kOk;
}

const std::string* LocalNamespace::FindXattr(const Inode& inode, absl::string_view name) const {
  if (inode.xattrs == nullptr) return nullptr;
  const auto it = inode.xattrs->values.find(name);
  return it == inode.xattrs->values.end() ? nullptr : &it->second;
}

Errno LocalNamespace::GetXattr(InodeNumber number, absl::string_view name, std::string* value) {
  ReaderLock lock(&mu_);
  const Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  const std::string* const stored = FindXattr(*inode, name);
  if (stored == nullptr) return Err(ENODATA);
  *value = *stored;
  return Errno::kOk;
}

Errno LocalNamespace::SetXattr(InodeNumber number, absl::string_view name, absl::string_view value, int flags,
                               bool drop_set_group_id) {
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (name.empty() || name.size() > kNameBytesMax) return Err(ERANGE);
  if ((flags & ~(XATTR_CREATE | XATTR_REPLACE)) != 0) return Err(EINVAL);
  const std::string* const stored = FindXattr(*inode, name);
  if (stored != nullptr && (flags & XATTR_CREATE) != 0) return Err(EEXIST);
  if (stored == nullptr && (flags & XATTR_REPLACE) != 0) return Err(ENODATA);
  std::optional<Acl> acl;
  const bool is_access_acl = name == kAccessAclName;
  if (is_access_acl || name == kDefaultAclName) {
    acl = Acl::Parse(value);
    if (!acl) return Err(EINVAL);
    if (!is_access_acl && !S_ISDIR(inode->mode)) return Err(EACCES);
  } else if (absl::StartsWith(name, "system.")) {
    return Err(EOPNOTSUPP);
  }
  const size_t freed = stored == nullptr ? 0 : TextCost(name.size() + stored->size());
  // Of a minimal one the mode says it all.
  const bool keep = !is_access_acl || !acl->minimal();
  if (keep) {
    const size_t added = TextCost(name.size() + value.size());
    if (TextBytes(*inode) - freed + added > kXattrBytesMax) return Err(ENOSPC);
    text_bytes_ -= freed;
    if (const Errno error = TakeText(added); !Ok(error)) {
      text_bytes_ += freed;
      return error;
    }
    if (inode->xattrs == nullptr) inode->xattrs = std::make_unique<Xattrs>();
    inode->xattrs->Set(name, std::string(value));
  } else if (stored != nullptr) {
    inode->xattrs->Erase(name);
    text_bytes_ -= freed;
  }
  if (is_access_acl) {
    inode->mode = (inode->mode & ~0777) | acl->PermissionBits();
    if (drop_set_group_id) inode->mode &= ~S_ISGID;
  }
  Touch(inode, {kChange});
  return Errno::kOk;
}

Errno LocalNamespace::ListXattr(InodeNumber number, std::string* names) {
  ReaderLock lock(&mu_);
  const Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  names->clear();
  if (inode->xattrs == nullptr) return Errno::kOk;
  for (const auto& [name, value] : inode->xattrs->values) names->append(name).push_back('\0');
  return Errno::kOk;
}

Errno LocalNamespace::RemoveXattr(InodeNumber number, absl::string_view name, bool drop_set_group_id) {
  WriterLock lock(&mu_);
  Inode* const inode = Get(number);
  if (inode == nullptr) return Err(ESTALE);
  if (name == kAccessAclName && drop_set_group_id) inode->mode &= ~S_ISGID;
  const std::string* const stored = FindXattr(*inode, name);
  // The mode is an ACL too.
  if (stored == nullptr) return name == kAccessAclName || name == kDefaultAclName ? Errno::kOk : Err(ENODATA);
  text_bytes_ -= TextCost(name.size() + stored->size());
  inode->xattrs->Erase(name);
  if (inode->xattrs->values.empty()) inode->xattrs = nullptr;
  Touch(inode, {kChange});
  return Errno::kOk;
}

}  // namespace nram
