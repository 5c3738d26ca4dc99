#ifndef NRAM_CLIENT_MEMORY_AUTO_BUDGET_H_
#define NRAM_CLIENT_MEMORY_AUTO_BUDGET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/host/memory_balance.h"
#include "base/host/memory_pressure.h"
#include "base/sync.h"

namespace nram {

// A budget that follows the machine: a thread that looks ten times a second, and at once when the kernel tells of
// pressure, how much memory others leave (base/host/memory_balance.h).
class AutoBudget {
 public:
  // Held returns the bytes that the caller holds now; Apply carries out each answer. The thread calls both. They must
  // not call this object.
  using Held = std::function<uint64_t()>;
  using Apply = std::function<void(uint64_t bytes)>;

  // INTERNAL: this machine does not tell how much memory it has.
  static absl::StatusOr<std::unique_ptr<AutoBudget>> New(uint64_t floor_bytes, uint64_t ceiling_bytes);
  // Ends the thread, after a call of `apply` that is under way.
  ~AutoBudget();

  // The budget of a caller that holds nothing yet.
  uint64_t first_bytes() const { return first_bytes_; }
  // Starts the thread.
  void Start(Held held, Apply apply);
  // From now on the budget is at most this; a higher floor is lowered to it. Applies it before it returns. Not from
  // within `apply`.
  void SetCeiling(uint64_t bytes);

 private:
  explicit AutoBudget(uint64_t floor_bytes, uint64_t ceiling_bytes)
      : floor_bytes_(floor_bytes), balance_({.floor_bytes = floor_bytes, .ceiling_bytes = ceiling_bytes}) {}
  void Run();
  // Returns when to look again.
  int64_t Look();

  const uint64_t floor_bytes_;
  uint64_t first_bytes_ = 0;
  Held held_;
  Apply apply_;
  StallMeter meter_;         // the thread's
  PressureTrigger trigger_;  // the thread's
  UniqueFd stop_fd_;
  Mutex mu_;  // held while an answer is applied, so that they are applied in order
  MemoryBalance balance_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_AUTO_BUDGET_H_
