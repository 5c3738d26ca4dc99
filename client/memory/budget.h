#ifndef NRAM_CLIENT_MEMORY_BUDGET_H_
#define NRAM_CLIENT_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/memory/advice.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/page_in.h"
#include "client/memory/residency.h"

namespace nram {

// How a budget is divided. The budget is for pages wherever they are (in place, in a buffer on their way, in a
// handler's hands), and for the sums of their contents. Pure.
struct BudgetShape {
  static constexpr uint64_t kBytesMin = 4 * kMiB;
  static constexpr uint64_t kBytesMax = uint64_t{1} << 44;
  static constexpr uint64_t kPagesMin = 64;  // besides buffers
  static constexpr size_t kBuffers = 16;     // of a window each

  uint64_t page_bytes = kPageBytes;
  uint32_t handlers = 4;

  // The smallest budget there may be, and the smallest for a number of pages in place.
  uint64_t LeastBytes() const;
  uint64_t BytesFor(uint64_t pages) const;
  // The most pages that are fetched at once.
  uint64_t WindowPages(uint64_t budget_bytes) const;
  // How many pages may be in place beside sums for `sums_pages`; without a number, beside sums for just as many.
  uint64_t LimitPages(uint64_t budget_bytes) const;
  uint64_t LimitPages(uint64_t budget_bytes, uint64_t sums_pages) const;

 private:
  uint64_t ForPagesAndSums(uint64_t budget_bytes) const;
};

// Is told of each change of the budget, in order, by the thread that changes it. It must not change the budget itself.
using OnBudget = std::function<void(uint64_t old_bytes, uint64_t new_bytes)>;

// The present budget, which may change at any time, and the limits derived from it. Thread-safe.
class Budget {
 public:
  // `most_bytes`: the largest budget that the parts were made for. The parts must have been made for `bytes`.
  Budget(const BudgetShape& shape, uint64_t bytes, uint64_t most_bytes, Residency* residency, ChunkSums* sums,
         PageIn* page_in, Advice* advice, OnBudget on_change)
      : shape_(shape),
        most_bytes_(most_bytes),
        residency_(residency),
        sums_(sums),
        page_in_(page_in),
        advice_(advice),
        on_change_(std::move(on_change)),
        bytes_(bytes) {}

  // Returns at once. A smaller budget is reached when the evictor has written back and dropped the pages beyond it.
  // INVALID_ARGUMENT: out of range. FAILED_PRECONDITION: more than half would be pinned. Nothing has changed then.
  absl::Status Set(uint64_t bytes) { return Change(bytes, /*at_least_pins=*/false); }
  // The same, but no less than the pinned pages need.
  absl::Status SetBeyondPins(uint64_t bytes) { return Change(bytes, /*at_least_pins=*/true); }
  // The evictor calls it when no page is to be evicted. Gives back the memory that a smaller budget does not need. Does
  // not block.
  void AtRest();

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t shrank() const { return shrank_.load(std::memory_order_relaxed); }
  uint64_t grew() const { return grew_.load(std::memory_order_relaxed); }

 private:
  absl::Status Change(uint64_t bytes, bool at_least_pins);

  const BudgetShape shape_;
  const uint64_t most_bytes_;
  Residency* const residency_;
  ChunkSums* const sums_;
  PageIn* const page_in_;
  Advice* const advice_;
  const OnBudget on_change_;
  std::atomic<uint64_t> bytes_;
  std::atomic<uint64_t> shrank_{0};
  std::atomic<uint64_t> grew_{0};
  std::atomic<bool> trim_{false};  // AtRest has something to do
  Mutex mu_;                       // changes; held while on_change_ is called
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_BUDGET_H_
