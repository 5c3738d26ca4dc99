#ifndef NRAM_MEMSERVER_OPTIONS_H_
#define NRAM_MEMSERVER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/args.h"
#include "base/spin.h"
#include "base/units.h"

namespace nram {

inline constexpr int kDefaultControlPort = 7070;

struct MemServerOptions {
  static constexpr uint64_t kDonateMinBytes = 64 * kMiB;

  uint64_t donate_bytes = 0;   // ceiling on everything the server takes; ignored when donate_auto
  bool donate_auto = false;    // what the host has available, less the reserve, looked at again every second
  uint64_t reserve_bytes = 0;  // left to the host in any case; 0: a tenth of its RAM, at least 1 GiB
  std::string listen = "127.0.0.1";
  int port = kDefaultControlPort;  // control; 0: the kernel chooses
  int data_port = -1;              // -1: the one after `port`, or the kernel's choice when that is 0
  std::string socket_path;         // control there, data at this path with ".data" appended; empty: none
  bool allow_unauthenticated = false;
  int64_t lease_ttl_ms = 10'000;
  int workers_per_class = 0;  // 0: one per processor, at most 8
  int connections_max = 512;
  int oom_score_adj = 500;
  bool drain = false;
  SpinOptions spin;
  // What the process takes before it holds anything; measured unless a test, whose process is no server's, says
  // otherwise.
  int64_t baseline_bytes_for_test = -1;
  std::string ready_file;  // written with the ports once it serves

  // INVALID_ARGUMENT names the field's flag and the accepted range.
  absl::Status Validate() const;
  // Registers a flag for each field. `options` must outlive the parser.
  static void Register(MemServerOptions* options, ArgParser* parser);
  static const char* Help();
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_OPTIONS_H_
