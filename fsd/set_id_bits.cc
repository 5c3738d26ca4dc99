#include "fsd/set_id_bits.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host/host_memory.h"
#include "fsd/acl.h"

namespace nram {
namespace {

// libfuse 3.14 has fuse_req_getgroups, but that searches a buffer that it has not terminated.
bool IsRootOrInGroup(fuse_req_t req, gid_t group) {
  const fuse_ctx* const context = fuse_req_ctx(req);
  if (context->uid == 0 || context->gid == group) return true;
  const auto status = ReadFile(absl::StrCat("/proc/", context->pid, "/status"));
  if (!status.ok()) return false;  // the process has ended, or is in another PID namespace
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (!absl::ConsumePrefix(&line, "Groups:")) continue;
    for (const absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
      gid_t one = 0;
      if (absl::SimpleAtoi(word, &one) && one == group) return true;
    }
  }
  return false;
}

}  // namespace

SetIdBits DropSetIdBits(fuse_req_t req, Namespace* names, InodeNumber inode) {
  InodeAttr attr;
  if (!Ok(names->GetAttr(inode, &attr))) return SetIdBits::kDropByStranger;  // the request will fail too
  const bool group_matters = (attr.st_mode & S_ISGID) != 0 && (attr.st_mode & S_IXGRP) == 0;
  return group_matters && !IsRootOrInGroup(req, attr.st_gid) ? SetIdBits::kDropByStranger : SetIdBits::kDropByMember;
}

SetIdBits DropSetIdBitsUnlessRoot(fuse_req_t req, Namespace* names, InodeNumber inode) {
  return fuse_req_ctx(req)->uid == 0 ? SetIdBits::kKeep : DropSetIdBits(req, names, inode);
}

Errno DropSetIdBitsByOwner(fuse_req_t req, Namespace* names, InodeNumber inode, bool is_chown, SetIdBits* set_id) {
  InodeAttr attr;
  NRAM_RETURN_IF_ERRNO(names->GetAttr(inode, &attr));
  const SetIdBits drop = DropSetIdBits(req, names, inode);
  const bool drops_group = (attr.st_mode & S_IXGRP) != 0 || drop == SetIdBits::kDropByStranger;
  const bool drops = (attr.st_mode & S_ISUID) != 0 || ((attr.st_mode & S_ISGID) != 0 && drops_group);
  if (S_ISDIR(attr.st_mode) || !drops) return Errno::kOk;
  const uid_t user = fuse_req_ctx(req)->uid;
  if (user != 0 && user != attr.st_uid) return is_chown ? Err(EPERM) : Errno::kOk;
  *set_id = drop;
  return Errno::kOk;
}

bool DropsSetGroupId(fuse_req_t req, Namespace* names, InodeNumber inode, absl::string_view xattr_name) {
  InodeAttr attr;
  return xattr_name == kAccessAclName && Ok(names->GetAttr(inode, &attr)) && (attr.st_mode & S_ISGID) != 0 &&
         !IsRootOrInGroup(req, attr.st_gid);
}

}  // namespace nram
