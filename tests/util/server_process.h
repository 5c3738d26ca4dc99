#ifndef NRAM_TESTS_UTIL_SERVER_PROCESS_H_
#define NRAM_TESTS_UTIL_SERVER_PROCESS_H_

// A memory server as a process of its own that the test can stop: then it exists and answers nothing, on neither plane.

#include <glog/logging.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/subprocess.h"
#include "base/units.h"
#include "memserver/mem_server.h"
#include "tests/util/freeze.h"

namespace nram {

// Ends with its owner. Leases last a minute, so that they outlive a stop of a test's length.
class ServerProcess {
 public:
  // Call it while this process has no other threads.
  ServerProcess() {
    int ends[2];
    PCHECK(pipe(ends) == 0);
    SubprocessOptions how;
    how.death_signal = SIGKILL;
    auto child = Subprocess::StartFunction([&] { return Serve(ends[1]); }, how);
    CHECK(child.ok()) << child.status();
    process_ = *std::move(child);
    close(ends[1]);
    PCHECK(read(ends[0], &port_, sizeof(port_)) == sizeof(port_));
    close(ends[0]);
  }
  void Freeze() { FreezeProcess(process_.pid()); }
  void Thaw() { process_.Signal(SIGCONT); }
  int port() const { return port_; }

 private:
  // Says its port through `said`; does not return.
  static int Serve(int said) {
    MemServerOptions options;
    options.donate_bytes = 256 * kMiB;
    options.port = options.data_port = 0;
    options.workers_per_class = 1;
    options.lease_ttl_ms = 60'000;
    auto server = MemServer::Start(options, Clock::Real());
    const int port = server.ok() ? (*server)->control_port() : 0;
    PCHECK(write(said, &port, sizeof(port)) == sizeof(port));
    while (true) pause();
  }

  Subprocess process_;
  int port_ = 0;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_SERVER_PROCESS_H_
