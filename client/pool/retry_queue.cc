#include "client/pool/retry_queue.h"

#include <glog/logging.h>

#include <algorithm>

namespace nram {

RetryQueue::~RetryQueue() { CHECK(empty()) << "a waiter is still in the queue"; }

void RetryQueue::Add(Waiter* waiter) {
  CHECK(!Has(*waiter)) << "a waiter is in a queue already";
  List* const list = ListOf(*waiter);
  waiter->number_ = next_number_++;
  waiter->next_ = nullptr;
  waiter->previous_ = list->last;
  (list->last == nullptr ? list->first : list->last->next_) = waiter;
  list->last = waiter;
  ++counts_[static_cast<size_t>(waiter->what)];
}

void RetryQueue::Remove(Waiter* waiter) {
  CHECK(Has(*waiter)) << "a waiter is in no queue";
  List* const list = ListOf(*waiter);
  (waiter->previous_ == nullptr ? list->first : waiter->previous_->next_) = waiter->next_;
  (waiter->next_ == nullptr ? list->last : waiter->next_->previous_) = waiter->previous_;
  waiter->number_ = 0;
  --counts_[static_cast<size_t>(waiter->what)];
}

int64_t RetryQueue::EarliestDeadlineNs() const {
  int64_t earliest_ns = INT64_MAX;
  for (const List* list : {&urgent_, &others_}) {
    for (const Waiter* waiter = list->first; waiter != nullptr; waiter = waiter->next_) {
      earliest_ns = std::min(earliest_ns, waiter->deadline_ns);
    }
  }
  return earliest_ns;
}

const Waiter* RetryQueue::First(Waiter::For what) const {
  for (const List* list : {&urgent_, &others_}) {
    for (const Waiter* waiter = list->first; waiter != nullptr; waiter = waiter->next_) {
      if (waiter->what == what) return waiter;
    }
  }
  return nullptr;
}

}  // namespace nram
