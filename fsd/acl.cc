#include "fsd/acl.h"

#include <endian.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>

#include <cstring>

namespace nram {

std::optional<Acl> Acl::Parse(absl::string_view bytes) {
  posix_acl_xattr_header header;
  posix_acl_xattr_entry entry;
  if (bytes.size() < sizeof header || (bytes.size() - sizeof header) % sizeof entry != 0) return std::nullopt;
  memcpy(&header, bytes.data(), sizeof header);
  if (le32toh(header.a_version) != POSIX_ACL_XATTR_VERSION) return std::nullopt;
  Acl acl;
  int before = 0;
  for (size_t at = sizeof header; at < bytes.size(); at += sizeof entry) {
    memcpy(&entry, bytes.data() + at, sizeof entry);
    const int tag = le16toh(entry.e_tag);
    const bool named = tag == ACL_USER || tag == ACL_GROUP;
    const bool known = named || tag == ACL_USER_OBJ || tag == ACL_GROUP_OBJ || tag == ACL_MASK || tag == ACL_OTHER;
    // Tags are in order, and only named users and groups come more than once.
    if (!known || tag < before || (tag == before && !named) || le16toh(entry.e_perm) > 7) return std::nullopt;
    before = tag;
    acl.entries_.push_back({static_cast<uint16_t>(tag), le16toh(entry.e_perm), le32toh(entry.e_id)});
  }
  if (acl.Find(ACL_USER_OBJ) == nullptr || acl.Find(ACL_GROUP_OBJ) == nullptr || acl.Find(ACL_OTHER) == nullptr) {
    return std::nullopt;
  }
  const bool names_anybody = acl.Find(ACL_USER) != nullptr || acl.Find(ACL_GROUP) != nullptr;
  if (names_anybody && acl.Find(ACL_MASK) == nullptr) return std::nullopt;
  return acl;
}

std::string Acl::Encode() const {
  const posix_acl_xattr_header header{htole32(POSIX_ACL_XATTR_VERSION)};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Entry& entry : entries_) {
    const posix_acl_xattr_entry encoded{htole16(entry.tag), htole16(entry.permissions), htole32(entry.id)};
    bytes.append(reinterpret_cast<const char*>(&encoded), sizeof encoded);
  }
  return bytes;
}

Acl::Entry* Acl::Find(uint16_t tag) {
  for (Entry& entry : entries_) {
    if (entry.tag == tag) return &entry;
  }
  return nullptr;
}

Acl::Entry* Acl::GroupClass() {
  Entry* const mask = Find(ACL_MASK);
  return mask != nullptr ? mask : Find(ACL_GROUP_OBJ);
}

mode_t Acl::PermissionBits() const {
  return Find(ACL_USER_OBJ)->permissions << 6 | const_cast<Acl*>(this)->GroupClass()->permissions << 3 |
         Find(ACL_OTHER)->permissions;
}

void Acl::SetPermissionBits(mode_t mode) {
  Find(ACL_USER_OBJ)->permissions = mode >> 6 & 7;
  GroupClass()->permissions = mode >> 3 & 7;
  Find(ACL_OTHER)->permissions = mode & 7;
}

mode_t Acl::Inherit(mode_t mode) {
  Find(ACL_USER_OBJ)->permissions &= mode >> 6 & 7;
  GroupClass()->permissions &= mode >> 3 & 7;
  Find(ACL_OTHER)->permissions &= mode & 7;
  return (mode & ~0777) | PermissionBits();
}

}  // namespace nram
