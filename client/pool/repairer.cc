#include "client/pool/repairer.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "client/pool/placing.h"
#include "proto/price.h"

namespace nram {

Repairer::Repairer(const RegionHome* home) : home_(home) {
  for (Slot& slot : slots_) slot.repairer = this;
  for (Freeing& freeing : freeing_) freeing.repairer = this;
}

Repairer::~Repairer() { AwaitStopped(); }

void Repairer::AwaitStopped() {
  const auto is_busy = [&] {
    return absl::c_any_of(slots_, [](const Slot& slot) { return slot.state == Slot::State::kBusy; }) ||
           absl::c_any_of(freeing_, [](const Freeing& freeing) { return freeing.busy.load(); });
  };
  // Everything that they wait for has been told that the pool closes.
  PollUntil(INT64_MAX, 1, [&] { return !is_busy(); });
  at_map_ = nullptr;
  for (Slot& slot : slots_) slot.map = nullptr;
  MutexLock lock(&mu_);
  todo_.Clear();
  shed_todo_.Clear();
  listed_.Clear();
  leftovers_.Clear();
}

void Repairer::Forget(const RegionMap& map) {
  CHECK(map.is_closing());
  MutexLock lock(&mu_);
  for (size_t left = todo_.size(); left > 0; --left) {
    Todo todo = todo_.PopFront();
    if (todo.map.get() != &map) {
      todo_.PushBack(std::move(todo));
    } else {
      listed_.Erase(HashOf({&map, todo.span | (todo.mends ? kMendBit : 0)}));
    }
  }
  for (size_t left = shed_todo_.size(); left > 0; --left) {
    Todo todo = shed_todo_.PopFront();
    if (todo.map.get() != &map) {
      shed_todo_.PushBack(std::move(todo));
    } else {
      listed_.Erase(HashOf({&map, todo.span}));
      NoteShed(todo.sheds, /*left=*/false);
    }
  }
  for (size_t left = leftovers_.size(); left > 0; --left) {
    Free free = leftovers_.PopFront();
    if (free.map.get() != &map) {
      leftovers_.PushBack(std::move(free));
    } else {
      shedding_.NoteFreed(free.leftover.life.server);
    }
  }
}

CopiesReport Repairer::report() const {
  MutexLock lock(&mu_);
  return report_;
}

// --- The walk.

void Repairer::Tick(int64_t now_ns) {
  if (stopping_) return;
  if (home_->copied->empty()) {
    at_map_ = nullptr;
    in_pass_ = false;
    counting_ = {};
    const bool told = client_ == 0 || report() == CopiesReport{.client = client_, .made = made_};
    if (!told && now_ns >= told_ns_ + kTellNs) Tell(now_ns);
    return FreeLeftovers();
  }
  if (client_ == 0) {
    client_ = home_->environment->RandomId();
    Prepare();
  }
  for (Slot& slot : slots_) {
    if (slot.state == Slot::State::kResting && now_ns >= slot.until_ns) slot.state = Slot::State::kFree;
  }
  HearServers();
  Walk(now_ns);
  for (Slot& slot : slots_) {
    if (slot.state != Slot::State::kFree) continue;
    slot.in_a_row = 0;
    FindWork(&slot);
  }
  FreeLeftovers();
}

void Repairer::Prepare() {
  const size_t servers = home_->sessions->size();
  for (Slot& slot : slots_) {
    slot.io = std::make_unique<Io>(kParts);
    slot.io->Prepare();
    slot.bytes = std::make_unique<std::byte[]>(kSpanBytes);
    slot.donors.reserve(servers);
    slot.candidates.reserve(servers);
  }
  shedding_.Prepare(home_->sessions->most());
  donors_.reserve(servers);
  sheds_.reserve(kSpansATick + CopyMap::kSpansPerTableBlock);
  found_.reserve(kSpansATick + CopyMap::kSpansPerTableBlock);
  found_first_.reserve(kSpansATick + CopyMap::kSpansPerTableBlock);
  MutexLock lock(&mu_);
  avoided_until_ns_.resize(home_->sessions->most());
  todo_.Reserve(kTodoMax + kMendsMax);
  shed_todo_.Reserve(kShedsMax);
  listed_.Reserve(kTodoMax + kMendsMax + kShedsMax);
  tried_.Reserve(kTriedMax);
  leftovers_.Reserve(kLeftoversMax);
}

void Repairer::LookAtDonors(Donors* donors) const {
  using Standing = CopyMap::Donor::Standing;
  donors->clear();
  for (const auto& session : *home_->sessions) {
    CopyMap::Donor donor;
    donor.is_there = session->up();
    // Without calls to the server, only this look notices that a connection is broken.
    if (donor.is_there && !session->usable()) session->Suspect();
    if (session->AwayNs() >= home_->options->replace_after_ms * kNsPerMs) {
      donor.standing = Standing::kAway;
    } else if (session->capacity().leaving) {
      donor.standing = Standing::kLeaves;
    } else if (session->asked().share > 0) {
      donor.standing = Standing::kAsks;
    }
    donors->push_back(donor);
  }
}

void Repairer::HearServers() {
  bool some_are_urgent = false;
  for (const auto& session : *home_->sessions) {
    if (session->asleep()) continue;
    const ServerSession::Asked asked = session->asked();
    const ServerCapacity capacity = session->capacity();
    shedding_.Hear(session->index(), asked.word, capacity.leaving ? 0 : asked.share);
    if (shedding_.asks()) {
      shedding_.HearRoom(session->index(), session->usable() && !capacity.draining && !session->asks() &&
                                               !session->refused() && capacity.free_bytes >= kSpanBytes);
    }
    some_are_urgent = some_are_urgent || (capacity.leaving && capacity.urgent);
  }
  some_are_urgent_ = some_are_urgent;
  if (shedding_.WantsWalk(NowNs()) || some_are_urgent) next_pass_ns_ = 0;
}

void Repairer::NoteShed(uint16_t server, bool left) {
  if (server == kNoServer) return;
  left ? shedding_.Left(server) : shedding_.Stayed(server);
}

void Repairer::Walk(int64_t now_ns) {
  if (!in_pass_) {
    if (now_ns < next_pass_ns_) return;
    in_pass_ = true;
    shedding_.BeginPass();
  }
  LookAtDonors(&donors_);
  size_t spans = 0;
  const size_t regions_max = shedding_.asks() ? kRegionsATickAsked : kRegionsATick;
  for (size_t regions = 0; regions < regions_max && spans < kSpansATick;) {
    if (at_map_ != nullptr && at_map_->is_closing()) at_map_ = nullptr;
    if (at_map_ == nullptr) {
      at_map_ = home_->copied->Next();
      at_span_ = 0;
      ++regions;
      if (at_map_ == nullptr) return EndPass(now_ns);
    }
    found_.clear();
    found_first_.clear();
    sheds_.clear();
    const auto incarnation_of = [&](uint16_t server) { return home_->sessions->at(server)->incarnation(); };
    const auto copies = static_cast<uint64_t>(at_map_->copies()->copies());
    const auto visit = [&](uint64_t span, CopyMap::Health health, const CopyMap::Plan& plan) {
      ++spans;
      // A sealed span of one copy moves, and that is all.
      counting_.moving += plan.moves && (health == CopyMap::Health::kInSync || copies == 1) ? 1 : 0;
      if (plan.need != CopyMap::Need::kNothing)
        (plan.moves && !plan.has_sibling ? found_first_ : found_).push_back(span);
      const int rank = Shedding::RankOf(plan.has_sibling, plan.heat);
      for (const uint16_t server : plan.asked) shedding_.Count(server, rank);
      const bool sheds = plan.need != CopyMap::Need::kLeave && health != CopyMap::Health::kRepairing;
      for (const uint16_t server : plan.asked) {
        if (!sheds || !shedding_.Takes(server, rank, now_ns)) continue;
        sheds_.emplace_back(span, server);
        break;
      }
      if (copies == 1) return;
      counting_.wanted = counting_.wanted == 0 ? copies : std::min(counting_.wanted, copies);
      counting_.in_sync += health == CopyMap::Health::kInSync ? 1 : 0;
      counting_.degraded += health == CopyMap::Health::kDegraded ? 1 : 0;
      counting_.repairing += health == CopyMap::Health::kRepairing ? 1 : 0;
      counting_.lost += health == CopyMap::Health::kLost ? 1 : 0;
    };
    at_span_ = at_map_->copies()->Walk(at_span_, kSpansATick - spans, donors_, incarnation_of, visit, cools_);
    ListWork(now_ns);
    if (at_span_ != UINT64_MAX) continue;
    // Spans that were shed leave room that was reserved for them.
    for (uint16_t server = 0; shedding_.asks() && server < donors_.size(); ++server) {
      if (donors_[server].standing == CopyMap::Donor::Standing::kAsks) GiveBackShare(at_map_.get(), server);
    }
    at_map_ = nullptr;
  }
}

// Takes over the findings of the walk in its region.
void Repairer::ListWork(int64_t now_ns) {
  RegionMap* const map = at_map_.get();
  MutexLock lock(&mu_);
  if (map->is_closing()) {
    for (const auto& [span, server] : sheds_) NoteShed(server, /*left=*/false);
    return;
  }
  uint64_t damaged = 0;
  if (!todo_.full() && map->copies()->TakeDamaged(&damaged) && listed_.Insert(HashOf({map, damaged | kMendBit}))) {
    todo_.PushFront({map->Share(), damaged, /*mends=*/true});
    found_work_ = true;
  }
  if (tried_.full() || now_ns >= try_again_ns_) {
    tried_.Clear();
    try_again_ns_ = now_ns + AvoidNs();
  }
  ListSheds();
  for (const std::vector<uint64_t>* const found : {&found_, &found_first_}) {
    for (const uint64_t span : *found) {
      const uint64_t place = HashOf({map, span});
      if (todo_.size() >= kTodoMax || tried_.Contains(place) || !listed_.Insert(place)) continue;
      // A span that would be lost with its server is repaired first.
      found == &found_first_ ? todo_.PushFront({map->Share(), span}) : todo_.PushBack({map->Share(), span});
      found_work_ = true;
    }
  }
}

// Donors wait for this memory, so shedding precedes all repair.
void Repairer::ListSheds() {
  for (const auto& [span, server] : sheds_) {
    if (shed_todo_.size() >= kShedsMax || !listed_.Insert(HashOf({at_map_.get(), span}))) {
      NoteShed(server, /*left=*/false);
      continue;
    }
    shed_todo_.PushBack({at_map_->Share(), span, /*mends=*/false, server});
  }
}

void Repairer::EndPass(int64_t now_ns) {
  in_pass_ = false;
  shedding_.EndPass();
  cools_ = now_ns >= next_cool_ns_;
  if (cools_) next_cool_ns_ = now_ns + kCoolNs;
  // While there is work, and some of it can be done, the walk goes on.
  next_pass_ns_ = found_work_ && misses_ < kTodoMax ? now_ns : now_ns + std::min(kPassNs, AvoidNs());
  if (now_ns >= told_ns_ + kTellNs || !counting_.IsAsWellAs(told_)) Tell(now_ns);
  counting_ = {};
  found_work_ = false;
}

void Repairer::Tell(int64_t now_ns) {
  CopiesReport told = counting_;
  told.client = client_;
  told.made = made_;
  told_ns_ = now_ns;
  told_ = told;
  pace_.Note(told.made, told.left(), now_ns);
  told.done = pace_.done();
  told.left_ms = pace_.left_ms();
  {
    MutexLock lock(&mu_);
    report_ = told;
  }
  for (const auto& session : *home_->sessions) session->NoteCopies(told);
}

bool Repairer::IsAtWork(const Todo& todo) const {
  return !todo.mends && absl::c_linear_search(at_work_, Place{todo.map.get(), todo.span});
}

std::optional<Repairer::Todo> Repairer::TakeTodo(const Slot& slot) {
  const auto index = static_cast<size_t>(&slot - slots_.data());
  MutexLock lock(&mu_);
  at_work_[index] = {};
  // Slot 0 serves repair first; the others serve spans to be shed first.
  std::array<BoundedQueue<Todo>*, 2> queues = {&shed_todo_, &todo_};
  if (index == 0) std::swap(queues[0], queues[1]);
  for (BoundedQueue<Todo>* const queue : queues) {
    if (queue == &todo_ && index >= kRepairSlots && !some_are_urgent_) continue;
    while (!queue->empty() && !stopping_) {
      std::optional<Todo> todo = queue->PopFront();
      listed_.Erase(HashOf({todo->map.get(), todo->span | (todo->mends ? kMendBit : 0)}));
      // Two slots on one span would take each other's copy for their own.
      if (IsAtWork(*todo) || todo->map->is_closing()) {
        NoteShed(todo->sheds, /*left=*/false);
        continue;
      }
      if (!todo->mends) at_work_[index] = {todo->map.get(), todo->span};
      return todo;
    }
  }
  return std::nullopt;
}

bool Repairer::IsAvoided(uint16_t server, int64_t now_ns) const {
  MutexLock lock(&mu_);
  return now_ns < avoided_until_ns_[server];
}

void Repairer::Avoid(uint16_t server) {
  MutexLock lock(&mu_);
  avoided_until_ns_[server] = NowNs() + AvoidNs();
}

// --- Leftovers: data that a server still has of spans that have moved away.

void Repairer::AddLeftover(RegionMap* map, uint64_t span, const CopyMap::Leftover& leftover) {
  MutexLock lock(&mu_);
  // A leftover that is not remembered stays there until the region is destroyed.
  if (leftovers_.full() || map->is_closing()) return;
  leftovers_.PushBack({map->Share(), span, leftover});
  shedding_.NoteLeftover(leftover.life.server);
}

void Repairer::FreeLeftovers() {
  for (Freeing& freeing : freeing_) {
    if (freeing.busy) continue;
    freeing.in_a_row = 0;
    if (!FreeNext(&freeing)) return;
  }
}

bool Repairer::FreeNext(Freeing* freeing) {
  ServerLife* life = nullptr;
  for (size_t looks = 0; life == nullptr; ++looks) {
    MutexLock lock(&mu_);
    if (leftovers_.empty() || stopping_ || looks == kLooksMax) return false;
    Free what = leftovers_.PopFront();
    const CopyMap::Life& its = what.leftover.life;
    const ServerSession& session = *home_->sessions->at(its.server);
    const bool is_over =
        session.incarnation() != its.incarnation || what.map->is_closing() || !what.map->CheckUsable().ok();
    if (!is_over && !session.usable()) {
      leftovers_.PushBack(std::move(what));  // later
      continue;
    }
    ServerLife* const present = session.life();
    if (is_over || present->incarnation != its.incarnation) {
      shedding_.NoteFreed(its.server);
      continue;
    }
    life = present;
    freeing->what = std::move(what);
  }
  freeing->busy = true;
  const RegionKey& key = freeing->what.map->key();
  Call& call = freeing->call;
  call.request = MessageHeader(TrimRequest{.region = key.id,
                                           .range = {freeing->what.span * kChunksPerSpan, kChunksPerSpan},
                                           .epoch = key.epoch,
                                           .span_generation = freeing->what.leftover.generation});
  call.deadline_ns = NowNs() + home_->options->io_timeout_ms * kNsPerMs;
  call.context = freeing;
  call.done = [](Call* done) {
    auto* const self = static_cast<Freeing*>(done->context);
    self->repairer->OnFreed(self);
  };
  life->bulk->Start(&call);
  return true;
}

void Repairer::OnFreed(Freeing* freeing) {
  const Call& call = freeing->call;
  const uint16_t server = freeing->what.leftover.life.server;
  ServerSession* const session = home_->sessions->at(server);
  const bool answered = call.code == absl::StatusCode::kOk;
  if (!answered) {
    session->Suspect();
    AddLeftover(freeing->what.map.get(), freeing->what.span, freeing->what.leftover);
  } else if (session->asked().share == 0) {
    session->NoteFreed();
  }
  shedding_.NoteFreed(server);
  bool is_last = false;
  {
    MutexLock lock(&mu_);
    is_last = leftovers_.empty();
  }
  if (is_last && !freeing->what.map->copies()->IsUsed(server)) GiveBackShare(freeing->what.map.get(), server);
  freeing->what.map = nullptr;
  // Each may end before it has begun: the rest waits for a tick.
  if (answered && !is_last && ++freeing->in_a_row < kInlineMax && FreeNext(freeing)) return;
  freeing->busy = false;
}

}  // namespace nram
