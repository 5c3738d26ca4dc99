#include "client/pool/placement.h"

#include <algorithm>

namespace nram {
namespace {

uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

SpanPlacement PlaceSpan(PlacementPolicy policy, RegionId region, uint64_t span, int replicas,
                        absl::Span<const PlacementCandidate> candidates) {
  SpanPlacement placement;
  const uint64_t step = policy == PlacementPolicy::kBlocked ? span / kSpansPerBlock : span;
  // The golden ratio as a fraction of 2^64: consecutive multiples fall farthest apart.
  const uint64_t point = Mix(Raw(region)) + step * 0x9E3779B97F4A7C15u;
  std::array<uint32_t, kReplicasMax> hosts{};
  int chosen = 0;
  bool admit_silent = false;
  const auto excluded = [&](const PlacementCandidate& candidate) {
    return candidate.weight == 0 || (candidate.silent && !admit_silent) ||
           std::find(hosts.begin(), hosts.begin() + chosen, candidate.host) != hosts.begin() + chosen;
  };
  while (chosen < std::min(replicas, kReplicasMax)) {
    unsigned __int128 total = 0;
    for (const PlacementCandidate& candidate : candidates) {
      if (!excluded(candidate)) total += candidate.weight;
    }
    if (total == 0 && !admit_silent) {
      admit_silent = true;
      continue;
    }
    if (total == 0) break;
    unsigned __int128 at = (static_cast<unsigned __int128>(point) * static_cast<uint64_t>(total)) >> 64;
    for (const PlacementCandidate& candidate : candidates) {
      if (excluded(candidate)) continue;
      if (at < candidate.weight) {
        placement.servers[chosen] = candidate.server;
        hosts[chosen] = candidate.host;
        break;
      }
      at -= candidate.weight;
    }
    ++chosen;
  }
  return placement;
}

}  // namespace nram
