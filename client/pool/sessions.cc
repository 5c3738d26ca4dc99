#include "client/pool/sessions.h"

#include <algorithm>

namespace nram {

void Sessions::FindCandidates(std::vector<PlacementCandidate>* candidates) const {
  candidates->clear();
  for (const auto& session : sessions_) {
    if (!session->up()) continue;
    const ServerCapacity capacity = session->capacity();
    const bool refused = session->refused();
    const auto room = static_cast<uint64_t>(std::max<int64_t>(session->room()->free_bytes(), 0));
    uint64_t weight = room;
    // The server's last word may be old: until it refuses, it is worth asking.
    // A donor that needs its memory is no place for new pages.
    const bool takes_nothing = capacity.draining || capacity.asked_back_bytes > 0;
    if (!refused && !takes_nothing) weight += std::max(capacity.free_bytes, kSpanBytes);
    if (takes_nothing || (refused && room < kPagesPerMessage * Room::kBytesPerPage)) weight = 0;
    if (weight == 0) continue;
    if (capacity.pressed) weight = weight / kPressedShare + 1;  // it may need it again soon
    candidates->push_back({session->index(), session->host(), weight, session->was_silent(), session->domain()});
  }
  // Servers that share a host are different hosts to a client that asks for one replica; the placement minds it when
  // it is not.
}

}  // namespace nram
