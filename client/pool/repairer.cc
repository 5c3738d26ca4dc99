#include "client/pool/repairer.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/clock.h"
#include "client/pool/placing.h"
#include "proto/price.h"

namespace nram {

Repairer::Repairer(const RegionHome* home) : home_(home), avoided_until_ns_(home->options->servers.size()) {
  for (Slot& slot : slots_) slot.repairer = this;
  for (Freeing& freeing : freeing_) freeing.repairer = this;
}

Repairer::~Repairer() { AwaitStopped(); }

void Repairer::AwaitStopped() {
  const auto is_busy = [&] {
    return absl::c_any_of(slots_, [](const Slot& slot) { return slot.state == Slot::State::kBusy; }) ||
           absl::c_any_of(freeing_, [](const Freeing& freeing) { return freeing.busy.load(); });
  };
  // What they wait for has been told that the pool closes.
  for (Mutex none; is_busy();) {
    CondVar nothing;
    MutexLock lock(&none);
    nothing.WaitUntil(&none, DeadlineAfterMs(1));
  }
  at_map_ = nullptr;
  for (Slot& slot : slots_) slot.map = nullptr;
  MutexLock lock(&mu_);
  todo_.Clear();
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
  for (size_t left = leftovers_.size(); left > 0; --left) {
    Free free = leftovers_.PopFront();
    if (free.map.get() != &map) leftovers_.PushBack(std::move(free));
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
  donors_.reserve(servers);
  found_.reserve(kSpansATick + CopyMap::kSpansPerTableBlock);
  MutexLock lock(&mu_);
  todo_.Reserve(kTodoMax + kMendsMax);
  listed_.Reserve(kTodoMax + kMendsMax);
  tried_.Reserve(kTriedMax);
  leftovers_.Reserve(kLeftoversMax);
}

void Repairer::LookAtDonors(Donors* donors) const {
  using Standing = CopyMap::Donor::Standing;
  donors->clear();
  for (const auto& session : *home_->sessions) {
    CopyMap::Donor donor;
    donor.is_there = session->up();
    // Where nothing is asked, nobody else notices that a connection is broken.
    if (donor.is_there && !session->usable()) session->Suspect();
    if (session->AwayNs() >= home_->options->replace_after_ms * kNsPerMs) {
      donor.standing = Standing::kAway;
    } else if (session->capacity().leaving) {
      donor.standing = Standing::kLeaves;
    }
    donors->push_back(donor);
  }
}

void Repairer::Walk(int64_t now_ns) {
  if (at_map_ == nullptr && now_ns < next_pass_ns_) return;
  LookAtDonors(&donors_);
  size_t spans = 0;
  for (size_t regions = 0; regions < kRegionsATick && spans < kSpansATick;) {
    if (at_map_ != nullptr && at_map_->is_closing()) at_map_ = nullptr;
    if (at_map_ == nullptr) {
      at_map_ = home_->copied->Next();
      at_span_ = 0;
      ++regions;
      if (at_map_ == nullptr) return EndPass(now_ns);
    }
    found_.clear();
    const auto incarnation_of = [&](uint16_t server) { return home_->sessions->at(server)->incarnation(); };
    const auto copies = static_cast<uint64_t>(at_map_->copies()->copies());
    const auto visit = [&](uint64_t span, CopyMap::Health health, const CopyMap::Plan& plan) {
      ++spans;
      // A sealed span of one copy moves, and that is all.
      counting_.moving += plan.moves && (health == CopyMap::Health::kInSync || copies == 1) ? 1 : 0;
      if (plan.need != CopyMap::Need::kNothing) found_.push_back(span);
      if (copies == 1) return;
      counting_.wanted = counting_.wanted == 0 ? copies : std::min(counting_.wanted, copies);
      counting_.in_sync += health == CopyMap::Health::kInSync ? 1 : 0;
      counting_.degraded += health == CopyMap::Health::kDegraded ? 1 : 0;
      counting_.repairing += health == CopyMap::Health::kRepairing ? 1 : 0;
      counting_.lost += health == CopyMap::Health::kLost ? 1 : 0;
    };
    at_span_ = at_map_->copies()->Walk(at_span_, kSpansATick - spans, donors_, incarnation_of, visit);
    ListWork(now_ns);
    if (at_span_ == UINT64_MAX) at_map_ = nullptr;
  }
}

// What the walk has found in its region.
void Repairer::ListWork(int64_t now_ns) {
  RegionMap* const map = at_map_.get();
  MutexLock lock(&mu_);
  if (map->is_closing()) return;
  uint64_t damaged = 0;
  if (!todo_.full() && map->copies()->TakeDamaged(&damaged) && listed_.Insert(HashOf({map, damaged | kMendBit}))) {
    todo_.PushFront({map->Share(), damaged, /*mends=*/true});
    found_work_ = true;
  }
  if (tried_.full() || now_ns >= try_again_ns_) {
    tried_.Clear();
    try_again_ns_ = now_ns + AvoidNs();
  }
  for (const uint64_t span : found_) {
    const uint64_t place = HashOf({map, span});
    if (todo_.size() >= kTodoMax || tried_.Contains(place) || !listed_.Insert(place)) continue;
    todo_.PushBack({map->Share(), span});
    found_work_ = true;
  }
}

void Repairer::EndPass(int64_t now_ns) {
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
  while (!todo_.empty() && !stopping_) {
    std::optional<Todo> todo = todo_.PopFront();
    listed_.Erase(HashOf({todo->map.get(), todo->span | (todo->mends ? kMendBit : 0)}));
    // Two slots on one span would take each other's copy for their own.
    if (IsAtWork(*todo) || todo->map->is_closing()) continue;
    if (!todo->mends) at_work_[index] = {todo->map.get(), todo->span};
    return todo;
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

// --- What a server has left of spans that have left it.

void Repairer::AddLeftover(RegionMap* map, uint64_t span, const CopyMap::Leftover& leftover) {
  MutexLock lock(&mu_);
  // What is not remembered stays there until the region is destroyed.
  if (!leftovers_.full() && !map->is_closing()) leftovers_.PushBack({map->Share(), span, leftover});
}

void Repairer::FreeLeftovers() {
  size_t looks = 0;
  for (Freeing& freeing : freeing_) {
    if (freeing.busy) continue;
    bool found = false;
    while (!found && ++looks <= kLooksMax) {
      MutexLock lock(&mu_);
      if (leftovers_.empty() || stopping_) return;
      Free what = leftovers_.PopFront();
      const ServerSession& session = *home_->sessions->at(what.leftover.life.server);
      const bool is_over = session.incarnation() != what.leftover.life.incarnation || what.map->is_closing() ||
                           !what.map->CheckUsable().ok();
      if (is_over) continue;
      found = session.usable();
      if (found) {
        freeing.what = std::move(what);
      } else {
        leftovers_.PushBack(std::move(what));  // later
      }
    }
    if (!found) return;
    const CopyMap::Leftover& leftover = freeing.what.leftover;
    ServerLife* const life = home_->sessions->at(leftover.life.server)->life();
    if (life->incarnation != leftover.life.incarnation) continue;
    freeing.busy = true;
    const RegionKey& key = freeing.what.map->key();
    Call& call = freeing.call;
    call.request = MessageHeader(TrimRequest{.region = key.id,
                                             .range = {freeing.what.span * kChunksPerSpan, kChunksPerSpan},
                                             .epoch = key.epoch,
                                             .span_generation = leftover.generation});
    call.deadline_ns = NowNs() + home_->options->io_timeout_ms * kNsPerMs;
    call.context = &freeing;
    call.done = [](Call* done) {
      auto* const self = static_cast<Freeing*>(done->context);
      self->repairer->OnFreed(self);
    };
    life->bulk->Start(&call);
  }
}

void Repairer::OnFreed(Freeing* freeing) {
  const Call& call = freeing->call;
  ServerSession* const session = home_->sessions->at(freeing->what.leftover.life.server);
  if (call.code != absl::StatusCode::kOk) {
    session->Suspect();
    AddLeftover(freeing->what.map.get(), freeing->what.span, freeing->what.leftover);
  } else {
    session->NoteFreed();
  }
  bool is_last = false;
  {
    MutexLock lock(&mu_);
    is_last = leftovers_.empty();
  }
  if (is_last) GiveBackShare(freeing->what.map.get(), session->index());
  freeing->what.map = nullptr;
  freeing->busy = false;
}

}  // namespace nram
