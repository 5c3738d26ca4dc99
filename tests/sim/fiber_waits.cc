// The product's waits and clock: these functions take the place of the C library's. A fiber (fibers.h) that calls one
// waits in virtual time. All other threads get the C library's functions. Threads that a fiber begins are fibers too.

#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "base/clock.h"
#include "tests/sim/fibers.h"

namespace nram::sim {
namespace {

// A waiting fiber holds a lock: the time between two looks.
constexpr int64_t kLockedNs = 20 * kNsPerUs;
constexpr int64_t kCallNs = 10 * kNsPerUs;
constexpr int64_t kForEverNs = INT64_MAX / 2;

template <typename Function>
Function Real(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) abort();
  return reinterpret_cast<Function>(found);
}

int64_t NsOf(const timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }

}  // namespace
}  // namespace nram::sim

using nram::sim::Fibers;

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (clock == CLOCK_MONOTONIC && Fibers::Current() != nullptr) {
    const int64_t now_ns = Fibers::Current()->world()->NowNs();
    *time = {now_ns / nram::kNsPerSecond, now_ns % nram::kNsPerSecond};
    return 0;
  }
  static const auto real = nram::sim::Real<int (*)(clockid_t, timespec*)>("clock_gettime");
  return real(clock, time);
}

int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  if (count == 0 && Fibers::InOne()) {
    // A wait for nothing uses time all the same.
    Fibers::Current()->Sleep(std::max(timeout_ms * nram::kNsPerMs, nram::sim::kCallNs));
    return 0;
  }
  static const auto real = nram::sim::Real<int (*)(pollfd*, nfds_t, int)>("poll");
  return real(fds, count, timeout_ms);
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && Fibers::Current() != nullptr) {
    const auto* const word = reinterpret_cast<const std::atomic<uint32_t>*>(a[0]);
    const long op = a[1] & FUTEX_CMD_MASK;
    if (op == FUTEX_WAKE) {
      Fibers::Current()->Wake(word);
      return 0;
    }
    if (op == FUTEX_WAIT_BITSET && word->load() == static_cast<uint32_t>(a[2])) {
      const int64_t until_ns = nram::sim::NsOf(*reinterpret_cast<const timespec*>(a[3]));
      (void)Fibers::Current()->WaitFor(word, std::min(until_ns, nram::sim::kForEverNs));
    }
    return 0;
  }
  static const auto real = nram::sim::Real<long (*)(long, ...)>("syscall");
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  while (true) {
    const int error = pthread_mutex_trylock(mutex);
    if (error != EBUSY) return error;
    if (Fibers::InOne()) {
      Fibers::Current()->Sleep(nram::sim::kLockedNs);
    } else if (Fibers::Current() != nullptr) {
      abort();  // an event would wait for a fiber
    } else {
      sched_yield();
    }
  }
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  if (!Fibers::InOne()) {
    static const auto real = nram::sim::Real<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
        "pthread_cond_clockwait");
    return real(condition, mutex, clock, until);
  }
  pthread_mutex_unlock(mutex);
  const int64_t until_ns = std::min(nram::sim::NsOf(*until), nram::sim::kForEverNs);
  const bool woken = Fibers::Current()->WaitFor(condition, until_ns);
  pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  // Waits may end without a reason.
  return pthread_cond_broadcast(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (Fibers::Current() != nullptr) {
    Fibers::Current()->Wake(condition);
    return 0;
  }
  static const auto real = nram::sim::Real<int (*)(pthread_cond_t*)>("pthread_cond_broadcast");
  return real(condition);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                   void* argument) noexcept {
  if (Fibers::InOne()) {
    Fibers* const fibers = Fibers::Current();
    *thread = fibers->Start(fibers->host(), [routine, argument] { (void)routine(argument); });
    return 0;
  }
  static const auto real =
      nram::sim::Real<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return real(thread, attributes, routine, argument);
}

int pthread_join(pthread_t thread, void** result) {
  if (Fibers::InOne()) {
    while (!Fibers::Current()->IsOver(thread)) Fibers::Current()->Sleep(nram::kNsPerMs);
    return 0;
  }
  static const auto real = nram::sim::Real<int (*)(pthread_t, void**)>("pthread_join");
  return real(thread, result);
}

}  // extern "C"
