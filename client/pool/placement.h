#ifndef NRAM_CLIENT_POOL_PLACEMENT_H_
#define NRAM_CLIENT_POOL_PLACEMENT_H_

// Chooses the servers of a span: pure functions, no state.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/units.h"

namespace nram {

inline constexpr uint16_t kNoServer = 0xFFFF;
inline constexpr int kReplicasMax = 4;

// The servers that hold a span, the first one to be read from. 8 bytes for 1 MiB.
struct SpanPlacement {
  std::array<uint16_t, kReplicasMax> servers{kNoServer, kNoServer, kNoServer, kNoServer};

  bool placed() const { return servers[0] != kNoServer; }
  friend bool operator==(const SpanPlacement&, const SpanPlacement&) = default;
};
static_assert(sizeof(SpanPlacement) == 8);

enum class PlacementPolicy {
  kStriped,  // neighbouring spans on different servers: one stream uses all of them
  kBlocked,  // runs of 64 spans on one server: few servers for each region
};
inline constexpr uint64_t kSpansPerBlock = 64;

struct PlacementCandidate {
  uint16_t server = kNoServer;
  uint32_t host = 0;     // equal for servers that share a machine
  uint64_t weight = 0;   // free bytes; 0 leaves it out
  bool silent = false;   // it has left a call without an answer lately: the last choice
  uint32_t domain = 0;   // equal for hosts that may fail together; 0: its host is a domain of its own
  bool pressed = false;  // its donor needs memory, or did lately (adr/0017)
};

// A client's knowledge of a server that new spans may go to.
struct ServerRoom {
  uint64_t room_bytes = 0;     // the client's own room there
  uint64_t free_bytes = 0;     // the server's last word
  bool refused = false;        // it has said since that nothing is free
  bool takes_nothing = false;  // it drains, or its donor needs memory
  bool pressed = false;        // as of PlacementCandidate
};
// For PlacementCandidate's weight.
uint64_t PlacementWeight(const ServerRoom& room);

// For PlacementCandidate's host and domain. 0: the name is empty.
uint32_t NumberOfName(const std::string& name);

// Chooses `replicas` (1..kReplicasMax) servers on different hosts, each with a probability in proportion to its weight,
// the same for the same arguments. Neighbouring spans (or blocks) are spread evenly rather than at random: a span's
// point in [0, 1) is the region's hash plus its number times the golden ratio, and the candidates divide [0, 1) by
// weight. They are in different domains as long as there is another domain. Silent ones are chosen if there are no
// others in other domains, or then on other hosts. Fewer servers than asked for if there are fewer hosts; not placed()
// if no candidate has weight.
SpanPlacement PlaceSpan(PlacementPolicy policy, RegionId region, uint64_t span, int replicas,
                        absl::Span<const PlacementCandidate> candidates);

// Chooses one of `*candidates`, which all have weight, for another copy of a span, or for its only one that is to move;
// kNoServer: there is none. `domains`: of the remaining copies; it is in another one if some candidate is. Pressed ones
// are chosen if there are no others. Reduces `*candidates` to those that it has chosen among.
uint16_t ChooseReceiver(PlacementPolicy policy, RegionId region, uint64_t span, absl::Span<const uint32_t> domains,
                        std::vector<PlacementCandidate>* candidates);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_PLACEMENT_H_
