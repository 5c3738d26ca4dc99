#ifndef NRAM_CLIENT_MANAGED_THREAD_RECORDS_H_
#define NRAM_CLIENT_MANAGED_THREAD_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "client/managed/block.h"
#include "client/managed/order.h"

namespace nram {

// A manager's record of a thread. It outlives the thread: guards may be released elsewhere.
struct ThreadRecord {
  // Guards that the thread has taken, less those that it has released; and those that others have released.
  std::atomic<uint64_t> held{0};
  std::atomic<uint64_t> released_elsewhere{0};
  std::atomic<bool> gone{false};  // the thread has ended

  const void* late_of = nullptr;  // the thread, if its own objects have been destroyed; under the records' lock

  // Only the thread changes them.
  std::atomic<Block*> last{nullptr};  // where it came to last
  OrderScore score;

  // Under the manager's lock.
  bool awaits_room = false;
  uint32_t frontier = 0;  // the block up to which is fetched ahead for it; 0: none

  uint64_t guards() const {
    return held.load(std::memory_order_relaxed) - released_elsewhere.load(std::memory_order_relaxed);
  }
  void NoteHeld() { held.store(held.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void NoteReleased() { held.store(held.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed); }
};

// The record that the thread used last, and of which records it is; 0: none.
struct LastRecord {
  uint64_t records_id = 0;
  ThreadRecord* record = nullptr;
};
extern constinit thread_local LastRecord last_record;

// The records of a manager's threads. Thread-safe.
class ThreadRecords {
 public:
  ThreadRecords();
  // The calling thread's. Valid while these records are.
  ThreadRecord* Mine() { return last_record.records_id == id_ ? last_record.record : Find(); }
  template <typename Function>
  void ForEach(Function function) const {
    MutexLock lock(&mu_);
    for (const auto& record : records_) function(*record);
  }

 private:
  ThreadRecord* Find();
  std::shared_ptr<ThreadRecord> Add();
  ThreadRecord* Late();

  const uint64_t id_;  // of these records; never used twice
  mutable Mutex mu_;
  std::vector<std::shared_ptr<ThreadRecord>> records_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_THREAD_RECORDS_H_
