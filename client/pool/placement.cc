#include "client/pool/placement.h"

#include <algorithm>
#include <functional>

#include "absl/algorithm/container.h"
#include "base/plant.h"

namespace nram {
namespace {

constexpr uint64_t kPressedShare = 16;  // the part of a pressed server's room that counts is 1 / kPressedShare

uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A host without a domain is one of its own, which no other has.
uint64_t DomainOf(const PlacementCandidate& candidate) {
  return candidate.domain != 0 ? candidate.domain : uint64_t{candidate.host} << 32;
}

// Terms for the next server, the best first. Once no candidate meets some terms, none does later.
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

uint64_t PlacementWeight(const ServerRoom& room) {
  if (NRAM_PLANTED(donors_room_alone)) return room.refused ? 0 : std::max(room.free_bytes, kSpanBytes);
  if (room.takes_nothing) return 0;
  // Room of a pressed server beyond its word is for the spans that remain there.
  if (room.pressed && !NRAM_PLANTED(donors_allowance_taken)) {
    const uint64_t weight = room.room_bytes + (room.refused ? 0 : room.free_bytes);
    return weight < kSpanBytes ? 0 : weight / kPressedShare;
  }
  // The server's last word may be old: until it refuses, it is worth asking.
  return room.room_bytes + (room.refused ? 0 : std::max(room.free_bytes, kSpanBytes));
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

uint16_t ChooseReceiver(PlacementPolicy policy, RegionId region, uint64_t span, absl::Span<const uint32_t> domains,
                        std::vector<PlacementCandidate>* candidates) {
  const auto is_near = [&](const PlacementCandidate& candidate) {
    return candidate.domain != 0 && absl::c_linear_search(domains, candidate.domain);
  };
  if (!absl::c_all_of(*candidates, is_near)) std::erase_if(*candidates, is_near);
  // A donor that had to give memory back lately may have to again.
  const auto is_pressed = [](const PlacementCandidate& candidate) { return candidate.pressed; };
  if (!absl::c_all_of(*candidates, is_pressed) && !NRAM_PLANTED(donors_room_alone)) {
    std::erase_if(*candidates, is_pressed);
  }
  return PlaceSpan(policy, region, span, 1, *candidates).servers[0];
}

}  // namespace nram
