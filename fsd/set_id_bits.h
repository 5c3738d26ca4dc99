#ifndef NRAM_FSD_SET_ID_BITS_H_
#define NRAM_FSD_SET_ID_BITS_H_

// What Linux's setattr_should_drop_sgid() and posix_acl_update_mode() do, for those requests that leave it to the
// daemon (FUSE_HANDLE_KILLPRIV_V2). Who asks belongs to a group if it is his own or /proc says so; of processes that
// cannot be seen from here, as in another PID namespace, only their own group is known. Root may keep all bits.

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "absl/strings/string_view.h"
#include "fsd/namespace.h"

namespace nram {

// Of a request that takes the bits away.
SetIdBits DropSetIdBits(fuse_req_t req, Namespace* names, InodeNumber inode);
// Of one that takes them away from all but root.
SetIdBits DropSetIdBitsUnlessRoot(fuse_req_t req, Namespace* names, InodeNumber inode);
// Of one that changes the attribute `xattr_name`: true if that is the access ACL and comes from outside of the group.
bool DropsSetGroupId(fuse_req_t req, Namespace* names, InodeNumber inode, absl::string_view xattr_name);

}  // namespace nram

#endif  // NRAM_FSD_SET_ID_BITS_H_
