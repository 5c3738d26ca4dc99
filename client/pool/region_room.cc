#include "client/pool/region_room.h"

#include <algorithm>
#include <utility>

#include "base/plant.h"

namespace nram {

void RegionRoom::Enter(Room* room, uint32_t term) {
  if (term_ == term) return;
  if (std::exchange(in_doubt_, false)) room->EndDoubt(term_);
  term_ = term;
  bytes_ = 0;
  kept_chunks_ = 0;
}

void RegionRoom::Settle(Room* room) {
  if (bytes_ >= 0 || in_doubt_ || lent_ > 0) return;
  room->ChargeReserved(static_cast<uint64_t>(-bytes_), term_);
  bytes_ = 0;
}

Room::Grant RegionRoom::TryTake(Room* room, uint64_t least_bytes, uint64_t most_bytes) {
  uint64_t bytes = std::min(static_cast<uint64_t>(std::max<int64_t>(bytes_, 0)), most_bytes);
  // The last resort: the server knows.
  if (in_doubt_ && least_bytes < most_bytes) bytes = most_bytes;
  if (bytes < least_bytes) return {};
  Room::Grant grant = room->TakeReserved(bytes, term_);
  if (grant) {
    bytes_ -= static_cast<int64_t>(bytes);
    ++lent_;
  } else {
    Enter(room, room->term());
  }
  return grant;
}

void RegionRoom::Used(Room* room, Room::Grant grant, uint64_t used_bytes) {
  --lent_;
  const uint64_t granted_bytes = grant.bytes();
  const uint32_t term = grant.term();
  const uint64_t own_bytes = std::min(used_bytes, granted_bytes);
  if (!room->EndReserved(std::move(grant), own_bytes)) {
    // As in Room::Used: perhaps it was executed in the present term.
    if (used_bytes > 0) room->Charge(used_bytes);
    return;
  }
  Enter(room, term);
  bytes_ += static_cast<int64_t>(granted_bytes - own_bytes);
  Settle(room);
  if (used_bytes > own_bytes) room->Charge(used_bytes - own_bytes);
}

void RegionRoom::Unknown(Room* room, Room::Grant grant) {
  room->Charge(grant.bytes());
  Used(room, std::move(grant), 0);
}

bool RegionRoom::Add(Room* room, Room::Grant grant) {
  const uint64_t bytes = grant.bytes();
  const uint32_t term = room->Reserve(std::move(grant));
  if (term == 0) return false;
  Enter(room, term);
  bytes_ += static_cast<int64_t>(bytes);
  return true;
}

uint64_t RegionRoom::Release(Room* room, uint64_t most_bytes) {
  const uint64_t bytes = std::min(static_cast<uint64_t>(std::max<int64_t>(bytes_, 0)), most_bytes);
  if (bytes == 0) return 0;
  bytes_ -= static_cast<int64_t>(bytes);
  room->ReleaseReserved(bytes, term_);
  return bytes;
}

void RegionRoom::Close(Room* room) {
  if (std::exchange(in_doubt_, false)) room->EndDoubt(term_);
  Settle(room);
  Release(room, ~uint64_t{0});
}

RegionRoom::Trim RegionRoom::BeginTrim(Room* room) {
  ++lent_;
  return {room->Hold(), ++trims_};
}

void RegionRoom::EndTrim(Room* room, const Trim& trim, const TrimEnd& end) {
  --lent_;
  int64_t bytes = 0;
  if (trim.term == room->term()) {
    Enter(room, trim.term);
    if (end.kept_chunks) {
      // The difference to its last word may be another trim's, of which there was no answer or there is none yet.
      const auto more = static_cast<int32_t>(*end.kept_chunks - kept_chunks_);
      if (more > 0) {
        if (!NRAM_PLANTED(kept_room_counted_twice)) kept_chunks_ = *end.kept_chunks;
        bytes_ += bytes = more * static_cast<int64_t>(kChunkBytes);
      }
    }
    if (end.answered) {
      // One that began before the doubt may have been answered before that was executed.
      const bool began_after = static_cast<int32_t>(trim.number - doubted_at_) > 0;
      if (began_after && std::exchange(in_doubt_, false)) room->EndDoubt(trim.term);
    } else if (end.sent) {
      // The next answer tells. Until then part of the reservation may be this region's: one hold remains.
      doubted_at_ = trims_;
      if (!std::exchange(in_doubt_, true)) return room->BeginDoubt();
    }
  }
  room->Unhold(static_cast<uint64_t>(bytes), trim.term);
  Settle(room);
}

}  // namespace nram
