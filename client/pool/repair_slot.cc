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
  while (std::optional<Todo> todo = TakeTodo(*slot)) {
    const uint64_t place = HashOf({todo->map.get(), todo->span});
    const size_t misses = misses_;
    const uint16_t sheds = todo->sheds;
    if (Begin(slot, *std::move(todo))) return;  // perhaps it has ended already, and the pool is closing
    NoteShed(sheds, /*left=*/false);
    if (sheds != kNoServer) continue;
    misses_ = misses + 1;
    MutexLock lock(&mu_);
    (void)tried_.Insert(place);
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
  slot->reserved_pages = slot->reserved_bytes = slot->used_bytes = 0;
  slot->page = slot->end_page = 0;
  slot->is_back = false;
  slot->mends = todo.mends;
  slot->sheds = todo.sheds;
  // A donor waits for the memory, or a server is about to end.
  slot->is_urgent = todo.sheds != kNoServer || some_are_urgent_;
  slot->leaves.clear();
  if (todo.mends) {
    Mend(slot);
    return true;
  }
  // It may have got enough meanwhile.
  if (slot->sheds != kNoServer && home_->sessions->at(slot->sheds)->asked().share == 0) return false;
  const CopyMap::Plan plan = PlanFor(slot);
  if (plan.need == CopyMap::Need::kNothing) return false;
  const bool seeks = slot->sheds != kNoServer && plan.need == CopyMap::Need::kJoin;
  if (seeks && !shedding_.MaySearch(slot->sheds, NowNs())) return false;
  slot->target = ChooseTarget(slot, plan);
  if (plan.need == CopyMap::Need::kJoin) {
    // A slot that begins may end at once, and then it is another span's.
    const uint16_t sheds = slot->sheds;
    const bool joins = slot->target != nullptr && BeginJoin(slot);
    if (seeks) joins ? shedding_.NoteSomewhere(sheds) : shedding_.NoteNowhere(sheds, NowNs());
    return joins;
  }
  // If a copy is dropped to make place for another, that one must have a target.
  const bool has_enough = static_cast<int>(plan.stay.size()) >= slot->map->copies()->copies();
  if (!has_enough && slot->target == nullptr && slot->sheds == kNoServer) return false;
  slot->target = nullptr;
  slot->leaves = LeavesOf(*slot, plan);
  if (slot->leaves.empty()) return false;
  Flip(slot);
  return true;
}

CopyMap::Plan Repairer::PlanFor(Slot* slot) const {
  LookAtDonors(&slot->donors);
  const bool sheds = slot->sheds != kNoServer;
  if (sheds) slot->donors[slot->sheds].standing = CopyMap::Donor::Standing::kLeaves;
  CopyMap::Plan plan = slot->map->copies()->PlanFor(slot->span, slot->donors);
  if (!sheds || plan.need == CopyMap::Need::kNothing) return plan;
  const bool is_there = absl::c_any_of(plan.leave, [&](uint16_t replica_host) {
    return slot->map->copies()->LifeOf(replica_host).server == slot->sheds;
  });
  if (!is_there) {
    plan.need = CopyMap::Need::kNothing;  // it has left already
  } else if (plan.has_sibling && slot->map->copies()->copies() > 1) {
    plan.need = CopyMap::Need::kLeave;  // no byte moves
  }
  return plan;
}

absl::InlinedVector<uint16_t, SpanCopies::kMost> Repairer::LeavesOf(const Slot& slot, const CopyMap::Plan& plan) const {
  if (slot.sheds == kNoServer) return plan.leave;
  absl::InlinedVector<uint16_t, SpanCopies::kMost> leaves;
  for (const uint16_t replica_host : plan.leave) {
    if (slot.map->copies()->LifeOf(replica_host).server == slot.sheds) leaves.push_back(replica_host);
  }
  return leaves;
}

void Repairer::Mend(Slot* slot) {
  IoRequest request;
  request.range = {slot->span * kChunksPerMessage, kChunksPerMessage};
  request.repair = RepairWork::kMend;
  Start(slot, request, kCopyNs, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    // Each copy may have another page that is damaged: then they are mended one by one. Whether they could be, reads
    // will tell.
    if (!absl::IsDataLoss(io->Wait())) return self->repairer->Rest(self);
    self->repairer->BeginPages(self, self->span * kPagesPerMessage, kPagesPerMessage);
  });
}

