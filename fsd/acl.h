#ifndef NRAM_FSD_ACL_H_
#define NRAM_FSD_ACL_H_

// POSIX ACLs in the form in which the kernel hands them down (linux/posix_acl_xattr.h): what they do to a file's mode
// and to new files. The kernel decides access with them; the rules here are those of POSIX 1003.1e draft 17,
// section 23.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nram {

inline constexpr char kAccessAclName[] = "system.posix_acl_access";
inline constexpr char kDefaultAclName[] = "system.posix_acl_default";

class Acl {
 public:
  // Nothing if the bytes are no valid ACL.
  static std::optional<Acl> Parse(absl::string_view bytes);
  std::string Encode() const;

  // Owner, group and others alone: a mode says as much.
  bool minimal() const { return entries_.size() == 3; }
  // The nine permission bits that it shows as.
  mode_t PermissionBits() const;
  // After a chmod: the same ACL with these nine bits.
  void SetPermissionBits(mode_t mode);
  // Made from a default ACL for a new file that was asked for with `mode`: takes away what the mode does not have, from
  // itself and from the mode it returns.
  mode_t Inherit(mode_t mode);

 private:
  struct Entry {
    uint16_t tag;
    uint16_t permissions;
    uint32_t id;
  };
  Entry* Find(uint16_t tag);
  const Entry* Find(uint16_t tag) const { return const_cast<Acl*>(this)->Find(tag); }
  // The entry that the mode's group bits stand for.
  Entry* GroupClass();

  std::vector<Entry> entries_;
};

}  // namespace nram

#endif  // NRAM_FSD_ACL_H_
