#ifndef NRAM_CLIENT_RUN_FAULT_THREADS_H_
#define NRAM_CLIENT_RUN_FAULT_THREADS_H_

#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fd.h"
#include "client/run/engine.h"
#include "client/run/task_space.h"

namespace nram {

// Threads that hand a program's faults to an engine. Both outlive them.
class FaultThreads {
 public:
  static absl::StatusOr<std::unique_ptr<FaultThreads>> Start(int count, uint64_t window_pages, TaskSpace* space,
                                                             RunEngine* engine);
  // Ends them, after the faults that they have in hand.
  ~FaultThreads();

 private:
  FaultThreads(TaskSpace* space, RunEngine* engine, UniqueFd stop)
      : space_(space), engine_(engine), stop_(std::move(stop)) {}
  void Run(uint64_t window_pages);

  TaskSpace* const space_;
  RunEngine* const engine_;
  const UniqueFd stop_;
  std::vector<std::thread> threads_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_FAULT_THREADS_H_
