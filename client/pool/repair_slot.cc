// One span's way through a slot: a target is chosen, room is taken, the copy joins, everything is copied, and the copy
// is in sync; then those that are to leave do.

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/clock.h"
#include "base/plant.h"
#include "client/pool/placing.h"
#include "client/pool/repairer.h"
#include "proto/price.h"

namespace nram {

void Repairer::FindWork(Slot* slot) {
  slot->state = Slot::State::kBusy;
  while (std::optional<Todo> todo = TakeTodo()) {
    if (Begin(slot, *std::move(todo))) return;
  }
  slot->map = nullptr;
  slot->state = Slot::State::kFree;
}

// False: nothing is to be done there, or cannot be now.
bool Repairer::Begin(Slot* slot, Todo todo) {
  if (!todo.map->CheckUsable().ok()) return false;
  slot->map = std::move(todo.map);
  slot->span = todo.span;
  slot->began_ns = NowNs();
  slot->joining = std::nullopt;
  slot->target = nullptr;
  slot->reserved_pages = slot->reserved_bytes = 0;
  slot->page = kPagesPerSpan;
  slot->leaves.clear();
  if (todo.mends) {
    IoRequest request;
    request.range = {todo.span * kChunksPerMessage, kChunksPerMessage};
    request.repair = RepairWork::kMend;
    // Whether it could be mended, reads will tell.
    Start(slot, request, [](Io*, void* context) {
      auto* const self = static_cast<Slot*>(context);
      self->repairer->Rest(self);
    });
    return true;
  }
  const CopyMap::Plan plan = slot->map->copies()->PlanFor(slot->span, LookAtDonors());
  if (plan.need == CopyMap::Need::kNothing) return false;
  if (plan.need == CopyMap::Need::kLeave) {
    slot->leaves = plan.leave;
    Flip(slot);
    return true;
  }
  slot->target = ChooseTarget(*slot, plan);
  return slot->target != nullptr && BeginJoin(slot);
}

ServerSession* Repairer::ChooseTarget(const Slot& slot, const CopyMap::Plan& plan) const {
  const int64_t now_ns = NowNs();
  absl::InlinedVector<uint32_t, SpanCopies::kMost> hosts;
  absl::InlinedVector<uint32_t, SpanCopies::kMost> domains;
  for (const CopyMap::Life& life : plan.stay) {
    const ServerSession& session = *home_->sessions->at(life.server);
    hosts.push_back(session.host());
    if (session.domain() != 0) domains.push_back(session.domain());
  }
  std::vector<PlacementCandidate> candidates = home_->sessions->Candidates();
  std::erase_if(candidates, [&](const PlacementCandidate& candidate) {
    const ServerSession& session = *home_->sessions->at(candidate.server);
    const bool has_one = absl::c_any_of(plan.leave, [&](uint16_t presence) {
      const auto leftover = slot.map->copies()->LifeOf(presence);
      return leftover.server == candidate.server;
    });
    return has_one || session.capacity().leaving || !session.usable() || IsAvoided(candidate.server, now_ns) ||
           absl::c_linear_search(hosts, candidate.host);
  });
  // A copy that has missed something is nearly whole, if its server's memory still has it.
  for (const CopyMap::Life& life : plan.stale) {
    const bool is_there = home_->sessions->at(life.server)->incarnation() == life.incarnation &&
                          absl::c_any_of(candidates, [&](const auto& one) { return one.server == life.server; });
    if (is_there) return home_->sessions->at(life.server);
  }
  const auto is_near = [&](const PlacementCandidate& candidate) {
    return candidate.domain != 0 && absl::c_linear_search(domains, candidate.domain);
  };
  if (!absl::c_all_of(candidates, is_near)) std::erase_if(candidates, is_near);
  const RegionKey& key = slot.map->key();
  const SpanPlacement chosen = PlaceSpan(key.placement, key.id, slot.span, 1, candidates);
  return chosen.placed() ? home_->sessions->at(chosen.servers[0]) : nullptr;
}

// Room for what the span has reserved, all of it, before anything moves.
bool Repairer::BeginJoin(Slot* slot) {
  slot->incarnation = slot->target->incarnation();
  slot->reserved_pages = slot->map->copies()->ReservedPages(slot->span);
  if (slot->reserved_pages == 0) {
    Join(slot, {});
    return true;
  }
  const uint64_t bytes = PriceOfWrite(slot->reserved_pages, /*creates_region=*/true);
  Room::Grant grant = slot->target->TryTakeRoom(bytes);
  if (grant) {
    Join(slot, std::move(grant));
    return true;
  }
  if (slot->target->refused()) {
    Avoid(slot->target->index());
    return false;
  }
  slot->waiter.what = Waiter::For::kRoom;
  slot->waiter.room_bytes = bytes;
  slot->waiter.deadline_ns = NowNs() + kRoomNs;
  slot->waiter.context = slot;
  slot->waiter.resume = [](Waiter* waiter) {
    auto* const self = static_cast<Slot*>(waiter->context);
    self->repairer->OnRoom(self);
  };
  if (!slot->target->WaitFor(&slot->waiter)) OnRoom(slot);
  return true;
}

void Repairer::OnRoom(Slot* slot) {
  if (slot->waiter.outcome != Waiter::Outcome::kGranted) return Fail(slot, /*avoid=*/true);
  Join(slot, std::move(slot->waiter.grant));
}

void Repairer::Join(Slot* slot, Room::Grant grant) {
  CopyMap* const copies = slot->map->copies();
  const uint16_t server = slot->target->index();
  if (grant) {
    const uint64_t bytes = grant.bytes();
    if (!slot->map->AddReserved(server, slot->target->room(), std::move(grant))) return Fail(slot, /*avoid=*/false);
    slot->reserved_bytes = bytes;
    slot->target->NoteReturned();
  }
  std::optional<CopyMap::Leftover> leftover;
  slot->joining = copies->Join(slot->span, {server, slot->incarnation}, &leftover);
  if (leftover.has_value()) AddLeftover(slot->map.get(), slot->span, *leftover);
  if (!slot->joining.has_value()) return Fail(slot, /*avoid=*/false);
  if (NRAM_PLANTED(join_copies_nothing)) return Flip(slot);
  Copy(slot);
}

void Repairer::Start(Slot* slot, const IoRequest& wanted, Io::Callback callback) {
  IoRequest request = wanted;
  request.op = Op::kWrite;
  request.in = slot->bytes.get();
  request.out = slot->bytes.get();
  request.found = slot->found.data();
  request.deadline_ns = NowNs() + home_->options->io_timeout_ms * kNsPerMs;
  const IoPlace place{home_->sessions, slot->map.get(), home_->environment, home_->sessions->gate()};
  slot->io->Start(place, request, callback, slot);
}

void Repairer::Copy(Slot* slot) {
  slot->found.fill(0);
  IoRequest request;
  request.range = {slot->span * kChunksPerSpan, kChunksPerSpan};
  request.repair = RepairWork::kCopy;
  Start(slot, request, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    self->repairer->OnCopied(self, io->Wait());
  });
}

