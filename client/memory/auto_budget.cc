#include "client/memory/auto_budget.h"

#include <errno.h>
#include <glog/logging.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/signals.h"
#include "base/status.h"

namespace nram {

absl::StatusOr<std::unique_ptr<AutoBudget>> AutoBudget::New(uint64_t floor_bytes, uint64_t ceiling_bytes) {
  auto budget = std::unique_ptr<AutoBudget>(new AutoBudget(floor_bytes, ceiling_bytes));
  NRAM_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  budget->stop_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!budget->stop_fd_.valid()) return ErrnoStatus(errno, "eventfd");
  MutexLock lock(&budget->mu_);
  budget->first_bytes_ =
      budget->balance_.Update({MonotonicNs(), memory.total_bytes, memory.available_bytes, /*own_bytes=*/0});
  return budget;
}

AutoBudget::~AutoBudget() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  PCHECK(write(stop_fd_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void AutoBudget::Start(Held held, Apply apply) {
  held_ = std::move(held);
  apply_ = std::move(apply);
  trigger_ = PressureTrigger::Open();
  const SignalsBlocked quiet;
  thread_ = std::thread([this] { Run(); });
}

void AutoBudget::SetCeiling(uint64_t bytes) {
  MutexLock lock(&mu_);
  balance_.SetBounds(floor_bytes_, bytes);
  apply_(balance_.answer_bytes());
}

void AutoBudget::Run() {
  pthread_setname_np(pthread_self(), "nram-budget");
  while (true) {
    const int64_t next_ns = Look();
    (void)trigger_.WaitUntil(stop_fd_.get(), next_ns);
    pollfd stop = {stop_fd_.get(), POLLIN, 0};
    if (poll(&stop, 1, 0) > 0) return;
  }
}

int64_t AutoBudget::Look() {
  // Memory that the caller frees between the readings must not look like memory that others took.
  const uint64_t held_before = held_();
  const absl::StatusOr<HostMemory> memory = ReadHostMemory();
  uint64_t held = std::max(held_before, held_());
  // Pages that the kernel has swapped out take no memory: there was not enough for them. The program's own pages may be
  // among them, so only the part of `held` that the anonymous memory cannot hold counts as swapped out.
  const ProcessMemory process = ReadProcessMemory();
  held -= std::min(process.swapped_bytes, held - std::min(held, process.anonymous_bytes));
  const int64_t now_ns = MonotonicNs();
  const double stalled = meter_.Share(ReadMemoryStalls(), now_ns);
  MutexLock lock(&mu_);
  // A missing /proc says nothing of the memory.
  if (memory.ok()) {
    apply_(balance_.Update({now_ns, memory->total_bytes, memory->available_bytes, held, stalled}));
    return balance_.NextLook();
  }
  return now_ns + kNsPerSecond;
}

}  // namespace nram
