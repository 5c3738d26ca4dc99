#ifndef NRAM_CLIENT_POOL_OPTIONS_H_
#define NRAM_CLIENT_POOL_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/host/wake_latency.h"
#include "base/spin.h"
#include "base/tls/context.h"
#include "client/pool/placement.h"
#include "members/member_source.h"

namespace nram {

// Whether donors see only ciphertext of the stored pages (adr/0016).
enum class Seal : uint8_t {
  kAuto,  // a pool's: if some server is not this machine's. A region's: as the pool
  kNo,
  kYes,
};

struct PoolOptions {
  std::vector<Endpoint> servers;  // at least one; see pool_spec.h
  // Where they are known, to be watched while the pool is open. Null: they never change.
  std::shared_ptr<MemberSource> members;
  std::string client_name;  // for people; "" says program, host and pid
  // A server that has not answered by then is left out, and joins when it answers. For the very first server a pool
  // waits for io_timeout_ms, unless all refuse.
  int64_t open_timeout_ms = 2'000;
  int64_t io_timeout_ms = 10'000;          // of an operation that sets none
  int64_t lease_ttl_ms = 0;                // 0: the servers' usual
  int64_t lease_ttl_min_ms = 0;            // where the usual is shorter, this is asked for
  bool expendable = false;                 // servers may destroy this pool's data, when nothing else helps a donor
  int64_t fail_fast_after_ms = 5'000;      // a server that has been away longer fails operations at once
  uint64_t reserve_step_bytes = 16 << 20;  // room that is reserved ahead of use on each server written to
  // Regions of several copies: the copies of a server that has been away for this long are replaced.
  int64_t replace_after_ms = 10'000;
  // How fast copies are made anew, in bytes a second; kRepairQuarter: a quarter of the time; kRepairUnbounded.
  static constexpr uint64_t kRepairQuarter = 0;
  static constexpr uint64_t kRepairUnbounded = UINT64_MAX;
  uint64_t repair_bytes_per_s = kRepairQuarter;
  // A connection with calls under way is cut if nothing arrives for this long; 0: never. This detects a frozen server.
  int64_t silence_limit_ms = 0;
  std::shared_ptr<TlsContext> tls;  // for servers that are dialled by TCP (FindClientTls); null: plain
  // Of regions that do not say. Those with a name are sealed if there is a key file, unless this is kNo; then plain
  // ones are refused when they are attached.
  Seal seal = Seal::kAuto;
  std::string key_file;  // of regions with a name (SealSecret, ChooseKeyFile); "": none
  // Whether plain regions of one copy can move from one server to another (adr/0017). Not set: they can if some server
  // is on another machine. Other regions can always move, except plain ones of one copy with a name.
  std::optional<bool> moves;
  bool unix_sockets = true;  // for servers on this host that have one this process may use
  SpinOptions spin;
  FastWake fast_wake = FastWake::kAuto;            // while this pool's threads wait for many replies; see WakeLatency
  std::string wake_device = WakeLatency::kDevice;  // tests have a file in its place
  // Sets the options for regions of several copies: a frozen server is given up after a second, and the leases are long
  // enough that a pause of this client does not lose all copies at once.
  void ExpectCopies() {
    silence_limit_ms = 1'000;
    lease_ttl_min_ms = std::max<int64_t>(lease_ttl_min_ms, 60'000);
  }
  // Only for tests. Returns the data plane to use instead of the one that server number `server` names.
  std::function<Endpoint(size_t server, const Endpoint& data)> reroute_data_for_test;
};

enum class IoClass { kBulk, kUrgent };

struct RegionOptions {
  bool gc = false;  // servers free it when this client's lease ends
  PlacementPolicy placement = PlacementPolicy::kStriped;
  int copies = 1;           // of each page, on servers of different hosts; 1 to 4
  Seal seal = Seal::kAuto;  // kYes with a name: the pool must have a key file
  std::string name;         // so that others can attach it; unique in the pool; at most 255 bytes
  uint64_t size_bytes = 0;  // for clients that attach it; not enforced
  // It is to have versions (adr/0019). Regions of several copies and sealed ones may have them anyway.
  bool versioned = false;
};

struct IoOptions {
  int64_t timeout_ms = 0;  // 0: the pool's
  IoClass io_class = IoClass::kBulk;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_OPTIONS_H_
