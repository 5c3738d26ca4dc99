#ifndef NRAM_MEMSERVER_OPTIONS_H_
#define NRAM_MEMSERVER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/args.h"
#include "base/spin.h"
#include "base/units.h"
#include "memserver/give_back.h"

namespace nram {

inline constexpr int kDefaultControlPort = 7070;

struct MemServerOptions {
  static constexpr uint64_t kDonateMinBytes = 64 * kMiB;
  static constexpr size_t kNameBytesMax = 63;  // of a domain or a pretended host
  static constexpr char kNoTcp[] = "none";

  uint64_t donate_bytes = 0;        // the ceiling on everything the server takes; ignored if donate_auto
  bool donate_auto = false;         // donate the host's available memory, less the host reserve; follows it
  uint64_t auto_floor_bytes = 0;    // with donate_auto: never asks for less than this to be left, nor takes more than
  uint64_t auto_ceiling_bytes = 0;  // this (0: no bound)
  // None: as donate implies, pressure with auto and else off.
  std::optional<GiveBackOptions::Mode> give_back;
  bool drops_orphans = false;        // they may be destroyed when nothing else gives the donor memory
  int64_t leave_within_ms = 0;       // after a signal to end, the time to move the stored pages
  uint64_t reserve_bytes = 0;        // the host reserve; 0: a tenth of the host's RAM, at least 1 GiB
  std::string listen = "127.0.0.1";  // numeric; kNoTcp: on Unix sockets alone
  int port = kDefaultControlPort;    // control; 0: the kernel chooses
  bool has_port_flag = false;        // --port or --listen=HOST:PORT was given
  int data_port = -1;                // -1: the one after `port`, or the kernel's choice if `port` is 0
  std::string socket_path;           // of control's socket; the data socket has ".data" appended; empty: none
  std::string tls_dir;               // certificates; empty: none
  std::string access_file;           // the rules of access; empty: the usual ones
  bool allow_unauthenticated = false;
  std::string domain;          // the hosts that may fail together, a rack; empty: the host alone
  std::string pretended_host;  // the host that the server counts as for copies; empty: the true one
  int64_t lease_ttl_ms = 10'000;
  int workers_per_class = 0;  // 0: one per processor, at most 8
  int connections_max = 512;
  int oom_score_adj = 500;
  bool drain = false;
  bool spills_to_swap = false;  // the last step of giving memory back (memserver/spill.h)
  SpinOptions spin;
  // The memory of the process before it stores anything. -1: measured. A test's process is no server's, so tests say.
  int64_t baseline_bytes_for_test = -1;
  // The server holds the process to its ceiling. Only for a server that has a process of its own.
  bool watches_resident = false;
  std::string metrics;       // the address where Prometheus scrapes figures; empty: none
  std::string register_at;   // etcd:HOST[:PORT],.../NAME; empty: nowhere
  std::string advertise;     // HOST[:PORT], by which clients reach the control port; empty: `listen` and the port
  std::string etcd_tls_dir;  // certificates for etcd; empty: the usual ones (EtcdTlsDir)
  std::string ready_file;    // the ports are written there when the server serves

  GiveBackOptions::Mode GiveBackMode() const;
  // INVALID_ARGUMENT names the field's flag and the accepted range.
  absl::Status Validate() const;
  absl::Status CheckRegistration() const;
  // Registers a flag for each field. `options` must outlive the parser.
  static void Register(MemServerOptions* options, ArgParser* parser);
  static const char* Help();
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_OPTIONS_H_
