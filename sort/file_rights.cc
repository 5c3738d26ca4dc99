#include "sort/file_rights.h"

#include <endian.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr char kAccessAcl[] = "system.posix_acl_access";

// The value of an extended attribute of the file at `path`; an errno if there is none.
int ReadXattr(const std::string& path, const char* name, std::string* value) {
  for (size_t room = 256;; room *= 4) {
    value->resize(room);
    const ssize_t bytes = getxattr(path.c_str(), name, value->data(), room);
    if (bytes >= 0) {
      value->resize(static_cast<size_t>(bytes));
      return 0;
    }
    if (errno != ERANGE || room > (1 << 20)) return errno;
  }
}

// The rights that every user and group in the ACL has, as bits of "others"; nullopt: the ACL is none that is known
// here.
std::optional<mode_t> LeastOfNamed(const std::string& acl) {
  posix_acl_xattr_header header;
  if (acl.size() < sizeof header || (acl.size() - sizeof header) % sizeof(posix_acl_xattr_entry) != 0) return {};
  memcpy(&header, acl.data(), sizeof header);
  if (le32toh(header.a_version) != POSIX_ACL_XATTR_VERSION) return {};
  mode_t least = S_IRWXO;
  mode_t mask = S_IRWXO;
  for (size_t at = sizeof header; at < acl.size(); at += sizeof(posix_acl_xattr_entry)) {
    posix_acl_xattr_entry entry;
    memcpy(&entry, acl.data() + at, sizeof entry);
    const mode_t rights = le16toh(entry.e_perm);
    switch (le16toh(entry.e_tag)) {
      case ACL_USER:
      case ACL_GROUP:
      case ACL_GROUP_OBJ:
        least &= rights;
        break;
      case ACL_MASK:
        mask = rights;
        break;
      default:
        break;
    }
  }
  return least & mask;
}

// Leaves `rights`, bits of "others", to all whom the ACL has. There is one version.
void Limit(std::string* acl, mode_t rights) {
  for (size_t at = sizeof(posix_acl_xattr_header); at + sizeof(posix_acl_xattr_entry) <= acl->size();
       at += sizeof(posix_acl_xattr_entry)) {
    posix_acl_xattr_entry entry;
    memcpy(&entry, acl->data() + at, sizeof entry);
    entry.e_perm = htole16(static_cast<uint16_t>(le16toh(entry.e_perm) & rights));
    memcpy(acl->data() + at, &entry, sizeof entry);
  }
}

// Copies all but rights and attributes of the old contents.
void CopyOtherXattrs(const std::string& path, int fd) {
  std::string names(1 << 16, '\0');  // XATTR_LIST_MAX
  const ssize_t bytes = listxattr(path.c_str(), names.data(), names.size());
  if (bytes <= 0) return;
  names.resize(static_cast<size_t>(bytes));
  std::string value;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, '\0', absl::SkipEmpty()))) {
    if (absl::StartsWith(name, "system.posix_acl_") || name == "security.capability" || name == "security.ima" ||
        name == "security.evm") {
      continue;
    }
    if (ReadXattr(path, name.c_str(), &value) == 0) (void)fsetxattr(fd, name.c_str(), value.data(), value.size(), 0);
  }
}

}  // namespace

absl::Status GiveRightsOf(int old, int fd, const std::string& name, mode_t rights) {
  const std::string path = absl::StrCat("/proc/self/fd/", old);
  struct stat attributes;
  if (fstat(old, &attributes) != 0) return ErrnoStatus(errno, "stat of what " + name + " replaces");
  // A directory's default ACL may name users without rights to the old file; the mode would let them in.
  if (fremovexattr(fd, kAccessAcl) != 0 && errno != ENODATA && errno != EOPNOTSUPP) {
    return ErrnoStatus(errno, "remove the ACL of " + name);
  }
  mode_t mode = attributes.st_mode & rights;
  bool has_group = true;
  if (fchown(fd, attributes.st_uid, attributes.st_gid) != 0) {
    if (errno != EPERM) return ErrnoStatus(errno, "chown " + name);
    mode &= ~static_cast<mode_t>(S_ISUID | S_ISGID);
    has_group = fchown(fd, static_cast<uid_t>(-1), attributes.st_gid) == 0;
  }
  CopyOtherXattrs(path, fd);
  std::string acl;
  const int no_acl = ReadXattr(path, kAccessAcl, &acl);
  mode_t least = S_IRWXO;
  if (no_acl == 0) {
    Limit(&acl, rights & S_IRWXO);
    if (has_group && fsetxattr(fd, kAccessAcl, acl.data(), acl.size(), 0) == 0) {
      return fchmod(fd, mode) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "chmod " + name);
    }
    // The mode's group bits are the ACL's mask.
    least = LeastOfNamed(acl).value_or(0);
    mode &= ~static_cast<mode_t>(S_IRWXG) | least << 3;
  } else if (no_acl != ENODATA && no_acl != EOPNOTSUPP) {
    least = 0;
    mode &= ~static_cast<mode_t>(S_IRWXG);
  }
  if (!has_group) {
    least &= (mode & S_IRWXG) >> 3;
    mode &= ~static_cast<mode_t>(S_IRWXG);
  }
  mode &= ~static_cast<mode_t>(S_IRWXO) | least;
  return fchmod(fd, mode) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "chmod " + name);
}

}  // namespace nram
