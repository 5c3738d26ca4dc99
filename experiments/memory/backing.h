#ifndef NRAM_EXPERIMENTS_MEMORY_BACKING_H_
#define NRAM_EXPERIMENTS_MEMORY_BACKING_H_

// The source of a workload's memory, so that one workload runs on all: nram, ordinary anonymous memory (without huge
// pages, as nram has none), a shared mapping of a file, or the bare loop.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/memory/work.h"

namespace nram {

// Not thread-safe; its memory may be used by any number of threads.
class Backing {
 public:
  struct Memory {
    uint64_t* words = nullptr;  // the workload reads and writes here
    uint64_t* fill = nullptr;   // its first contents are written here: the same memory, except in the bare loop
  };

  static absl::StatusOr<std::unique_ptr<Backing>> Open(const WorkOptions& options);
  virtual ~Backing() = default;

  // Returns memory of zeros that lives as long as this object. The bare loop has only one such memory.
  virtual absl::StatusOr<Memory> Map(uint64_t bytes) = 0;
  // Ends the filling of `memory`: writes its contents to where they are kept, so that no timed part has to.
  virtual absl::Status Settle(const Memory& memory, uint64_t bytes) { return absl::OkStatus(); }
  // Whether written data can be read again.
  virtual bool keeps_writes() const { return true; }
  virtual nram_stats Stats() const { return {}; }
};

}  // namespace nram

#endif  // NRAM_EXPERIMENTS_MEMORY_BACKING_H_