ServerSession* Repairer::ChooseTarget(Slot* slot, const CopyMap::Plan& plan) const {
  const int64_t now_ns = NowNs();
  absl::InlinedVector<uint32_t, SpanCopies::kMost> hosts;
  absl::InlinedVector<uint32_t, SpanCopies::kMost> domains;
  for (const CopyMap::Life& life : plan.stay) {
    const ServerSession& session = *home_->sessions->at(life.server);
    hosts.push_back(session.host());
    if (session.domain() != 0) domains.push_back(session.domain());
  }
  // Its host would have nothing of it.
  const uint32_t sheds_host = slot->sheds == kNoServer ? 0 : home_->sessions->at(slot->sheds)->host();
  const auto may_take = [&](uint16_t server) {
    const ServerSession& session = *home_->sessions->at(server);
    const bool has_one = absl::c_any_of(
        plan.leave, [&](uint16_t replica_host) { return slot->map->copies()->LifeOf(replica_host).server == server; });
    return !has_one && slot->map->copies()->IsMember({server, session.incarnation()}) && session.usable() &&
           !session.capacity().draining && !session.asks() && session.host() != sheds_host &&
           !IsAvoided(server, now_ns) && !absl::c_linear_search(hosts, session.host());
  };
  // Where a copy has missed a change, its old data is freed first, and its room with it.
  for (const CopyMap::Life& life : plan.stale) {
    ServerSession* const session = home_->sessions->at(life.server);
    // Room of a pressed server beyond its word is for the spans that remain there.
    slot->is_back = session->incarnation() == life.incarnation && !session->needs_memory() && may_take(life.server);
    if (slot->is_back) return session;
  }
  std::vector<PlacementCandidate>& candidates = slot->candidates;
  home_->sessions->FindCandidates(&candidates);
  std::erase_if(candidates, [&](const PlacementCandidate& candidate) { return !may_take(candidate.server); });
  const RegionKey& key = slot->map->key();
  const uint16_t chosen = ChooseReceiver(key.placement, key.id, slot->span, domains, &candidates);
  return chosen != kNoServer ? home_->sessions->at(chosen) : nullptr;
}

// Takes room for all reserved pages of the span, before anything moves.
bool Repairer::BeginJoin(Slot* slot) {
  slot->incarnation = slot->target->incarnation();
  slot->reserved_pages = slot->map->copies()->ReservedPages(slot->span);
  if (slot->reserved_pages > 0 && slot->is_back) {
    // Some of the region's quota is still there; this span's part of it is unknown.
    const uint64_t most = slot->map->copies()->AllReservedPages() * Room::kBytesPerPage;
    const uint64_t has = slot->map->reserved_bytes(slot->target->index());
    const uint64_t bytes =
        std::min(PriceOfWrite(slot->reserved_pages, /*creates_region=*/true), most - std::min(most, has));
    Join(slot, bytes > 0 ? slot->target->TryTakeRoom(bytes) : Room::Grant());
    return true;
  }
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
  slot->waiter.deadline_ns = NowNs() + (slot->sheds != kNoServer ? kShedNs : kRoomNs);
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
  std::optional<CopyMap::Leftover> leftover;
  slot->joining = copies->Join(slot->span, {server, slot->incarnation}, &leftover);
  if (leftover.has_value()) AddLeftover(slot->map.get(), slot->span, *leftover);
  if (!slot->joining.has_value()) {
    slot->target->EndRoom(std::move(grant), 0);
    return Fail(slot, /*avoid=*/false);
  }
  // After the copy has its place: the region keeps its quota at servers where a span has one.
  if (grant) {
    const uint64_t bytes = grant.bytes();
    if (!slot->map->AddReserved(server, slot->target->room(), std::move(grant))) return Fail(slot, /*avoid=*/false);
    slot->reserved_bytes = bytes;
    slot->target->NoteReturned();
  }
  Open(slot);
}

