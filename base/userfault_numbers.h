#ifndef NRAM_BASE_USERFAULT_NUMBERS_H_
#define NRAM_BASE_USERFAULT_NUMBERS_H_

// The kernel's own numbers of userfaultfd(2) that Debian 12's headers do not have yet. Whether the kernel knows them is
// for the caller to ask.

#include <linux/userfaultfd.h>

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
struct uffdio_poison {
  struct uffdio_range range;
  __u64 mode;
  __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
  __u64 dst;
  __u64 src;
  __u64 len;
  __u64 mode;
  __s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#define UFFDIO_MOVE_MODE_DONTWAKE 1
#endif

#endif  // NRAM_BASE_USERFAULT_NUMBERS_H_