void Repairer::OnCopied(Slot* slot, const absl::Status& status) {
  // A page may be lost: which one, only single reads tell.
  if (absl::IsDataLoss(status) && slot->map->copies()->IsJoining(slot->span, *slot->joining)) {
    slot->page = 0;
    return OnPageCopied(slot, absl::OkStatus());
  }
  if (!status.ok()) return Fail(slot, /*avoid=*/true);
  Flip(slot);
}

void Repairer::OnPageCopied(Slot* slot, const absl::Status& status) {
  if (!status.ok()) return Fail(slot, /*avoid=*/true);
  if (slot->page == kPagesPerSpan) return Flip(slot);
  IoRequest request;
  request.range = {(slot->span * kPagesPerSpan + slot->page++) * kChunksPerPage, kChunksPerPage};
  request.repair = RepairWork::kCopy;
  Start(slot, request, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    self->repairer->OnPageCopied(self, io->Wait());
  });
}

void Repairer::Flip(Slot* slot) {
  if (slot->joining.has_value()) {
    const CopyMap::Plan plan = slot->map->copies()->PlanFor(slot->span, LookAtDonors());
    const bool has_enough = static_cast<int>(plan.stay.size()) >= slot->map->copies()->copies();
    if (has_enough) slot->leaves = plan.leave;
  }
  IoRequest request;
  request.range = {slot->span * kChunksPerSpan, kChunksPerSpan};
  request.repair = RepairWork::kJoin;
  request.leaves = slot->leaves;
  Start(slot, request, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    self->repairer->OnFlipped(self, io->Wait());
  });
}

