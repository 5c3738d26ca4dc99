#ifndef NRAM_FSD_OPTIONS_H_
#define NRAM_FSD_OPTIONS_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/args.h"
#include "base/host/wake_latency.h"
#include "base/spin.h"

namespace nram {

enum class Backend { kPool, kMemory, kNull };

struct FsdOptions {
  std::string directory;
  std::string pool;  // "": the one that commands find
  Backend backend = Backend::kPool;
  uint64_t size_bytes = 0;    // 0: as much as the store has
  uint64_t memory_bytes = 0;  // of the daemon's own memory; 0: half of this machine's, or of its cgroup's limit
  uint64_t inodes = 0;        // 0: one for every two pages of this machine's RAM, as tmpfs has it
  bool gc = true;
  int64_t copies = 1;               // of each page, on servers of different hosts: 1 to 4
  std::optional<bool> seal;         // empty: $NRAM_SEAL, else where some server is another machine's, and for swap
  uint64_t repair_bytes_per_s = 0;  // 0: a quarter of the time; UINT64_MAX: without a bound
  bool expendable = false;          // servers may destroy the files when nothing else gives their hosts memory
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
  std::string metrics;                     // the address where Prometheus scrapes figures; empty: none
  std::string pid_file;                    // written when it is mounted, removed at the end
  std::vector<std::string> mount_options;  // for the kernel
  bool directory_access_times = true;      // false: nodiratime; libfuse does not know that
  // How long the mount's leading thread polls: a server on this machine or a fast network answers by then. It never
  // polls with swap: its threads are real-time ones and would keep the programs from working that they serve.
  SpinOptions spin{.limit_us = 20};
  FastWake fast_wake = FastWake::kAuto;

  absl::Status Validate() const;
  // The least that --memory may be: the requests' buffers, and as much again for the rest of the daemon.
  uint64_t LeastMemoryBytes() const;
  // A flag for each field. `options` must outlive the parser.
  static void Register(FsdOptions* options, ArgParser* parser);
  // Parses what mount(8) hands to its helpers: SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]. SOURCE is the
  // pool ("nram" and "none": the one that commands find). OPTIONS are the flags without dashes, and the kernel's own.
  static absl::StatusOr<FsdOptions> ParseMountHelper(const std::vector<std::string>& args);
  static const char* Help();

 private:
  // Takes a word after -o that is no flag.
  void AddMountOption(absl::string_view option);
};

// The name that a daemon gives itself at the servers, for people and for `nram swaps`. A pid alone is not unique among
// machines.
std::string ClientName(const std::string& what, const std::string& directory, int pid);

// The one signal that ends a daemon of `--swap`: `nram swapoff` sends it when the kernel does not have the area any
// more.
inline constexpr int kSwapEndSignal = SIGUSR2;

}  // namespace nram

#endif  // NRAM_FSD_OPTIONS_H_
