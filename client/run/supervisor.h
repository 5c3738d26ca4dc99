#ifndef NRAM_CLIENT_RUN_SUPERVISOR_H_
#define NRAM_CLIENT_RUN_SUPERVISOR_H_

#include <linux/seccomp.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/sync.h"
#include "client/run/engine.h"
#include "client/run/page_store.h"
#include "client/run/program_memory.h"

namespace nram {

// How a program has ended.
struct RunEnd {
  int code = 0;
  int signal = 0;  // that ended it; 0: it exited
};

struct RunReport {
  bool begun = false;  // it was executed
  bool armed = false;  // its mappings have outgrown the budget
  uint64_t refused_forks = 0;
  uint64_t refused_hidings = 0;  // of its memory, from this process (PR_SET_DUMPABLE)
  uint64_t children = 0;         // processes that it has begun; they are local
  uint64_t local_programs = 0;   // that it has executed itself, and that cannot be looked after
};

// Runs one program with its memory within a budget. One at a time in a process. All calls are for the thread that calls
// Start, which must be the process' first one, and be alone then.
class Supervisor {
 public:
  // `path`: of the program; `words`: its arguments, with its name.
  Supervisor(std::string path, std::vector<std::string> words, const RunOptions& options, RunCounters* counters);
  // Kills the program if it has not ended.
  ~Supervisor();

  // Makes the program's process, which waits for Run. Signals to this process go to the program from here on.
  absl::Status Start();
  // Executes the program and returns when it, and all processes that it has left, have ended. `store` outlives this
  // object. NOT_FOUND, PERMISSION_DENIED and so on: it could not be executed. Other errors: what it needed could not be
  // had, and it has been killed.
  absl::StatusOr<RunEnd> Run(PageStore* store);

  const RunReport& report() const { return report_; }

 private:
  [[noreturn]] void BeTheProgram(int status_fd, int go_fd) const;
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Failure() ABSL_LOCKS_EXCLUDED(mu_);
  void Kill() const;

  void OnSignal();
  void Reap();
  void OnStopped(pid_t pid, int status);
  void OnExecuted(pid_t pid);
  absl::Status LookAfter(pid_t pid);

  void OnNotification();
  void AnswerCall(const seccomp_notif& told, bool own);
  // Those that came while a thread was forking: all of them, or those that have waited for too long.
  void AnswerHeld();
  void RefuseLateHeld();
  // Of a call of the program's own.
  absl::StatusOr<ProgramMemory::Answer> OnCall(pid_t thread, const seccomp_data& call);
  bool IsProgram(pid_t thread) const;
  // Whether a thread has the program's memory. Nothing: the kernel does not say.
  std::optional<bool> SharesMemory(pid_t thread) const;
  // Whether a call that was told is to be dealt with; else it is local. An error: that is not known, while the memory
  // is armed.
  absl::StatusOr<bool> IsOwn(const seccomp_notif& told) const;
  void Answer(uint64_t id, const ProgramMemory::Answer& answer) const;
  ProgramMemory::Answer OnFork(pid_t thread);
  // prctl(PR_SET_DUMPABLE).
  ProgramMemory::Answer OnDumpable(const seccomp_data& call);
  // Whether a thread that has stopped at a call is at the end of its fork(2), for good or bad.
  bool HasForked(pid_t thread) const;
  void OnForked(pid_t thread);

  const std::string path_;
  const std::vector<std::string> words_;
  const RunOptions options_;
  RunCounters* const counters_;
  PageStore* store_ = nullptr;
  RunReport report_;

  pid_t program_ = -1;
  std::optional<RunEnd> end_;
  std::set<pid_t> traced_;  // threads
  std::set<pid_t> forks_;   // of those, the ones whose fork(2) is under way
  struct Held {
    seccomp_notif told;
    int64_t until_ns;
  };
  std::vector<Held> held_;  // calls that wait for its end
  sigset_t old_mask_ = {};
  UniqueFd pidfd_;     // the program's
  UniqueFd go_;        // the program's process waits for a byte
  UniqueFd listener_;  // of its calls
  UniqueFd signals_;
  std::unique_ptr<ProgramMemory> memory_;

  Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_SUPERVISOR_H_
