/* Preloaded into a memory server, it makes the server distant: a thread that is woken sees the reason only after
 * $NRAM_FAR_US microseconds. A thread's sleep takes no processor, so servers on one machine wait at the same time, as
 * messages to several hosts travel at the same time. copies_rows.py builds and uses it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>

int epoll_wait(int epoll, struct epoll_event* events, int most, int timeout_ms) {
  static int (*real)(int, struct epoll_event*, int, int);
  static long far_ns = -1;
  static __thread int exact;
  if (real == NULL) {
    const char* const text = getenv("NRAM_FAR_US");
    far_ns = text == NULL ? 0 : atol(text) * 1000;
    real = (int (*)(int, struct epoll_event*, int, int))dlsym(RTLD_NEXT, "epoll_wait");
  }
  const int count = real(epoll, events, most, timeout_ms);
  if (count <= 0 || timeout_ms == 0 || far_ns == 0) return count;
  if (!exact) exact = prctl(PR_SET_TIMERSLACK, 1) == 0;
  const struct timespec pause = {far_ns / 1000000000, far_ns % 1000000000};
  nanosleep(&pause, NULL);
  return count;
}
