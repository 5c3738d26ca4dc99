#include "client/pool/placement.h"

#include <algorithm>
#include <functional>

namespace nram {
namespace {

uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A host without a domain is one of its own, which no other has.
uint64_t DomainOf(const PlacementCandidate& candidate) {
  return candidate.domain != 0 ? candidate.domain : uint64_t{candidate.host} << 32;
}

// What the next server may be, the best first. Once no candidate meets some terms, none does later.
struct Terms {
  bool other_domain;
  bool silent;
};
constexpr std::array<Terms, 4> kTerms = {{{true, false}, {true, true}, {false, false}, {false, true}}};

}  // namespace

uint32_t NumberOfName(const std::string& name) {
  if (name.empty()) return 0;
  return std::max(static_cast<uint32_t>(std::hash<std::string>()(name)), uint32_t{1});
}

SpanPlacement PlaceSpan(PlacementPolicy policy, RegionId region, uint64_t span, int replicas,
                        absl::Span<const PlacementCandidate> candidates) {
  SpanPlacement placement;
  const uint64_t step = policy == PlacementPolicy::kBlocked ? span / kSpansPerBlock : span;
  // The golden ratio as a fraction of 2^64: consecutive multiples fall farthest apart.
  const uint64_t point = Mix(Raw(region)) + step * 0x9E3779B97F4A7C15u;
  std::array<PlacementCandidate, kReplicasMax> servers;
  int chosen = 0;
  size_t terms = 0;
  const auto excluded = [&](const PlacementCandidate& candidate) {
    if (candidate.weight == 0 || (candidate.silent && !kTerms[terms].silent)) return true;
    return std::any_of(servers.begin(), servers.begin() + chosen, [&](const PlacementCandidate& other) {
      return other.host == candidate.host || (kTerms[terms].other_domain && DomainOf(other) == DomainOf(candidate));
    });
  };
  while (chosen < std::min(replicas, kReplicasMax)) {
    unsigned __int128 total = 0;
    for (const PlacementCandidate& candidate : candidates) {
      if (!excluded(candidate)) total += candidate.weight;
    }
    if (total == 0) {
      if (++terms == kTerms.size()) break;
      continue;
    }
    unsigned __int128 at = (static_cast<unsigned __int128>(point) * static_cast<uint64_t>(total)) >> 64;
    for (const PlacementCandidate& candidate : candidates) {
      if (excluded(candidate)) continue;
      if (at < candidate.weight) {
        placement.servers[chosen] = candidate.server;
        servers[chosen] = candidate;
        break;
      }
      at -= candidate.weight;
    }
    ++chosen;
  }
  return placement;
}

}  // namespace nram
