#ifndef NRAM_FSD_ACL_H_
#define NRAM_FSD_ACL_H_

// POSIX ACLs in the form in which the kernel hands them down (linux/posix_acl_xattr.h), and their effect on the mode of
// a file and on new files. The kernel decides access by them. The rules here are those of POSIX 1003.1e draft 17,
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
  // nullopt: the bytes are no valid ACL.
  static std::optional<Acl> Parse(absl::string_view bytes);
  std::string Encode() const;

  // Only owner, group and others have entries: a mode says as much.
  bool minimal() const { return entries_.size() == 3; }
  // The nine permission bits of a file that has this ACL.
  mode_t PermissionBits() const;
  // Sets the entries that a chmod to `mode` changes.
  void SetPermissionBits(mode_t mode);
  // Makes the ACL of a new file out of a default ACL. Permissions that `mode` lacks leave the ACL; permissions that the
  // ACL lacks leave the returned mode.
  mode_t Inherit(mode_t mode);

 private:
  struct Entry {
    uint16_t tag;
    uint16_t permissions;
    uint32_t id;
  };
  Entry* Find(uint16_t tag);
  const Entry* Find(uint16_t tag) const { return const_cast<Acl*>(this)->Find(tag); }
  // The entry behind the group bits of the mode: the mask if there is one.
  Entry* GroupClass();

  std::vector<Entry> entries_;
};

}  // namespace nram

#endif  // NRAM_FSD_ACL_H_
