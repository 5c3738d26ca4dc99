#ifndef NRAM_TOOLS_BENCH_MEMORY_BACKING_H_
#define NRAM_TOOLS_BENCH_MEMORY_BACKING_H_

// Where a workload's memory comes from, so that one workload runs on all: nram, ordinary anonymous memory (without huge
// pages, as nram has none), a shared mapping of a file, or the bare loop.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/memory/work.h"

namespace nram {

// Not thread-safe; the memory is.
class Backing {
 public:
  struct Memory {
    uint64_t* words = nullptr;  // what the workload reads and writes
    uint64_t* fill = nullptr;   // where its contents are written at first: the same, but in the bare loop
  };

  static absl::StatusOr<std::unique_ptr<Backing>> Open(const WorkOptions& options);
  virtual ~Backing() = default;

  // Memory of zeros that lives as long as this does. The bare loop has one only.
  virtual absl::StatusOr<Memory> Map(uint64_t bytes) = 0;
  // Ends the filling of `memory`: what was written to it is where it is kept, so that no timed part has to.
  virtual absl::Status Settle(const Memory& memory, uint64_t bytes) { return absl::OkStatus(); }
  // Whether what is written may be read again.
  virtual bool keeps_writes() const { return true; }
  virtual nram_stats Stats() const { return {}; }
};

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_MEMORY_BACKING_H_
