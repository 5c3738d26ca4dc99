#ifndef NRAM_BASE_SYNC_H_
#define NRAM_BASE_SYNC_H_

// Annotated locks over the standard ones, and a futex with a deadline for waits that must not allocate. The locks are
// not absl::Mutex: Debian builds Abseil as a shared library without ThreadSanitizer, which then does not see what
// absl::Mutex orders and reports races that do not exist (docs/adr/0003).

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace nram {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// A reader that comes while a writer waits lets the writer go first; so one thread must not lock it twice for reading.
// In glibc's std::shared_mutex readers go first: a few busy ones could keep a writer out for ever.
class ABSL_LOCKABLE SharedMutex {
 public:
  SharedMutex() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~SharedMutex() { pthread_rwlock_destroy(&lock_); }
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { pthread_rwlock_wrlock(&lock_); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { pthread_rwlock_unlock(&lock_); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() { pthread_rwlock_rdlock(&lock_); }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

class ABSL_SCOPED_LOCKABLE WriterLock {
 public:
  explicit WriterLock(SharedMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~WriterLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex* const mu_;
};

class ABSL_SCOPED_LOCKABLE ReaderLock {
 public:
  explicit ReaderLock(SharedMutex* mu) ABSL_SHARED_LOCK_FUNCTION(mu) : mu_(mu) { mu_->ReaderLock(); }
  ~ReaderLock() ABSL_UNLOCK_FUNCTION() { mu_->ReaderUnlock(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex* const mu_;
};

class CondVar {
 public:
  // Waits until signalled (or spuriously) or `deadline_ns` on the monotonic clock; true if the deadline has not passed.
  bool WaitUntil(Mutex* mu, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline_ns)};
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

// Sleeps while `*word == expected`, until woken (or spuriously) or `deadline_ns` (monotonic). Never allocates.
inline void FutexWaitUntil(std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns) {
  timespec until{deadline_ns / 1'000'000'000, deadline_ns % 1'000'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

// `word` may be freed already: the kernel uses the address alone.
inline void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// A lock like SharedMutex, in four bytes. Operations hold it, not threads: one thread may take it and another release
// it when the operation ends. While an operation waits to lock it exclusively, no further one gets it shared.
class ABSL_LOCKABLE SharedGate {
 public:
  bool TryLockShared() ABSL_SHARED_TRYLOCK_FUNCTION(true) {
    uint32_t seen = state_.load(std::memory_order_relaxed);
    while ((seen & (kExclusive | kWanted)) == 0) {
      if (state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  void LockShared() ABSL_SHARED_LOCK_FUNCTION() {
    while (!TryLockShared()) {
      uint32_t seen = state_.load(std::memory_order_relaxed);
      if ((seen & (kExclusive | kWanted)) == 0) continue;
      // Its holder wakes others only if the bit "wanted" is set.
      if ((seen & kWanted) != 0 || state_.compare_exchange_weak(seen, seen | kWanted)) Sleep(seen | kWanted);
    }
  }
  void UnlockShared() ABSL_UNLOCK_FUNCTION() {
    if (state_.fetch_sub(1, std::memory_order_release) == (kWanted | 1)) FutexWakeAll(&state_);
  }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    while (true) {
      uint32_t seen = state_.load(std::memory_order_relaxed);
      if ((seen & ~kWanted) == 0) {
        // The bit "wanted" stays: others may sleep because of it, and Unlock wakes them.
        if (state_.compare_exchange_weak(seen, seen | kExclusive, std::memory_order_acquire)) return;
      } else if ((seen & kWanted) != 0 || state_.compare_exchange_weak(seen, seen | kWanted)) {
        Sleep(seen | kWanted);
      }
    }
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if ((state_.exchange(0, std::memory_order_release) & kWanted) != 0) FutexWakeAll(&state_);
  }

 private:
  static constexpr uint32_t kExclusive = 1u << 31;
  static constexpr uint32_t kWanted = 1u << 30;

  void Sleep(uint32_t seen) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch() + std::chrono::seconds(1);
    FutexWaitUntil(&state_, seen, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  std::atomic<uint32_t> state_{0};
};

class ABSL_SCOPED_LOCKABLE GateLock {
 public:
  explicit GateLock(SharedGate* gate) ABSL_EXCLUSIVE_LOCK_FUNCTION(gate) : gate_(gate) { gate_->Lock(); }
  ~GateLock() ABSL_UNLOCK_FUNCTION() { gate_->Unlock(); }
  GateLock(const GateLock&) = delete;
  GateLock& operator=(const GateLock&) = delete;

 private:
  SharedGate* const gate_;
};

class ABSL_SCOPED_LOCKABLE SharedGateLock {
 public:
  explicit SharedGateLock(SharedGate* gate) ABSL_SHARED_LOCK_FUNCTION(gate) : gate_(gate) { gate_->LockShared(); }
  ~SharedGateLock() ABSL_UNLOCK_FUNCTION() { gate_->UnlockShared(); }
  SharedGateLock(const SharedGateLock&) = delete;
  SharedGateLock& operator=(const SharedGateLock&) = delete;

 private:
  SharedGate* const gate_;
};

}  // namespace nram

#endif  // NRAM_BASE_SYNC_H_
