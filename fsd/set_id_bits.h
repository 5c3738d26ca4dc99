#ifndef NRAM_FSD_SET_ID_BITS_H_
#define NRAM_FSD_SET_ID_BITS_H_

// Decides which callers may keep set-id bits: Linux's setattr_should_drop_sgid() and posix_acl_update_mode(), for the
// requests that leave this to the daemon (FUSE_HANDLE_KILLPRIV_V2). A caller belongs to his own group and to those that
// /proc lists for him. If /proc does not show the process here (another PID namespace), only its own group is known.
// Root may keep all bits.

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "absl/strings/string_view.h"
#include "fsd/errno.h"
#include "fsd/namespace.h"

namespace nram {

// For a request that clears the bits.
SetIdBits DropSetIdBits(fuse_req_t req, Namespace* names, InodeNumber inode);
// For a request that clears the bits unless root sends it.
SetIdBits DropSetIdBitsUnlessRoot(fuse_req_t req, Namespace* names, InodeNumber inode);
// A request that changes nothing is a chown to neither owner nor group, which clears the bits as any chown does. EPERM:
// the caller is neither the owner nor root, and there are bits to clear. Linux sends the same, but without a time,
// before a write that clears the bits itself (`is_chown` is false): then such a caller's request changes nothing.
Errno DropSetIdBitsByOwner(fuse_req_t req, Namespace* names, InodeNumber inode, bool is_chown, SetIdBits* set_id);
// For a request that changes the attribute `xattr_name`. True: it changes the access ACL, and its caller is not in the
// group.
bool DropsSetGroupId(fuse_req_t req, Namespace* names, InodeNumber inode, absl::string_view xattr_name);

}  // namespace nram

#endif  // NRAM_FSD_SET_ID_BITS_H_