void Repairer::Open(Slot* slot) {
  IoRequest request;
  request.range = {slot->span * kChunksPerSpan, kChunksPerSpan};
  request.repair = RepairWork::kOpen;
  request.copy = slot->joining;
  Start(slot, request, slot->sheds != kNoServer ? kShedNs : kSpanNs, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    Repairer* const repairer = self->repairer;
    if (!io->Wait().ok()) return repairer->Fail(self, repairer->IsTargetToBlame(*self));
    self->target->NoteFreed();
    if (NRAM_PLANTED(join_copies_nothing)) return repairer->Flip(self);
    repairer->Copy(self);
  });
}

void Repairer::Start(Slot* slot, const IoRequest& wanted, int64_t timeout_ns, Io::Callback callback) {
  misses_ = 0;
  IoRequest request = wanted;
  request.op = Op::kWrite;
  request.in = slot->bytes.get();
  request.out = slot->bytes.get();
  request.found = slot->found.data();
  request.deadline_ns = NowNs() + timeout_ns;
  const IoPlace place{home_->sessions, slot->map.get(), home_->environment, home_->sessions->gate()};
  slot->io->Start(place, request, callback, slot);
}

void Repairer::Copy(Slot* slot) {
  IoRequest request;
  request.range = {slot->span * kChunksPerSpan, kChunksPerSpan};
  request.repair = RepairWork::kCopy;
  request.used_bytes = &slot->used_bytes;
  Start(slot, request, kCopyNs, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    self->repairer->OnCopied(self, io->Wait());
  });
}

void Repairer::OnCopied(Slot* slot, const absl::Status& status) {
  // A page may be lost: which one, only single reads tell.
  if (absl::IsDataLoss(status) && slot->map->copies()->IsJoining(slot->span, *slot->joining)) {
    return BeginPages(slot, slot->span * kPagesPerSpan, kPagesPerSpan);
  }
  if (!status.ok()) return Fail(slot, IsTargetToBlame(*slot));
  Flip(slot);
}

void Repairer::BeginPages(Slot* slot, uint64_t first, uint64_t count) {
  slot->page = first;
  slot->end_page = first + count;
  OnPageCopied(slot, absl::OkStatus());
}

void Repairer::OnPageCopied(Slot* slot, const absl::Status& status) {
  if (!status.ok() && !slot->mends) return Fail(slot, IsTargetToBlame(*slot));
  if (slot->page == slot->end_page) return slot->mends ? Rest(slot) : Flip(slot);
  IoRequest request;
  request.range = {slot->page++ * kChunksPerPage, kChunksPerPage};
  request.repair = slot->mends ? RepairWork::kMend : RepairWork::kCopy;
  request.used_bytes = slot->mends ? nullptr : &slot->used_bytes;
  Start(slot, request, kCopyNs, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    self->repairer->OnPageCopied(self, io->Wait());
  });
}

bool Repairer::IsTargetToBlame(const Slot& slot) const {
  // A copy that could not be written does not catch up any more. Else it was a source that could not be read.
  return slot.joining.has_value() && !slot.map->copies()->IsJoining(slot.span, *slot.joining) &&
         !slot.map->copies()->IsInSync(slot.span, *slot.joining);
}

void Repairer::Flip(Slot* slot) {
  if (slot->joining.has_value()) {
    const CopyMap::Plan plan = PlanFor(slot);
    const bool has_enough = static_cast<int>(plan.stay.size()) >= slot->map->copies()->copies();
    // A copy to be shed is dropped when another has taken its place.
    if (has_enough || slot->sheds != kNoServer) slot->leaves = LeavesOf(*slot, plan);
    // More was reserved meanwhile than was taken at the target.
    if (slot->map->copies()->ReservedPages(slot->span) > slot->reserved_pages) return Fail(slot, /*avoid=*/false);
  }
  IoRequest request;
  request.range = {slot->span * kChunksPerSpan, kChunksPerSpan};
  request.repair = RepairWork::kJoin;
  request.copy = slot->joining;
  request.leaves = slot->leaves;
  Start(slot, request, slot->sheds != kNoServer ? kShedNs : kSpanNs, [](Io* io, void* context) {
    auto* const self = static_cast<Slot*>(context);
    self->repairer->OnFlipped(self, io->Wait());
  });
}

