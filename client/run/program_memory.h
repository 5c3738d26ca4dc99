#ifndef NRAM_CLIENT_RUN_PROGRAM_MEMORY_H_
#define NRAM_CLIENT_RUN_PROGRAM_MEMORY_H_

#include <linux/seccomp.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/run/engine.h"
#include "client/run/fault_threads.h"
#include "client/run/helper.h"
#include "client/run/page_views.h"
#include "client/run/task_space.h"

namespace nram {

// The memory of one program, from its execve(2) or fork(2) to the next execve or to its end. Carries out the effects of
// the program's calls on it. While all of its mappings fit the budget it only counts them. For one thread, the one that
// is told of the calls.
class ProgramMemory {
 public:
  // The answer to a call: the kernel makes it, or it has been made.
  struct Answer {
    bool go_on = true;
    int64_t result = 0;  // as the kernel's: -errno
  };

  ProgramMemory(const RunOptions& options, std::unique_ptr<Helper> helper, std::unique_ptr<PageViews::View> store,
                RunCounters* counters, RunEngine::OnFatal on_fatal);
  // The helper ends. The program may have ended, or executed another one.
  ~ProgramMemory();

  // Must be called first: data that begins as zeros may exceed the budget already.
  absl::Status Begin() { return Grow(0, /*look=*/true); }
  pid_t helper_pid() const { return helper_->pid(); }
  int helper_pidfd() const { return helper_->pidfd(); }
  bool armed() const { return engine_ != nullptr; }
  uint64_t remotable_bytes() const { return remotable_bytes_; }
  // Its end forgets its pages in the store.
  void GiveBackAtEnd() { gives_back_ = true; }
  // Whether the call may arm: all may not fit any more.
  bool MayArm(const seccomp_data& call) const;
  // A call of a thread that has this memory. Blocks as long as the call, and for pages that are under way. An error
  // means that the program cannot go on.
  absl::StatusOr<Answer> OnCall(pid_t thread, const seccomp_data& call);

  // fork(2) of armed memory. UNIMPLEMENTED: a child of this call could not be looked after, and why.
  absl::Status CheckFork(pid_t thread, const seccomp_data& call) const;
  // From here to EndFork faults wait, and no page is fetched or evicted. False: the program is to end. EndFork is due
  // in any case. `rseq`: where the kernel writes when the thread goes on (rseq(2)); 0: nowhere.
  bool BeginFork(const seccomp_data& call, uint64_t rseq);
  void EndFork();
  // Between them: the memory of the child that the kernel has made, which has not run yet. `helper`: the child's.
  absl::StatusOr<std::unique_ptr<ProgramMemory>> Fork(std::unique_ptr<Helper> helper, RunEngine::OnFatal on_fatal);

 private:
  using AnswerOr = absl::StatusOr<Answer>;

  // The most by which the call may increase the memory that might be remote.
  uint64_t GrowthOf(const seccomp_data& call) const;
  // The mappings grow by `bytes`: arms if not all of them fit. `look`: not only if the bound says so.
  absl::Status Grow(uint64_t bytes, bool look = false);
  absl::Status Arm();
  // A call that takes pages away must not be under way, in another thread, while the memory is armed. So the kernel is
  // left to make it only while there are no other threads.
  AnswerOr MakeUnarmed(const seccomp_data& call);
  AnswerOr OnMmap(pid_t thread, const seccomp_data& call);
  AnswerOr OnBrk(const seccomp_data& call);
  AnswerOr OnMunmap(const seccomp_data& call);
  AnswerOr OnMremap(const seccomp_data& call);
  AnswerOr OnMadvise(const seccomp_data& call);
  AnswerOr OnMlock(const seccomp_data& call);
  // Whether the kernel may make huge pages of the memory by itself.
  void AllowHugePages(bool allowed);
  // Advice on the memory that a child inherits.
  absl::Status OnForkAdvice(const seccomp_data& call);
  AnswerOr OnThreadWord(uint64_t address);
  // Pages with words of threads are unmapped, moved, or emptied in place.
  void ForgetPins(uint64_t begin, uint64_t end) { pins_.erase(pins_.lower_bound(begin), pins_.lower_bound(end)); }
  void MovePins(uint64_t begin, uint64_t end, uint64_t to);
  void PinAgain(uint64_t begin, uint64_t end);
  // The helper makes calls for the thread: the thread's limits of memory count for them.
  void TakeLimits(pid_t thread);
  // Or does not, for a while.
  void LiftLimits(bool lifted);
  // Has the helper make the call as it is.
  absl::StatusOr<int64_t> MakeCall(const seccomp_data& call);
  // mremap(2), of registered memory if `ours`: then it is advised MADV_RANDOM where it is afterwards.
  absl::StatusOr<int64_t> Remap(const seccomp_data& call, bool ours);
  // mmap(2), of a file of the thread's if there is one.
  absl::StatusOr<int64_t> MakeMmap(pid_t thread, const seccomp_data& call);
  // MADV_FREE, and then the freeing at once, which the kernel may do later.
  absl::StatusOr<int64_t> MakeFree(const seccomp_data& call);
  // A call that would have replaced mappings has failed: the former ones may be unmapped all the same.
  void Restore(const std::vector<HomeRange>& ranges);
  // Unlocks memory that is to be looked after: locked pages cannot be evicted.
  absl::Status Unlock(const std::vector<AddressRun>& runs);
  // Looks after memory that is new and empty.
  absl::Status AttachNew(uint64_t begin, uint64_t end);

  const RunOptions options_;
  const std::unique_ptr<Helper> helper_;
  const std::unique_ptr<PageViews::View> store_;
  RunCounters* const counters_;
  const RunEngine::OnFatal on_fatal_;
  uint64_t remotable_bytes_ = 0;       // while not armed: the most mapped bytes that might be remote
  std::array<rlimit, 3> limits_ = {};  // the helper's, as they were set last
  bool threaded_ = false;              // more than one thread has been begun
  bool locks_ = false;                 // some of it is locked (mlock)
  bool locks_future_ = false;          // later mappings, too
  bool gives_back_ = false;
  bool partly_inherited_ = false;  // a child would not inherit all as it is (MADV_DONTFORK, MADV_WIPEONFORK)
  bool advised_small_ = false;     // the same of memory that may not be remote as it is
  bool huge_pages_off_ = false;    // for the time of a fork
  // The end of the heap. Before arming: at least that, as far as it is in remotable_bytes_; 0: to be asked for.
  uint64_t brk_ = 0;
  std::set<uint64_t> pins_;  // pages that words of threads are in
  std::vector<std::byte> pin_buffer_;
  std::unique_ptr<TaskSpace> space_;
  std::unique_ptr<RunEngine> engine_;
  std::unique_ptr<FaultThreads> fault_threads_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_PROGRAM_MEMORY_H_
