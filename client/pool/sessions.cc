#include "client/pool/sessions.h"

#include <algorithm>

namespace nram {

void Sessions::FindCandidates(std::vector<PlacementCandidate>* candidates) const {
  candidates->clear();
  for (const auto& session : *this) {
    if (!session->up()) continue;
    const ServerCapacity capacity = session->capacity();
    ServerRoom room;
    room.refused = session->refused();
    room.room_bytes = static_cast<uint64_t>(std::max<int64_t>(session->room()->free_bytes(), 0));
    room.free_bytes = capacity.free_bytes;
    // A donor that needs its memory is no place for new pages.
    room.takes_nothing = capacity.draining || session->asks() ||
                         (room.refused && room.room_bytes < kPagesPerMessage * Room::kBytesPerPage);
    room.pressed = capacity.pressed;
    const uint64_t weight = PlacementWeight(room);
    if (weight == 0) continue;
    candidates->push_back(
        {session->index(), session->host(), weight, session->was_silent(), session->domain(), room.pressed});
  }
  // Servers that share a host are different hosts to a client that asks for one replica; the placement minds it when
  // it is not.
}

}  // namespace nram
