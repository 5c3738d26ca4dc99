#ifndef NRAM_EXPERIMENTS_MEMORY_BARE_FAULT_H_
#define NRAM_EXPERIMENTS_MEMORY_BARE_FAULT_H_

// The reference for faults: userfaultfd with nothing behind it. A handler thread reads a fault and copies a batch of
// pages from a local buffer that holds the data. When the budget is used up, it drops the oldest batches. There is no
// network, no index and no lock. Written pages are dropped too: nothing is written back.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mapping.h"

namespace nram {

struct BareFaultOptions {
  uint64_t bytes = 0;
  uint64_t budget_bytes = 0;  // in place at a time, at most
  uint64_t batch_pages = 16;  // that answer a fault
  int handlers = 1;           // each has an equal part of the memory and of the budget, and a userfaultfd of its own
};

class BareFault {
 public:
  // INVALID_ARGUMENT: the memory cannot be divided into the options' number of parts of whole batches, or a part's
  // budget is less than two batches. Others: as userfaultfd's.
  static absl::StatusOr<std::unique_ptr<BareFault>> Start(const BareFaultOptions& options);
  // No thread may touch data() any more.
  ~BareFault();

  // Ordinary memory. Write the data here before any access to data().
  std::byte* source() const { return source_.data(); }
  // The same contents, through faults.
  std::byte* data() const { return data_.data(); }
  // Faults answered so far, without those for a batch that was on its way.
  uint64_t faults() const;

 private:
  class Part;
  BareFault();

  Mapping source_;
  Mapping data_;  // a page more for each part, whose fault ends the part's handler
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace nram

#endif  // NRAM_EXPERIMENTS_MEMORY_BARE_FAULT_H_
