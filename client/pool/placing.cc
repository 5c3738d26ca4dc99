#include "client/pool/placing.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace nram {

ServerSession* Placing::Choose(const Sessions& sessions, const RegionMap& map, uint64_t span) {
  for (const auto& session : sessions) {
    if (!session->removed()) NoteAway(*session);
  }
  std::vector<PlacementCandidate> candidates = sessions.Candidates();
  const std::vector<RegionMap::Target> whereabouts = map.Whereabouts();
  std::erase_if(candidates, [&](const PlacementCandidate& candidate) {
    if (absl::c_linear_search(passed_over_, candidate.server)) return true;
    for (const RegionMap::Target& target : whereabouts) {
      if (target.server != candidate.server) continue;
      // Never again where a part of the region was lost.
      return target.known == RegionMap::Known::kCreated &&
             target.incarnation != sessions.at(candidate.server)->incarnation();
    }
    return map.key().named;
  });
  const SpanPlacement placement = PlaceSpan(map.key().placement, map.key().id, span, 1, candidates);
  return placement.placed() ? sessions.at(placement.servers[0]) : nullptr;
}

SpanPlacement Placing::ChooseCopies(const Sessions& sessions, const RegionMap& map, uint64_t span) {
  const int wanted = map.copies()->copies();
  absl::flat_hash_set<uint32_t> hosts;  // of those that answer, and do not need their memory
  int away = 0;                         // the others
  const auto may_have = [&](const ServerSession& session) {
    return map.copies()->IsMember({session.index(), session.incarnation()});
  };
  for (const auto& session : sessions) {
    if (session->removed()) continue;  // it gets no new pages, and may never return
    if (session->up() && may_have(*session) && !session->needs_memory()) {
      hosts.insert(session->host());
    } else {
      ++away;
      NoteAway(*session);
    }
  }
  std::vector<PlacementCandidate> candidates = sessions.Candidates();
  std::erase_if(candidates, [&](const PlacementCandidate& candidate) {
    return absl::c_linear_search(passed_over_, candidate.server) || !may_have(*sessions.at(candidate.server));
  });
  SpanPlacement placement = PlaceSpan(map.key().placement, map.key().id, span, wanted, candidates);
  const auto count = kReplicasMax - static_cast<int>(absl::c_count(placement.servers, kNoServer));
  // Those that are away, or need their memory now, may be of other hosts: then the span gets its other copies later.
  // A server that is full gives none.
  const int answering = static_cast<int>(hosts.size());
  wanted_hosts_ = answering + away < wanted ? wanted : 0;
  if (wanted_hosts_ > 0 || count < std::min(wanted, answering)) return {};
  std::sort(placement.servers.begin(), placement.servers.end());  // kNoServer is the highest
  return placement;
}

void Placing::NoteFull(const ServerSession& session) {
  passed_over_.push_back(session.index());
  full_ = session.index();
}

void Placing::NoteNoAnswer(const ServerSession& session) {
  passed_over_.push_back(session.index());
  no_answer_ = session.index();
}

ServerSession* Placing::Survey(const Sessions& sessions, uint64_t bytes, absl::Status* why) const {
  // Only a server that answers says that it is full. One that is away for a short time may have room.
  if (no_answer_ != kNoServer && wanted_hosts_ == 0) return sessions.at(no_answer_);
  if (wanted_hosts_ > 0) {
    *why = absl::ResourceExhaustedError(absl::StrCat("each page needs ", wanted_hosts_, " copies on different hosts, ",
                                                     "and the pool has fewer hosts: add servers on other hosts, ",
                                                     "or ask for fewer copies"));
    return nullptr;
  }
  size_t away_too_long = 0;
  ServerSession* asleep = nullptr;
  for (const auto& session : sessions) {
    if (session->away_too_long() || (session->removed() && !session->up())) {
      ++away_too_long;
    } else if (session->asleep()) {
      asleep = session.get();
    } else if (!session->up()) {
      return session.get();
    }
  }
  if (asleep != nullptr) return asleep;  // a waiter for it has it woken
  if (away_too_long == sessions.size()) {
    *why = absl::UnavailableError("no memory server of the pool answers");
  } else if (full_ == kNoServer) {
    *why = absl::ResourceExhaustedError("the pool is full: no memory server accepts new spans");
  } else {
    *why = absl::ResourceExhaustedError(absl::StrCat("the pool is full: memory server ", sessions.at(full_)->name(),
                                                     " has no room for ", FormatByteSize(bytes)));
  }
  return nullptr;
}

}  // namespace nram
