#ifndef NRAM_CLIENT_RUN_SUPERVISOR_H_
#define NRAM_CLIENT_RUN_SUPERVISOR_H_

#include <linux/seccomp.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/sync.h"
#include "client/run/engine.h"
#include "client/run/group_witness.h"
#include "client/run/page_store.h"
#include "client/run/page_views.h"
#include "client/run/program_memory.h"
#include "client/run/untraced_start.h"

namespace nram {

// How a program has ended.
struct RunEnd {
  int code = 0;
  int signal = 0;  // that ended it; 0: it exited
};

struct RunReport {
  bool begun = false;    // it was executed
  bool refused = false;  // the kernel does not execute it
  bool armed = false;    // its mappings have outgrown the budget
  uint64_t refused_forks = 0;
  uint64_t refused_hidings = 0;  // of its memory, from this process (PR_SET_DUMPABLE)
  uint64_t children = 0;         // processes that have been forked; they are local
  uint64_t armed_children = 0;   // children of programs that had outgrown the budget: they have remote memory, too
  uint64_t local_programs = 0;   // that it has executed itself, and that cannot be looked after
};

// Runs one program with its memory within a budget, and so each process that it forks once it has outgrown it. One at a
// time in a process. All calls are for the thread that calls Start, which must be the process' first one, and be alone
// then.
class Supervisor {
 public:
  // `path`: of the program; `words`: its arguments, with its name.
  Supervisor(std::string path, std::vector<std::string> words, const RunOptions& options, RunCounters* counters);
  // Kills the program if it has not ended.
  ~Supervisor();

  // Makes the program's process, which waits for Run. Signals to this process are passed on to the program from here
  // on. `library`: of the start (UntracedStart), where programs may not be traced; empty: this one is traced, and its
  // forks and the programs that it executes are looked after, too.
  absl::Status Start(const std::string& library = "");
  // Executes the program and returns when it, and all its remaining processes, have ended. `store` outlives this
  // object. Errors: the kernel did not execute it (report().refused), and the text says why; or a resource for it was
  // lacking, and it has been killed.
  absl::StatusOr<RunEnd> Run(PageStore* store);

  const RunReport& report() const { return report_; }

 private:
  // Memory that is looked after, and the process that it belongs to.
  struct Owner {
    ProgramMemory* memory = nullptr;  // null: the memory is local
    pid_t process = -1;
  };
  // A process that was forked and has memory that is looked after.
  struct Child {
    pid_t pid = -1;
    UniqueFd pidfd;
    std::unique_ptr<ProgramMemory> memory;
  };
  // A fork(2) that is under way.
  struct Fork {
    bool armed = false;
    bool ready = false;  // a child of its will be traced
    uint64_t rseq = 0;   // once it is: the thread's word of restartable sequences (rseq(2)); 0: it has none
  };
  struct Held {
    seccomp_notif told;
    int64_t until_ns;
  };

  [[noreturn]] void BeTheProgram(int status_fd, int go_fd) const;
  absl::Status TakeListener(int status_fd);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Failure() ABSL_LOCKS_EXCLUDED(mu_);
  void Kill() const;

  // Waits for work.
  absl::Status Await();
  void OnSignal();
  void Reap();
  void OnStopped(pid_t pid, int status);
  void OnExecuted(pid_t pid);
  absl::Status LookAfter(pid_t pid);
  // `early`: the calls of threads that were told before there was a helper.
  using EarlyCall = std::pair<pid_t, seccomp_data>;
  absl::Status LookAfter(std::unique_ptr<Helper> helper, const std::vector<EarlyCall>& early);

  void OnNotification();
  void AnswerCall(const seccomp_notif& told, const Owner& owner);
  // Those that came while a thread was forking: all of them, or those that have waited for too long.
  void AnswerHeld();
  void RefuseLateHeld();
  // Of a call of memory that is looked after. Nothing: it has been answered already.
  absl::StatusOr<std::optional<ProgramMemory::Answer>> OnCall(const seccomp_notif& told, const Owner& owner);
  // The owner of the memory of the thread that made the call. An error: that is not known, while memory is armed.
  absl::StatusOr<Owner> OwnerOf(const seccomp_notif& told);
  void Answer(uint64_t id, const ProgramMemory::Answer& answer) const;

  // Forks.
  std::optional<ProgramMemory::Answer> OnFork(const seccomp_notif& told, const Owner& owner);
  ProgramMemory::Answer RefuseFork(absl::string_view why);
  // Lets a thread of armed memory fork, and looks after the child.
  void ForkArmed(const seccomp_notif& told, const Owner& owner);
  absl::Status AdoptChild(ProgramMemory* parent, pid_t pid);
  // A child that could not be looked after, or cannot any more.
  void KillChild(pid_t pid, int pidfd, const absl::Status& status) const;
  // Its memory has ended.
  void EndChild(std::list<Child>::iterator child);
  void EndChildren();
  // prctl(PR_SET_DUMPABLE).
  ProgramMemory::Answer OnDumpable(const seccomp_data& call);
  // A thread that is to fork armed memory has stopped: from now on its forks stop, too.
  void PrepareFork(pid_t thread, Fork* fork);
  // Whether a thread that has stopped at a call is at the end of its fork(2), for good or bad.
  bool HasForked(pid_t thread) const;
  void OnForked(pid_t thread);
  void EndTracedFork(pid_t thread);

  // Of a thread that forks armed memory. If this process ends in between, so do both.
  static constexpr int kForkOptions = PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL |
                                      PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
  static bool IsThreadOf(pid_t process, pid_t thread);

  // Of a program that is not traced.
  // A call is told: the library may have reported, or the program have executed another one. The answer, if it has one
  // already.
  std::optional<ProgramMemory::Answer> OnCallUntraced(const seccomp_notif& told);
  // One that is told before the library has reported.
  std::optional<ProgramMemory::Answer> OnEarlyCall(const seccomp_notif& told);
  void OnExecutedUntraced();
  // The library must have reported by now.
  void CheckStarted();
  static void SayNotStarted();

  const std::string path_;
  const std::vector<std::string> words_;
  const RunOptions options_;
  RunCounters* const counters_;
  std::unique_ptr<PageViews> views_;
  RunReport report_;

  pid_t program_ = -1;
  std::optional<RunEnd> end_;
  bool ended_ = false;           // all processes
  std::set<pid_t> traced_;       // threads
  std::map<pid_t, Fork> forks_;  // of those, the ones whose fork(2) is under way
  std::list<Child> children_;
  std::vector<Held> held_;  // calls that wait for its end
  sigset_t old_mask_ = {};
  UniqueFd pidfd_;     // the program's
  UniqueFd go_;        // the program's process waits for a byte
  UniqueFd status_;    // it says there that it could not be executed
  UniqueFd listener_;  // of its calls
  UniqueFd signals_;
  GroupWitness witness_;
  std::unique_ptr<ProgramMemory> memory_;

  bool traces_ = true;
  std::unique_ptr<UntracedStart> start_;  // until the library has reported
  int64_t start_until_ns_ = 0;            // it has until then
  std::vector<EarlyCall> early_;          // calls that tell of threads and locks
  std::set<pid_t> executing_;             // threads that may be executing another program

  Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_SUPERVISOR_H_
