#ifndef NRAM_CLIENT_POOL_REGION_ROOM_H_
#define NRAM_CLIENT_POOL_REGION_ROOM_H_

// The room that one region has reserved at one server: its quota. Pure, like the account of all room (room.h), which is
// told of each change.
//
// Room that a write without an answer has used is not taken off this quota: a word of the server tells the sum, but not
// each region's part. So the quota may be too high. The client's free room bears that until such a word. Otherwise the
// region would give back missing room at its end, and that room would be promised to another region.

#include <cstdint>
#include <optional>

#include "client/pool/room.h"

namespace nram {

// Not thread-safe: the lock of its region's map guards it. `room` is the same in all calls. Before it is destroyed,
// Close must be called, and all grants have ended.
class RegionRoom {
 public:
  // Room for a write: `least_bytes` to `most_bytes`, or nothing.
  Room::Grant TryTake(Room* room, uint64_t least_bytes, uint64_t most_bytes);
  // The write has used `used_bytes`; the part beyond the grant is the client's.
  void Used(Room* room, Room::Grant grant, uint64_t used_bytes);
  // It was sent and has no answer.
  void Unknown(Room* room, Room::Grant grant);
  // Of the client's room, for this region. False: its term is over.
  bool Add(Room* room, Room::Grant grant);
  // Gives back up to `most_bytes`; returns how many.
  uint64_t Release(Room* room, uint64_t most_bytes);
  void Close(Room* room);

  // A trim with kFlagReservation: its freed room remains this region's. It lasts from before it is sent until its end
  // is known. The server's answer counts the chunks that all such trims have kept since the term began, so the next
  // answer makes up for a lost one.
  struct Trim {
    uint32_t term = 0;
    uint32_t number = 0;
  };
  Trim BeginTrim(Room* room);
  struct TrimEnd {
    bool sent = false;                    // by some attempt
    bool answered = false;                // by the server, whatever it said
    std::optional<uint32_t> kept_chunks;  // if it said that it was done
  };
  void EndTrim(Room* room, const Trim& trim, const TrimEnd& end);

  // Writes and trims under way may give some back.
  bool is_lent() const { return lent_ > 0; }
  int64_t bytes() const { return bytes_; }

 private:
  // The room that is there, and the knowledge of it, are of that term from here on.
  void Enter(Room* room, uint32_t term);
  // If it has used more than its quota, and no lent room is to be returned, the excess was the client's.
  void Settle(Room* room);

  int64_t bytes_ = 0;
  uint32_t term_ = 0;
  uint32_t kept_chunks_ = 0;  // by the last word of the server; wraps
  uint32_t lent_ = 0;         // grants, and trims under way
  uint32_t trims_ = 0;        // that have begun; wraps
  uint32_t doubted_at_ = 0;   // those of them that had begun when the last one was in doubt
  bool in_doubt_ = false;     // the room that a trim without an answer has added is not known: bytes_ may fall below 0
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REGION_ROOM_H_
