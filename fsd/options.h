#ifndef NRAM_FSD_OPTIONS_H_
#define NRAM_FSD_OPTIONS_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/args.h"
#include "base/spin.h"
#include "base/wake_latency.h"

namespace nram {

enum class Backend { kPool, kMemory, kNull };

struct FsdOptions {
  std::string directory;
  std::string pool;  // "": as commands find it
  Backend backend = Backend::kPool;
  uint64_t size_bytes = 0;  // 0: as much as the store has
  uint64_t inodes = 0;      // 0: one for every two pages of this machine's RAM, as tmpfs has it
  bool gc = true;
  bool writeback = true;
  bool nonempty = false;
  bool foreground = false;
  bool allow_other = geteuid() == 0;  // others must ask for it, and /etc/fuse.conf must allow it
  bool read_only = false;
  bool swap = false;         // the files hold swap: see hang_proof.h
  bool unprotected = false;  // likewise
  int64_t threads = 16;
  uint64_t readahead_bytes = 4 << 20;
  int64_t io_timeout_ms = 10'000;
  mode_t mode = 0;  // of the root directory; 0: 1777 for root as /tmp, else 0755
  std::string log_file;
  std::string pid_file;                    // written when it is mounted, removed at the end
  std::vector<std::string> mount_options;  // handed on to the kernel
  bool directory_access_times = true;      // false: nodiratime, which libfuse does not know
  // The mount's leading thread: a server on this machine or a fast network answers by then. Not with swap: its threads
  // are real-time ones and would keep those from working whom they serve.
  SpinOptions spin{.limit_us = 20};
  FastWake fast_wake = FastWake::kAuto;

  absl::Status Validate() const;
  // A flag for each field. `options` must outlive the parser.
  static void Register(FsdOptions* options, ArgParser* parser);
  // As mount(8) calls its helpers: SOURCE DIR [-sfnv] [-o OPTIONS]. SOURCE is the pool ("nram" and "none": as commands
  // find it); OPTIONS are the flags without dashes, and the kernel's own.
  static absl::StatusOr<FsdOptions> ParseMountHelper(const std::vector<std::string>& args);
  static const char* Help();

 private:
  // One of those that come after -o and are no flags.
  void AddMountOption(absl::string_view option);
};

// How a daemon names itself to the servers, for people and for `nram swaps`: pids alone are the same on many machines.
std::string OwnerName(const std::string& what, const std::string& directory, int pid);

// What ends a daemon of `--swap`, which no other signal does: `nram swapoff` sends it when the kernel does not have the
// area any more.
inline constexpr int kSwapEndSignal = SIGUSR2;

}  // namespace nram

#endif  // NRAM_FSD_OPTIONS_H_
