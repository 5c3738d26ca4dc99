#include "fsd/set_id_bits.h"

#include <algorithm>
#include <vector>

#include "fsd/acl.h"

namespace nram {
namespace {

bool IsRootOrInGroup(fuse_req_t req, gid_t group) {
  const fuse_ctx* const context = fuse_req_ctx(req);
  if (context->uid == 0 || context->gid == group) return true;
  std::vector<gid_t> groups(64);
  int count = fuse_req_getgroups(req, static_cast<int>(groups.size()), groups.data());
  if (count > static_cast<int>(groups.size())) {
    groups.resize(static_cast<size_t>(count));
    count = std::min(count, fuse_req_getgroups(req, count, groups.data()));
  }
  groups.resize(static_cast<size_t>(std::max(count, 0)));
  return std::find(groups.begin(), groups.end(), group) != groups.end();
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

bool DropsSetGroupId(fuse_req_t req, Namespace* names, InodeNumber inode, absl::string_view xattr_name) {
  InodeAttr attr;
  return xattr_name == kAccessAclName && Ok(names->GetAttr(inode, &attr)) && (attr.st_mode & S_ISGID) != 0 &&
         !IsRootOrInGroup(req, attr.st_gid);
}

}  // namespace nram
