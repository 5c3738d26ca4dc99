#include "tests/sim/donors_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "client/pool/copied_change.h"

namespace nram::sim {

using Event = DonorWorld::Event;
using Need = CopyMap::Need;
using Standing = CopyMap::Donor::Standing;

DonorClient::DonorClient(DonorWorld* world, uint32_t number, const std::vector<size_t>& donors, int copies)
    : world_(world), number_(number), copies_(copies), map_(copies), sessions_(donors.size()), donors_(donors.size()) {
  shedding_.Prepare(donors.size());
  for (size_t server = 0; server < donors.size(); ++server) {
    sessions_[server].donor = world->donor(donors[server]);
    sessions_[server].donor->sessions.emplace_back(this, static_cast<uint16_t>(server));
  }
  candidates_.reserve(donors.size());
}

// --- Sessions.

void DonorClient::HearAt(uint16_t server, int64_t at_ms) {
  Session& session = sessions_[server];
  session.hears_ms = std::max(at_ms, world_->now_ms() + 1);
  world_->At(session.hears_ms, {Event::Kind::kHear, number_, server, 0, ++session.hear_number});
}

void DonorClient::NoteAsks(uint16_t server) {
  const Session& session = sessions_[server];
  // A client that uses the server learns of it with the next answer, the others by a ping.
  const int64_t answer_ms = world_->now_ms() + world_->rng()->Between(1, world_->rng()->OneIn(2) ? 50 : kPingMs);
  const int64_t at_ms = std::max(answer_ms, session.heard_ms + session.hear_again_ms);
  if (at_ms < session.hears_ms) HearAt(server, at_ms);
}

void DonorClient::Listen(uint16_t server) {
  Session& session = sessions_[server];
  const Donor& donor = *session.donor;
  session.share = donor.asking.Share(donor.stored);
  session.room.free_bytes = donor.FreeForNew();
  session.room.pressed = donor.asking.pressed();
  session.room.takes_nothing = session.share > 0;
  if (session.room.free_bytes > kSpanBytes) session.room.refused = false;
  session.heard_ms = world_->now_ms();
  session.hear_again_ms =
      session.share == 0 ? 100 : std::clamp<int64_t>(2 * static_cast<int64_t>(donor.sessions.size()), 100, 2'000);
  shedding_.Hear(server, ++session.word, session.share);
  donors_[server].standing = session.share > 0 ? Standing::kAsks : Standing::kStays;
}

void DonorClient::Hear(uint16_t server, uint32_t number) {
  Session& session = sessions_[server];
  if (session.hear_number != number) return;
  if (is_frozen_) return HearAt(server, world_->now_ms() + kRenewMs);
  Listen(server);
  HearAt(server, world_->now_ms() + (session.share > 0 ? session.hear_again_ms : kRenewMs));
  if (session.share > 0) Wake();
}

void DonorClient::ListenAll() {
  for (uint16_t server = 0; server < sessions_.size(); ++server) Listen(server);
}

void DonorClient::HearAll() {
  ListenAll();
  for (uint16_t server = 0; server < sessions_.size(); ++server) {
    HearAt(server, world_->now_ms() + world_->rng()->Between(1, kRenewMs));
  }
}

void DonorClient::SetFrozen(bool is_frozen) {
  is_frozen_ = is_frozen;
  if (!is_frozen) Wake();
}

std::string DonorClient::FindStuck(uint16_t server) const {
  for (const uint32_t span : sessions_[server].here) {
    const Span& known = spans_[span];
    for (uint16_t other = 0; other < sessions_.size(); ++other) {
      const Donor& donor = *sessions_[other].donor;
      const auto servers = known.servers.begin();
      const bool is_there = std::find(servers, servers + known.count, other) != servers + known.count;
      if (is_there ? donor.asking.asks() || other == server
                   : donor.asking.asks() || donor.FreeForNew() < 2 * kSpanBytes) {
        continue;
      }
      return absl::StrCat("client ", number_, ": span ", span, " stays on donor ", sessions_[server].donor->index,
                          ", which asks, and donor ", donor.index, is_there ? " has a copy" : " has room");
    }
  }
  return "";
}

// --- The stored spans.

void DonorClient::Write(size_t spans) {
  for (size_t i = 0; i < spans; ++i) {
    const auto span = static_cast<uint32_t>(spans_.size());
    candidates_.clear();
    for (uint16_t server = 0; server < sessions_.size(); ++server) {
      const ServerRoom& room = sessions_[server].room;
      const uint64_t weight = PlacementWeight(room);
      if (weight > 0) candidates_.push_back({server, server + 1u, weight, false, 0, room.pressed});
    }
    std::vector<CopyMap::Life> lives;
    while (lives.empty()) {
      const SpanPlacement placement =
          PlaceSpan(PlacementPolicy::kStriped, RegionId{number_ + 1}, span, copies_, candidates_);
      if (!placement.placed()) break;
      for (const uint16_t server : placement.servers) {
        if (server == kNoServer) break;
        if (sessions_[server].donor->Take()) {
          lives.push_back(LifeOf(server));
          continue;
        }
        sessions_[server].room.refused = true;
        std::erase_if(candidates_, [&](const PlacementCandidate& candidate) { return candidate.server == server; });
      }
    }
    if (lives.empty()) {
      ++world_->mutable_counts()->no_place;
      continue;
    }
    spans_.emplace_back();
    CHECK(map_.Place(span, lives));
    for (const CopyMap::Life& life : lives) held_[KeyOf(span, life.server)].number = ++numbers_;
    CopiedChange write(CopiedChange::Kind::kData);
    CHECK(Carry(span, &write));
    Sync(span);
    if (lives.size() < static_cast<size_t>(copies_)) repairs_.emplace_back(world_->now_ms(), span);
  }
}

// All servers answer.
bool DonorClient::Carry(uint32_t span, CopiedChange* change) {
  CopyMap::Legs legs;
  for (;;) {
    const CopiedChange::Step step = map_.Next(span, change, /*in_time=*/true, {}, &legs);
    if (step.kind != CopiedChange::Step::Kind::kSend) return step.kind == CopiedChange::Step::Kind::kStored;
    for (const CopyMap::Leg& leg : legs) {
      CHECK(held_.contains(KeyOf(span, leg.life.server))) << "a message to a server that has nothing of the span";
      map_.NoteAnswered(span, leg);
      change->Ended(leg.replica_host, CopiedChange::End::kStored);
    }
  }
}

// Updates the copies in sync, from the map.
void DonorClient::Sync(uint32_t span) {
  Span& known = spans_[span];
  const CopyMap::Servers servers = map_.ServersOf(span);
  if (servers.empty()) ++world_->mutable_counts()->lost;
  for (int i = 0; i < known.count;) {
    const uint16_t server = known.servers[i];
    if (absl::c_linear_search(servers, server)) {
      ++i;
      continue;
    }
    std::vector<uint32_t>& here = sessions_[server].here;
    Held& held = held_.at(KeyOf(span, server));
    held_.at(KeyOf(here.back(), server)).place = held.place;
    here[held.place] = here.back();
    here.pop_back();
    held.place = UINT32_MAX;
    known.servers[i] = known.servers[--known.count];
  }
  for (const uint16_t server : servers) {
    const auto held = held_.find(KeyOf(span, server));
    if (held == held_.end()) {
      ++world_->mutable_counts()->lost;  // the server has nothing of it
      continue;
    }
    if (held->second.place != UINT32_MAX) continue;
    held->second.place = static_cast<uint32_t>(sessions_[server].here.size());
    sessions_[server].here.push_back(span);
    known.servers[known.count++] = server;
  }
}

void DonorClient::NoteLeft(uint32_t span, uint16_t server) {
  spans_[span].left = server;
  spans_[span].left_ms = world_->now_ms();
  const Held& held = held_.at(KeyOf(span, server));
  const uint32_t number = held.number;
  if (world_->now_ms() - held.came_ms < DonorWorld::kQuickMs) ++world_->mutable_counts()->quick;
  shedding_.NoteLeftover(server);
  world_->At(world_->now_ms() + 2, {Event::Kind::kFreed, number_, server, span, number});
}

void DonorClient::NoteFreed(uint16_t server, uint32_t span, uint32_t number) {
  shedding_.NoteFreed(server);
  if (sessions_[server].share == 0) sessions_[server].room.refused = false;
  const auto held = held_.find(KeyOf(span, server));
  if (held == held_.end() || held->second.number != number) return;
  CHECK_EQ(held->second.place, UINT32_MAX) << "a copy in sync was freed";
  held_.erase(held);
  sessions_[server].donor->Free();
}

void DonorClient::NoteCame(uint32_t span, uint16_t server) {
  Span& known = spans_[span];
  DonorCounts* const counts = world_->mutable_counts();
  const int64_t now_ms = world_->now_ms();
  if (known.left == server && now_ms - known.left_ms < DonorWorld::kWindowMs) ++counts->returns;
  if (now_ms - known.window_ms >= DonorWorld::kWindowMs) {
    known.window_ms = now_ms;
    known.moves = 0;
  }
  counts->moves_of_one = std::max<uint32_t>(counts->moves_of_one, ++known.moves);
  held_.at(KeyOf(span, server)).came_ms = now_ms;
}

// --- The walk.

void DonorClient::Wake() {
  if (std::exchange(ticks_, true)) return;
  world_->At(world_->now_ms() + 1 + world_->rng()->Between(0, kTickMs - 1), {Event::Kind::kTick, number_});
}

bool DonorClient::idle() const {
  return !shedding_.asks() && sheds_.empty() && repairs_.empty() &&
         absl::c_all_of(slots_, [](const Slot& slot) { return slot.state == Slot::State::kFree; });
}

void DonorClient::Tick() {
  if (is_frozen_) {
    ticks_ = false;
    return;
  }
  for (Slot& slot : slots_) {
    if (slot.state == Slot::State::kResting && world_->now_ms() >= slot.until_ms) slot.state = Slot::State::kFree;
  }
  for (uint16_t server = 0; shedding_.asks() && server < sessions_.size(); ++server) {
    const ServerRoom& room = sessions_[server].room;
    shedding_.HearRoom(server, !room.takes_nothing && !room.refused && room.free_bytes >= kSpanBytes);
  }
  if (shedding_.WantsWalk(world_->now_ns())) Walk();
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (slots_[slot].state != Slot::State::kFree) continue;
    slots_[slot].in_a_row = 0;
    FindWork(slot);
  }
  ticks_ = !idle();
  if (ticks_) world_->At(world_->now_ms() + kTickMs, {Event::Kind::kTick, number_});
}

// The used spans change every five seconds.
int DonorClient::HeatOf(uint32_t span) const {
  const uint64_t period = static_cast<uint64_t>(world_->now_ms()) / 5'000;
  for (int cooled = 0; cooled < SpanCopies::kHeatMax; ++cooled) {
    Rng random((uint64_t{number_} << 32 | span) * 1'000'003 + period - static_cast<uint64_t>(cooled));
    if (random.OneIn(6)) return SpanCopies::kHeatMax - cooled;
  }
  return 0;
}

// All spans are seen in one tick. Only the spans of servers that ask matter.
void DonorClient::Walk() {
  shedding_.BeginPass();
  for (uint16_t server = 0; server < sessions_.size(); ++server) {
    if (donors_[server].standing != Standing::kAsks) continue;
    for (const uint32_t span : sessions_[server].here) {
      Span& known = spans_[span];
      bool has_sibling = false;
      for (int i = 0; i < known.count; ++i) {
        has_sibling = has_sibling || donors_[known.servers[i]].standing == Standing::kStays;
      }
      const int rank = Shedding::RankOf(has_sibling, has_sibling ? 0 : HeatOf(span));
      shedding_.Count(server, rank);
      if (!shedding_.Takes(server, rank, world_->now_ns())) continue;
      if (known.listed || sheds_.size() >= kShedsMax) {
        shedding_.Stayed(server);
        continue;
      }
      known.listed = true;
      sheds_.push_back({span, server});
    }
  }
  shedding_.EndPass();
}

// --- Slots.

std::optional<DonorClient::Todo> DonorClient::TakeTodo(size_t slot) {
  const auto shed = [&]() -> std::optional<Todo> {
    if (sheds_.empty()) return std::nullopt;
    const Todo todo = sheds_.front();
    sheds_.pop_front();
    spans_[todo.span].listed = false;
    return todo;
  };
  const auto repair = [&]() -> std::optional<Todo> {
    const int64_t now_ms = world_->now_ms();
    if (slot >= kRepairSlots || repairs_.empty() || repairs_.front().first > now_ms) return std::nullopt;
    // When nothing can be done, a walk ends after kMissesMax misses, and the next one begins later.
    if (misses_ >= kMissesMax && now_ms < repair_again_ms_) return std::nullopt;
    if (misses_ >= kMissesMax) misses_ = 0;
    const Todo todo{repairs_.front().second, kNoServer};
    repairs_.pop_front();
    return todo;
  };
  const std::optional<Todo> first = slot == 0 ? repair() : shed();
  if (first.has_value()) return first;
  return slot == 0 ? shed() : repair();
}

void DonorClient::FindWork(size_t slot) {
  slots_[slot].state = Slot::State::kBusy;
  while (const std::optional<Todo> todo = TakeTodo(slot)) {
    const bool is_at_work = absl::c_any_of(slots_, [&](const Slot& other) {
      return &other != &slots_[slot] && other.state == Slot::State::kBusy && other.todo.span == todo->span;
    });
    if (!is_at_work && Begin(slot, *todo)) return;
    if (todo->sheds != kNoServer) shedding_.Stayed(todo->sheds);
  }
  slots_[slot].todo.span = UINT32_MAX;
  slots_[slot].state = Slot::State::kFree;
}

// As Repairer::PlanFor.
CopyMap::Plan DonorClient::PlanFor(const Todo& todo) {
  const bool sheds = todo.sheds != kNoServer;
  const Standing standing = sheds ? std::exchange(donors_[todo.sheds].standing, Standing::kLeaves) : Standing::kStays;
  CopyMap::Plan plan = map_.PlanFor(todo.span, donors_);
  if (!sheds) return plan;
  donors_[todo.sheds].standing = standing;
  if (plan.need == Need::kNothing) return plan;
  const bool is_there =
      absl::c_any_of(plan.leave, [&](uint16_t replica_host) { return map_.LifeOf(replica_host).server == todo.sheds; });
  if (!is_there) {
    plan.need = Need::kNothing;
  } else if (plan.has_sibling && copies_ > 1) {
    plan.need = Need::kLeave;
  }
  return plan;
}

// As Repairer::ChooseTarget: each donor is a host.
uint16_t DonorClient::ChooseTarget(const Todo& todo, const CopyMap::Plan& plan) {
  const int64_t now_ms = world_->now_ms();
  const auto may_take = [&](uint16_t server) {
    const Session& session = sessions_[server];
    const auto has = [&](uint16_t replica_host) { return map_.LifeOf(replica_host).server == server; };
    return !session.room.takes_nothing && server != todo.sheds && now_ms >= session.avoided_until_ms &&
           !absl::c_any_of(plan.leave, has) &&
           !absl::c_any_of(plan.stay, [&](const CopyMap::Life& life) { return life.server == server; });
  };
  if (todo.sheds != kNoServer) ++world_->mutable_counts()->searches;
  for (const CopyMap::Life& life : plan.stale) {
    const ServerRoom& room = sessions_[life.server].room;
    if ((!room.pressed || room.free_bytes >= kSpanBytes) && may_take(life.server)) return life.server;
  }
  candidates_.clear();
  for (uint16_t server = 0; server < sessions_.size(); ++server) {
    const ServerRoom& room = sessions_[server].room;
    const uint64_t weight = PlacementWeight(room);
    if (weight > 0 && may_take(server)) candidates_.push_back({server, server + 1u, weight, false, 0, room.pressed});
  }
  const uint16_t target = ChooseReceiver(PlacementPolicy::kStriped, RegionId{number_ + 1}, todo.span, {}, &candidates_);
  if (target == kNoServer && todo.sheds != kNoServer) ++world_->mutable_counts()->in_vain;
  return target;
}

bool DonorClient::Begin(size_t index, const Todo& todo) {
  Slot& slot = slots_[index];
  const bool sheds = todo.sheds != kNoServer;
  if (sheds && sessions_[todo.sheds].share == 0) return false;
  const CopyMap::Plan plan = PlanFor(todo);
  if (plan.need == Need::kNothing) return false;
  slot = {.state = Slot::State::kBusy, .owed_ns = slot.owed_ns, .in_a_row = slot.in_a_row};
  slot.began_ms = world_->now_ms();
  slot.todo = todo;
  if (plan.need == Need::kLeave) {
    world_->At(world_->now_ms() + 1, {Event::Kind::kSlot, number_, static_cast<uint32_t>(index)});
    return true;
  }
  if (sheds && !shedding_.MaySearch(todo.sheds, world_->now_ns())) return false;
  slot.target = ChooseTarget(todo, plan);
  if (sheds && slot.target != kNoServer) shedding_.NoteSomewhere(todo.sheds);
  if (slot.target == kNoServer) {
    if (sheds) shedding_.NoteNowhere(todo.sheds, world_->now_ns());
    if (!sheds) {
      repairs_.emplace_back(world_->now_ms() + kAvoidMs, todo.span);
      if (++misses_ == kMissesMax) repair_again_ms_ = world_->now_ms() + kPassMs;
    }
    return false;
  }
  if (!sheds) misses_ = 0;
  BeginCopy(&slot, index);
  return true;
}

void DonorClient::BeginCopy(Slot* slot, size_t index) {
  const uint32_t span = slot->todo.span;
  Session& target = sessions_[slot->target];
  DonorCounts* const counts = world_->mutable_counts();
  if (target.donor->asking.asks()) ++counts->to_asking;
  slot->copies = true;
  const int64_t now_ms = world_->now_ms();
  const bool is_held = held_.contains(KeyOf(span, slot->target));
  if (!is_held && !target.donor->Take()) {
    ++counts->refusals;
    target.room.refused = true;
    slot->fails = true;
    world_->At(now_ms + 1, {Event::Kind::kSlot, number_, static_cast<uint32_t>(index)});
    return;
  }
  held_[KeyOf(span, slot->target)].number = ++numbers_;
  std::optional<CopyMap::Leftover> leftover;
  slot->joining = map_.Join(span, LifeOf(slot->target), &leftover);
  CHECK(slot->joining.has_value()) << "client " << number_ << ", span " << span;
  if (leftover.has_value()) NoteLeft(span, leftover->life.server);
  CopiedChange open(CopiedChange::Kind::kOpen);
  open.SetCopy(*slot->joining);
  CHECK(Carry(span, &open));
  // The span's bytes pass one link after the other, as soon as the transfers before them are through.
  const double took_ns = 1e9 * kSpanBytes / static_cast<double>(world_->options().link_bytes_per_s);
  const auto now_ns = static_cast<double>(world_->now_ns());
  Donor* const source = sessions_[slot->todo.sheds != kNoServer ? slot->todo.sheds : spans_[span].servers[0]].donor;
  double end_ns = 0;
  for (double* const free_ns : {&source->out_ns, &in_ns_, &out_ns_, &target.donor->in_ns}) {
    *free_ns = std::max(*free_ns, now_ns) + took_ns;
    end_ns = std::max(end_ns, *free_ns);
  }
  auto end_ms = static_cast<int64_t>((end_ns + static_cast<double>(5 * kRoundTripNs)) / kNsPerMs) + 1;
  slot->fails = end_ms - now_ms > kCopyMs;
  if (slot->fails) end_ms = now_ms + kCopyMs;
  world_->At(end_ms, {Event::Kind::kSlot, number_, static_cast<uint32_t>(index)});
}

void DonorClient::EndSlot(size_t index) {
  Slot& slot = slots_[index];
  const Todo todo = slot.todo;
  const bool sheds = todo.sheds != kNoServer;
  if (!slot.fails) {
    Flip(&slot);
  } else {
    if (slot.joining.has_value()) {
      ++world_->mutable_counts()->late;
      map_.EndJoining(todo.span, *slot.joining);
    }
    sessions_[slot.target].avoided_until_ms = world_->now_ms() + kAvoidMs;
    if (sheds) shedding_.Stayed(todo.sheds);
  }
  // A copy is missing, or has not left.
  Todo again{todo.span, kNoServer};
  if (PlanFor(again).need != Need::kNothing) {
    repairs_.emplace_back(world_->now_ms() + (slot.fails ? kAvoidMs : 0), todo.span);
  }
  Rest(index);
  Wake();
}

void DonorClient::Flip(Slot* slot) {
  const Todo& todo = slot->todo;
  const bool sheds = todo.sheds != kNoServer;
  DonorCounts* const counts = world_->mutable_counts();
  const CopyMap::Plan plan = PlanFor(todo);
  CopiedChange join(CopiedChange::Kind::kJoin);
  if (slot->joining.has_value()) join.SetCopy(*slot->joining);
  absl::InlinedVector<uint16_t, SpanCopies::kMost> leaves;
  for (const uint16_t replica_host : plan.leave) {
    if (!sheds || map_.LifeOf(replica_host).server == todo.sheds) leaves.push_back(replica_host);
  }
  for (const uint16_t replica_host : leaves) join.Leave(replica_host);
  (void)Carry(todo.span, &join);
  Sync(todo.span);
  bool has_left = false;
  for (const uint16_t replica_host : leaves) {
    const std::optional<CopyMap::Leftover> leftover = map_.LeftoverOf(todo.span, replica_host);
    if (!leftover.has_value()) continue;
    has_left = true;
    NoteLeft(todo.span, leftover->life.server);
  }
  if (slot->joining.has_value()) NoteCame(todo.span, slot->target);
  if (!sheds) {
    counts->repairs += slot->joining.has_value() ? kSpanBytes : 0;
  } else if (has_left) {
    (slot->joining.has_value() ? counts->moves : counts->drops) += kSpanBytes;
    counts->last_shed_ms = world_->now_ms();
    shedding_.Left(todo.sheds);
  } else {
    shedding_.Stayed(todo.sheds);
  }
}

void DonorClient::Rest(size_t index) {
  Slot& slot = slots_[index];
  const int64_t now_ms = world_->now_ms();
  slot.owed_ns = slot.todo.sheds != kNoServer ? 0 : slot.owed_ns + 3 * (now_ms - slot.began_ms) * kNsPerMs;
  if (slot.owed_ns < kTickMs * kNsPerMs && ++slot.in_a_row < kInlineMax) return FindWork(index);
  slot.until_ms = now_ms + std::exchange(slot.owed_ns, 0) / kNsPerMs;
  slot.state = Slot::State::kResting;
  slot.todo.span = UINT32_MAX;
}

std::string DonorClient::Check(std::vector<uint64_t>* stored) const {
  for (uint32_t span = 0; span < spans_.size(); ++span) {
    const CopyMap::Servers servers = map_.ServersOf(span);
    if (servers.empty()) return absl::StrCat("client ", number_, ": span ", span, " has no copy");
    for (const uint16_t server : servers) {
      if (held_.contains(KeyOf(span, server))) continue;
      return absl::StrCat("client ", number_, ": server ", server, " has nothing of span ", span);
    }
  }
  for (const auto& [key, held] : held_) {
    const Donor* const donor = sessions_[key & 0xFFFF].donor;
    (*stored)[donor->index] += kSpanBytes;
  }
  return "";
}

}  // namespace nram::sim
