#include "fsd/xattrs.h"

#include <sys/xattr.h>

#include <utility>

#include "absl/strings/match.h"
#include "fsd/namespace.h"

namespace nram {

Errno Xattrs::Check(absl::string_view name, absl::string_view value, int flags, mode_t mode, bool present,
                    std::optional<Acl>* acl) {
  if (name.empty() || name.size() > kNameBytesMax) return Err(ERANGE);
  if ((flags & ~(XATTR_CREATE | XATTR_REPLACE)) != 0) return Err(EINVAL);
  if (present && (flags & XATTR_CREATE) != 0) return Err(EEXIST);
  if (!present && (flags & XATTR_REPLACE) != 0) return Err(ENODATA);
  if (name == kAccessAclName || name == kDefaultAclName) {
    *acl = Acl::Parse(value);
    if (!acl->has_value()) return Err(EINVAL);
    if (name == kDefaultAclName && !S_ISDIR(mode)) return Err(EACCES);
  } else if (absl::StartsWith(name, "system.")) {
    return Err(EOPNOTSUPP);
  }
  return Errno::kOk;
}

const std::string* Xattrs::Find(absl::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

void Xattrs::Set(absl::string_view name, std::string value) {
  const auto [it, added] = values_.try_emplace(std::string(name));
  text_bytes_ += value.size() + (added ? TextCost(name.size()) : 0) - it->second.size();
  it->second = std::move(value);
}

void Xattrs::Erase(absl::string_view name) {
  const auto it = values_.find(name);
  if (it == values_.end()) return;
  text_bytes_ -= TextCost(name.size() + it->second.size());
  values_.erase(it);
}

void Xattrs::AppendNames(std::string* names) const {
  for (const auto& [name, value] : values_) names->append(name).push_back('\0');
}

}  // namespace nram
