#include "client/memory/server_lanes.h"

#include "absl/algorithm/container.h"

namespace nram {

void ServerLanes::Begin(size_t lane, const Servers& servers, int64_t now_ns) {
  lanes_[lane] = {Named(servers), now_ns};
}

void ServerLanes::NoteEnded(size_t lane, int64_t now_ns) {
  for (const uint16_t server : lanes_[lane].servers) last_ended_ns_[server] = now_ns;
}

bool ServerLanes::Has(const Lane& lane, uint16_t server) { return absl::c_linear_search(lane.servers, server); }

size_t ServerLanes::LanesOf(uint16_t server) const {
  return absl::c_count_if(lanes_, [server](const Lane& lane) { return Has(lane, server); });
}

size_t ServerLanes::FindFree(const Servers& wanted, bool beyond) const {
  const Servers servers = Named(wanted);
  const auto has_share = [&](uint16_t server) { return LanesOf(server) >= ShareOf(servers); };
  if (!beyond && absl::c_any_of(servers, has_share)) return lanes_.size();
  const auto it = absl::c_find_if(lanes_, [](const Lane& lane) { return lane.servers.empty(); });
  return static_cast<size_t>(it - lanes_.begin());
}

bool ServerLanes::IsStuckAt(const Lane& lane, uint16_t server, int64_t now_ns) const {
  const int64_t since_ns = now_ns - patience_ns_;
  const auto last = last_ended_ns_.find(server);
  return lane.began_ns <= since_ns && (last == last_ended_ns_.end() || last->second <= since_ns);
}

bool ServerLanes::IsStuck(size_t lane, int64_t now_ns) const {
  return absl::c_any_of(lanes_[lane].servers, [&](uint16_t server) { return IsStuckAt(lanes_[lane], server, now_ns); });
}

bool ServerLanes::IsBehind(const Servers& wanted, int64_t now_ns) const {
  const Servers servers = Named(wanted);
  return absl::c_any_of(servers, [&](uint16_t server) {
    return LanesOf(server) >= ShareOf(servers) && absl::c_any_of(lanes_, [&](const Lane& lane) {
             return Has(lane, server) && IsStuckAt(lane, server, now_ns);
           });
  });
}

}  // namespace nram
