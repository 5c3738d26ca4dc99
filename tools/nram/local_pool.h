#ifndef NRAM_TOOLS_NRAM_LOCAL_POOL_H_
#define NRAM_TOOLS_NRAM_LOCAL_POOL_H_

// A pool on this machine, as `nram up` starts it: memory servers as processes of their own, and a directory with the
// files that are needed to find and end them: pool (the host file), N.pid, N.log, N.socket. The servers listen on the
// sockets alone, where the kernel names the caller, so that other users are refused.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

struct LocalServer {
  int number = 0;
  pid_t pid = 0;
  uint64_t start_time = 0;  // of the process, in clock ticks since boot: a pid may be used again
  std::string socket;       // of control
  int control_port = 0;     // 0: only the socket
  // As a host file has it.
  std::string Address() const;
};

struct LocalPoolOptions {
  std::string directory;
  int servers = 2;
  std::vector<std::string> server_flags;  // for each server
  std::string tls_dir = "none";           // certificates, for TCP
  bool tcp = false;                       // on loopback as well: for tests that put relays in between
  bool pretend_hosts = false;             // each server counts as a machine of its own
  bool die_with_parent = false;           // for benchmarks and tests
  int processor = -1;                     // pin the servers to it; -1: do not
  int64_t timeout_ms = 10'000;
  const std::atomic<bool>* interrupted = nullptr;  // once true, the start is undone; may be null
};

// Starts the servers and waits until all serve. If one does not, ends all of them; the message has the end of its log.
// ALREADY_EXISTS: a pool is running there. CANCELLED: it was interrupted; no server and no file is left.
absl::StatusOr<std::vector<LocalServer>> StartLocalPool(const LocalPoolOptions& options);

// The servers that run there now.
std::vector<LocalServer> FindLocalPool(const std::string& directory);

// Ends the servers by SIGTERM, and by SIGKILL those that still run after `timeout_ms`. Removes the files. Returns how
// many servers ran.
absl::StatusOr<int> StopLocalPool(const std::string& directory, int64_t timeout_ms);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_LOCAL_POOL_H_
