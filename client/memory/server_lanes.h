#ifndef NRAM_CLIENT_MEMORY_SERVER_LANES_H_
#define NRAM_CLIENT_MEMORY_SERVER_LANES_H_

// Which servers hold up the lanes of a PageOut. Pure.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/pool/region.h"

namespace nram {

// A lane's run is sent to all servers of its pages' copies, and is as slow as the slowest: it counts for each of them.
// Not thread-safe.
class ServerLanes {
 public:
  using Servers = Region::Servers;

  // No caller waits longer than `patience_ns` for a server that ends nothing.
  ServerLanes(size_t lanes, int64_t patience_ns) : patience_ns_(patience_ns), lanes_(lanes) {}

  // A run begins in a lane that is free. Pages without a server count as those of one more server.
  void Begin(size_t lane, const Servers& servers, int64_t now_ns);
  // The servers of a lane that is busy have ended something.
  void NoteEnded(size_t lane, int64_t now_ns);
  // The lane is free.
  void Free(size_t lane) { lanes_[lane].servers.clear(); }

  bool busy(size_t lane) const { return !lanes_[lane].servers.empty(); }
  // A free lane for pages of these servers. None (the number of lanes) if one of them has its share, unless `beyond`.
  size_t FindFree(const Servers& servers, bool beyond) const;
  // Whether the run takes long, and one of its servers has ended nothing for as long.
  bool IsStuck(size_t lane, int64_t now_ns) const;
  // Whether one of these servers has its share of the lanes and ends nothing: pages of others must not wait for it.
  bool IsBehind(const Servers& servers, int64_t now_ns) const;

 private:
  struct Lane {
    Servers servers;  // none: it is free
    int64_t began_ns = 0;
  };

  static Servers Named(const Servers& servers) { return servers.empty() ? Servers{kNoServer} : servers; }
  static bool Has(const Lane& lane, uint16_t server);
  // Pages of one copy: half of the lanes, so that the others are for other servers. Each copy takes a lane's part of
  // what its server may have, so with several copies that is more: of two, two thirds.
  size_t ShareOf(const Servers& servers) const { return lanes_.size() * servers.size() / (servers.size() + 1); }
  size_t LanesOf(uint16_t server) const;
  bool IsStuckAt(const Lane& lane, uint16_t server, int64_t now_ns) const;

  const int64_t patience_ns_;
  std::vector<Lane> lanes_;
  absl::flat_hash_map<uint16_t, int64_t> last_ended_ns_;  // a run of each server
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_SERVER_LANES_H_
