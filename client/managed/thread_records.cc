#include "client/managed/thread_records.h"

#include <utility>

namespace nram {
namespace {

struct Slot {
  uint64_t id;
  std::shared_ptr<ThreadRecord> record;
};

// A thread's records with all managers. Those of managers that have gone stay until the thread ends: 100 bytes each.
struct Slots {
  ~Slots();
  std::vector<Slot> slots;
};

// The one used last, found without a constructor or a search.
thread_local uint64_t cached_id = 0;
thread_local ThreadRecord* cached_record = nullptr;
// The thread's own objects have been destroyed. Static ones may still come here, in the main thread.
thread_local bool ending = false;

Slots::~Slots() {
  for (const Slot& slot : slots) slot.record->gone.store(true, std::memory_order_release);
  ending = true;
  cached_id = 0;
}

uint64_t NextId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

}  // namespace

ThreadRecords::ThreadRecords() : id_(NextId()) {}

ThreadRecord* ThreadRecords::Mine() {
  if (cached_id == id_) return cached_record;
  if (ending) return Late();
  static thread_local Slots mine;
  for (const Slot& slot : mine.slots) {
    if (slot.id != id_) continue;
    cached_record = slot.record.get();
    cached_id = id_;
    return cached_record;
  }
  std::shared_ptr<ThreadRecord> record = Add();
  cached_record = record.get();
  cached_id = id_;
  mine.slots.push_back({id_, std::move(record)});
  return cached_record;
}

ThreadRecord* ThreadRecords::Late() {
  MutexLock lock(&mu_);
  cached_record = nullptr;
  for (const std::shared_ptr<ThreadRecord>& record : records_) {
    if (record->late_of == &ending) cached_record = record.get();
  }
  if (cached_record == nullptr) {
    records_.push_back(std::make_shared<ThreadRecord>());
    cached_record = records_.back().get();
    cached_record->late_of = &ending;
  }
  cached_id = id_;
  return cached_record;
}

std::shared_ptr<ThreadRecord> ThreadRecords::Add() {
  MutexLock lock(&mu_);
  for (std::shared_ptr<ThreadRecord>& record : records_) {
    // A guard that the ended thread has left to others is in its record still.
    if (!record->gone.load(std::memory_order_acquire) || record->guards() != 0) continue;
    record->last = nullptr;
    record->score.Reset();
    record->gone.store(false, std::memory_order_relaxed);
    return record;
  }
  records_.push_back(std::make_shared<ThreadRecord>());
  return records_.back();
}

}  // namespace nram
