#ifndef NRAM_MEMSERVER_WORK_BOUND_H_
#define NRAM_MEMSERVER_WORK_BOUND_H_

#include <cstdint>

#include "base/clock.h"

namespace nram {

// How long a piece of work may go on. It is asked between two steps.
class WorkBound {
 public:
  WorkBound() = default;  // for ever
  // `clock` must outlive the bound.
  WorkBound(const Clock* clock, int64_t ns) : clock_(clock), until_ns_(clock->NowNs() + ns) {}

  bool is_over() const { return clock_ != nullptr && clock_->NowNs() >= until_ns_; }

 private:
  const Clock* clock_ = nullptr;
  int64_t until_ns_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_WORK_BOUND_H_
