#ifndef NRAM_FSD_XATTRS_H_
#define NRAM_FSD_XATTRS_H_

#include <sys/stat.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "fsd/acl.h"
#include "fsd/errno.h"

namespace nram {

// The memory that a text of `bytes` counts for: an attribute's name and value, or the target of a symbolic link. 128
// bytes are for the objects around it.
constexpr size_t TextCost(size_t bytes) { return bytes + 128; }

// The extended attributes of one inode, and the memory that they count for. Not thread-safe.
class Xattrs {
 public:
  // Whether an inode of type and mode `mode` may have the attribute, as setxattr(2) with `flags` asks; `present`: it
  // has one of that name. ERANGE (the name), EINVAL (flags, or no ACL), EEXIST, ENODATA, EACCES (a default ACL,
  // and no directory), EOPNOTSUPP (other names of the system's). *acl is the value if the name is an ACL's.
  static Errno Check(absl::string_view name, absl::string_view value, int flags, mode_t mode, bool present,
                     std::optional<Acl>* acl);

  bool empty() const { return values_.empty(); }
  // Of all attributes, by TextCost.
  size_t text_bytes() const { return text_bytes_; }

  // The value; null if there is no attribute of that name. Valid until that attribute changes.
  const std::string* Find(absl::string_view name) const;
  // Adds the attribute or replaces its value.
  void Set(absl::string_view name, std::string value);
  // Does nothing if there is no such attribute.
  void Erase(absl::string_view name);
  // Appends the names, each with a NUL behind it.
  void AppendNames(std::string* names) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
  size_t text_bytes_ = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_XATTRS_H_
