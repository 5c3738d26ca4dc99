#ifndef NRAM_BASE_SUBPROCESS_H_
#define NRAM_BASE_SUBPROCESS_H_

// Child processes: a program, or a function of this one. Some forks of this tree are not for this class, and each says
// why beside it: they must need little memory, must leave their parent, or are the subject of a test.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"

namespace nram {

// The words of a command line as execv(2) takes them. The words must outlive it, unchanged.
class Argv {
 public:
  explicit Argv(const std::vector<std::string>& words) {
    for (const std::string& word : words) pointers_.push_back(const_cast<char*>(word.c_str()));
    pointers_.push_back(nullptr);
  }
  char* const* get() const { return pointers_.data(); }

 private:
  std::vector<char*> pointers_;
};

struct SubprocessOptions {
  // Borrowed descriptors that the child gets as its standard streams; -1: the parent's stream. None may be 0, 1 or 2.
  int in = -1;
  int out = -1;
  int err = -1;
  bool close_others = false;  // the child keeps its standard streams and no other descriptor
  bool new_session = false;   // signals of the parent's terminal, such as Ctrl-C, do not reach the child
  int death_signal = 0;       // the child gets it when the thread that started it ends; 0: none
  int processor = -1;         // the only processor that the child runs on; -1: the parent's
};

// Owns one child. Move-only. For one thread at a time; a Subprocess may be handed to another thread, but death_signal
// stays with the thread that started it. The process must leave SIGCHLD at its default, and no other code may wait for
// the child.
class Subprocess {
 public:
  static constexpr int64_t kNoDeadline = INT64_MAX;
  static constexpr int kCannotRun = 127;  // the exit code of a child whose program could not be executed

  struct Ended {
    int code = 0;    // if it exited
    int signal = 0;  // that ended it; 0: it exited
    bool ok() const { return code == 0 && signal == 0; }
  };

  // Executes words[0], which is looked for in $PATH if it has no slash. Does not wait for the program to start. An
  // error is fork's: there is no child then.
  static absl::StatusOr<Subprocess> Start(const std::vector<std::string>& words, const SubprocessOptions& options = {});
  // The child runs the function and exits with its result, without destructors, handlers of exit(3) or flushing
  // streams. Where this process has other threads, the function may call only what signal-safety(7) lists. The child
  // has a copy of this process's buffered streams: flush them first.
  static absl::StatusOr<Subprocess> StartFunction(absl::FunctionRef<int()> run, const SubprocessOptions& options = {});

  Subprocess() = default;
  Subprocess(Subprocess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), ended_(other.ended_) {}
  Subprocess& operator=(Subprocess&& other) noexcept;
  // Kills a child that has not ended, and waits for it.
  ~Subprocess() { Kill(); }

  // -1: there is no child (default, moved from, released).
  pid_t pid() const { return pid_; }

  // Borrowed; poll(2) reports it readable once the child has ended. -1: none (before Linux 5.3).
  int end_fd() const { return pidfd_.get(); }

  // Blocks until the child has ended and says how, or nothing after `deadline_ns` on the monotonic clock (0: looks
  // once; kNoDeadline: for a program that people end). Once it has ended, each call returns the same at once.
  std::optional<Ended> WaitUntil(int64_t deadline_ns);
  // Does nothing if WaitUntil has seen its end.
  void Signal(int number) const;
  // SIGKILL, if it has not ended, and waits until it has.
  void Kill();
  // Gives the child up without ending it. The owner of the number may wait for it with waitpid(2).
  pid_t Release();

 private:
  explicit Subprocess(pid_t pid);

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<Ended> ended_;
};

// Any process, for poll(2): readable once it has ended, and its number then cannot mean another one. Not valid if there
// is no such process, or before Linux 5.3.
UniqueFd OpenProcess(pid_t pid);

// Waits until the process of this descriptor has ended; false if it has not at `deadline_ns`.
bool AwaitEnd(int process, int64_t deadline_ns);

// The end of a program, and its standard error: at most the first 64 KiB, without white space at the end.
struct HeardProgram {
  Subprocess::Ended ended;
  std::string said;
};

// Runs a program to its end, with its standard output discarded. DEADLINE_EXCEEDED: it was killed. The call does not
// wait for children that the program leaves behind.
absl::StatusOr<HeardProgram> HearProgram(const std::vector<std::string>& words, int64_t deadline_ns);

// The same. FAILED_PRECONDITION: the program failed, and the message is its standard error.
absl::Status RunProgram(const std::vector<std::string>& words, int64_t deadline_ns);

}  // namespace nram

#endif  // NRAM_BASE_SUBPROCESS_H_
