#ifndef NRAM_SORT_FILE_RIGHTS_H_
#define NRAM_SORT_FILE_RIGHTS_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace nram {

// Gives the file `fd`, which this process has just made with mode 0600, the owner, group, mode, access ACL and extended
// attributes of the file `old` (any descriptor, O_PATH too), as far as the process may give them. `name` stands in
// messages. No user but the process's own gains rights that he did not have to `old`:
//   - If the owner is another one, set-id bits are not given.
//   - If the group is another one, it gets no rights, other users get no more than the old group had, and there is no
//     ACL.
//   - If there was an ACL that cannot be given, group and others get the rights that every user and group in it had.
// Attributes that are no rights are left out if they cannot be read or given. So are attributes of the old contents:
// file capabilities, and signatures (security.ima, security.evm).
// The mode and the ACL are given as far as `rights` has them; it has the same for owner, group and others.
absl::Status GiveRightsOf(int old, int fd, const std::string& name, mode_t rights = 07777);

}  // namespace nram

#endif  // NRAM_SORT_FILE_RIGHTS_H_
