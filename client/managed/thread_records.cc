#include "client/managed/thread_records.h"

#include <utility>

namespace nram {
namespace {

struct Slot {
  uint64_t id;
  std::shared_ptr<ThreadRecord> record;
};

// A thread's records with all managers. Those of destroyed managers remain until the thread ends: 100 bytes each.
struct Slots {
  ~Slots();
  std::vector<Slot> slots;
};

// The thread's own objects have been destroyed. Static ones may still come here, in the main thread.
thread_local bool ending = false;

Slots::~Slots() {
  for (const Slot& slot : slots) slot.record->gone.store(true, std::memory_order_release);
  ending = true;
  last_record.records_id = 0;
}

uint64_t NextId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

}  // namespace

constinit thread_local LastRecord last_record;

ThreadRecords::ThreadRecords() : id_(NextId()) {}

ThreadRecord* ThreadRecords::Find() {
  if (ending) return Late();
  static thread_local Slots mine;
  for (const Slot& slot : mine.slots) {
    if (slot.id != id_) continue;
    last_record = {id_, slot.record.get()};
    return last_record.record;
  }
  std::shared_ptr<ThreadRecord> record = Add();
  last_record = {id_, record.get()};
  mine.slots.push_back({id_, std::move(record)});
  return last_record.record;
}

ThreadRecord* ThreadRecords::Late() {
  MutexLock lock(&mu_);
  ThreadRecord* mine = nullptr;
  for (const std::shared_ptr<ThreadRecord>& record : records_) {
    if (record->late_of == &ending) mine = record.get();
  }
  if (mine == nullptr) {
    records_.push_back(std::make_shared<ThreadRecord>());
    mine = records_.back().get();
    mine->late_of = &ending;
  }
  last_record = {id_, mine};
  return mine;
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