void Repairer::OnFlipped(Slot* slot, const absl::Status& status) {
  CopyMap* const copies = slot->map->copies();
  bool has_left = false;
  for (const uint16_t replica_host : slot->leaves) {
    const std::optional<CopyMap::Leftover> leftover = copies->LeftoverOf(slot->span, replica_host);
    has_left = has_left || leftover.has_value();
    if (leftover.has_value()) AddLeftover(slot->map.get(), slot->span, *leftover);
  }
  NoteShed(std::exchange(slot->sheds, kNoServer), has_left);
  if (!status.ok()) return Fail(slot, IsTargetToBlame(*slot));
  if (slot->joining.has_value()) {
    ++made_;
    ReleaseReserved(slot, slot->used_bytes);  // the copied pages have used their room
  }
  Rest(slot);
}

// Gives back a region's quota at a server, beyond the room that its spans there have reserved.
void Repairer::GiveBackShare(RegionMap* map, uint16_t server) {
  if (!map->has_room()) return;
  // Gives back only room that is certainly not needed: keeps all that the spans that are still there may need.
  const uint64_t needed_bytes = map->copies()->ReservedBytesAt(server);
  const uint64_t bytes = map->reserved_bytes(server);
  if (bytes <= needed_bytes) return;
  ServerSession* const session = home_->sessions->at(server);
  (void)map->ReleaseReserved(server, session->room(), bytes - needed_bytes);
  session->NoteRoom();
}

void Repairer::ReleaseReserved(Slot* slot, uint64_t most_bytes) {
  if (slot->reserved_bytes == 0) return;
  const uint64_t bytes = std::min(std::exchange(slot->reserved_bytes, 0), most_bytes);
  (void)slot->map->ReleaseReserved(slot->target->index(), slot->target->room(), bytes);
  slot->target->NoteRoom();
}

void Repairer::Fail(Slot* slot, bool avoid) {
  NoteShed(std::exchange(slot->sheds, kNoServer), /*left=*/false);
  // A server that is about to end cannot wait for other work.
  if (avoid && slot->target != nullptr && !some_are_urgent_) Avoid(slot->target->index());
  if (slot->joining.has_value()) {
    slot->map->copies()->EndJoining(slot->span, *slot->joining);
    // Reserved room is kept: the copy is in sync, although the copies to be dropped are still there, or it still has
    // its place, and will be repaired again.
    if (slot->map->copies()->IsInSync(slot->span, *slot->joining)) ReleaseReserved(slot, slot->used_bytes);
  } else if (slot->target != nullptr) {
    ReleaseReserved(slot, UINT64_MAX);
  }
  Rest(slot);
}

// If the region was destroyed meanwhile: a message of the slot may have come after that, and made a part of it anew.
// One that another client takes over is not: not all of its servers may have heard of that client.
void Repairer::DestroyAgain(const RegionMap& map) {
  if (!map.is_destroyed() || NRAM_PLANTED(destroyed_made_anew)) return;
  for (const CopyMap::Whereabout& at : map.copies()->Whereabouts()) {
    home_->sessions->at(at.life.server)->DestroyLater({map.key().id, map.key().epoch, at.life.incarnation});
  }
}

void Repairer::Rest(Slot* slot) {
  const uint64_t rate = home_->options->repair_bytes_per_s;
  const int64_t now_ns = NowNs();
  const int64_t took_ns = now_ns - slot->began_ns;
  if (slot->is_urgent) {
    slot->owed_ns = 0;
  } else if (rate == PoolOptions::kRepairQuarter) {
    slot->owed_ns += 3 * took_ns;
  } else if (rate != PoolOptions::kRepairUnbounded) {
    const auto share_ns = static_cast<int64_t>(kRepairSlots * kSpanBytes * kNsPerSecond / rate);
    slot->owed_ns += std::max<int64_t>(share_ns - took_ns, 0);
  }
  DestroyAgain(*slot->map);
  slot->map = nullptr;
  if (slot->owed_ns < kRestNs && !stopping_ && ++slot->in_a_row < kInlineMax) return FindWork(slot);
  slot->until_ns = now_ns + std::exchange(slot->owed_ns, 0);
  slot->state = Slot::State::kResting;
}

}  // namespace nram