void Repairer::OnFlipped(Slot* slot, const absl::Status& status) {
  CopyMap* const copies = slot->map->copies();
  for (const uint16_t presence : slot->leaves) {
    const std::optional<CopyMap::Leftover> leftover = copies->LeftoverOf(slot->span, presence);
    if (leftover.has_value()) AddLeftover(slot->map.get(), slot->span, *leftover);
  }
  if (!status.ok()) return Fail(slot, /*avoid=*/slot->joining.has_value());
  if (slot->joining.has_value()) {
    ++made_;
    // What was copied has been paid for.
    ReleaseReserved(slot,
                    static_cast<uint64_t>(absl::c_count_if(slot->found, [](ChunkMask mask) { return mask != 0; })));
  }
  for (const uint16_t presence : slot->leaves) {
    const uint16_t server = copies->LifeOf(presence).server;
    ServerSession* const session = home_->sessions->at(server);
    if (slot->map->has_room() && !copies->IsUsed(server)) {
      (void)slot->map->ReleaseReserved(server, session->room(), UINT64_MAX);
      session->NoteRoom();
    }
  }
  Rest(slot);
}

// Up to so many pages of the room that was reserved at the target.
void Repairer::ReleaseReserved(Slot* slot, uint64_t pages) {
  if (slot->reserved_bytes == 0) return;
  const uint64_t bytes = std::min(slot->reserved_bytes, pages * Room::kBytesPerPage);
  (void)slot->map->ReleaseReserved(slot->target->index(), slot->target->room(), bytes);
  slot->target->NoteRoom();
  slot->reserved_bytes = 0;
}

void Repairer::Fail(Slot* slot, bool avoid) {
  if (slot->joining.has_value()) slot->map->copies()->EndJoining(slot->span, *slot->joining);
  if (slot->target != nullptr) {
    ReleaseReserved(slot, kPagesPerSpan + 1);
    if (avoid) Avoid(slot->target->index());
  }
  Rest(slot);
}

// If the region was destroyed meanwhile: a message of the slot may have come after that, and made a part of it anew.
void Repairer::DestroyAgain(const RegionMap& map) {
  if (map.CheckUsable().ok() || NRAM_PLANTED(destroyed_made_anew)) return;
  for (const CopyMap::Whereabout& at : map.copies()->Whereabouts()) {
    home_->sessions->at(at.life.server)->DestroyLater({map.key().id, map.key().epoch, at.life.incarnation});
  }
}

void Repairer::Rest(Slot* slot) {
  const uint64_t rate = home_->options->repair_bytes_per_s;
  const int64_t now_ns = NowNs();
  const int64_t took_ns = now_ns - slot->began_ns;
  if (rate == PoolOptions::kRepairQuarter) {
    slot->owed_ns += 3 * took_ns;
  } else if (rate != PoolOptions::kRepairUnbounded) {
    const auto share_ns = static_cast<int64_t>(kSlots * kSpanBytes * kNsPerSecond / rate);
    slot->owed_ns += std::max<int64_t>(share_ns - took_ns, 0);
  }
  DestroyAgain(*slot->map);
  slot->map = nullptr;
  if (slot->owed_ns < kRestNs && !stopping_) return FindWork(slot);
  slot->until_ns = now_ns + std::exchange(slot->owed_ns, 0);
  slot->state = Slot::State::kResting;
}

}  // namespace nram
