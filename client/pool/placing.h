#ifndef NRAM_CLIENT_POOL_PLACING_H_
#define NRAM_CLIENT_POOL_PLACING_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "client/pool/region_map.h"
#include "client/pool/sessions.h"

namespace nram {

// One search for a server that takes a new span: servers are asked for room one after the other, and those that have
// none are passed over. Not thread-safe.
class Placing {
 public:
  // A new search.
  void Reset() {
    passed_over_.clear();
    full_ = no_answer_ = kNoServer;
    wanted_hosts_ = 0;
  }
  // The server to be asked for room now; null: none is left.
  ServerSession* Choose(const Sessions& sessions, const RegionMap& map, uint64_t span);
  // The servers for a span's copies, on different hosts, and in different domains where there are enough, in the order
  // of their numbers. Fewer than the region is to have only while servers are away; none: Survey says why.
  SpanPlacement ChooseCopies(const Sessions& sessions, const RegionMap& map, uint64_t span);
  void NoteFull(const ServerSession& session);
  void NoteNoAnswer(const ServerSession& session);
  // When no server is left: one that may have room when it answers again; or null, and *why says that waiting does not
  // help. `bytes`: the room that was asked for.
  ServerSession* Survey(const Sessions& sessions, uint64_t bytes, absl::Status* why) const;

 private:
  // It may be back when Survey looks, and it was not asked for room.
  void NoteAway(const ServerSession& session) {
    if (!session.up() && !session.asleep() && !session.away_too_long()) no_answer_ = session.index();
  }

  absl::InlinedVector<uint16_t, 4> passed_over_;
  uint16_t full_ = kNoServer;       // the last full server
  uint16_t no_answer_ = kNoServer;  // the last that did not answer, or was away when servers were chosen
  int wanted_hosts_ = 0;            // more than there are; 0: there are enough
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_PLACING_H_
