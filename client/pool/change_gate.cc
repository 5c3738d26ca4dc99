#include "client/pool/change_gate.h"

#include <glog/logging.h>

#include <utility>

namespace nram {

ChangeGate::~ChangeGate() {
  for (const Shard& shard : shards_) CHECK_EQ(shard.places, 0u) << "a gate went away with places in it";
}

bool ChangeGate::Conflict(const GatePlace& a, const GatePlace& b) {
  if (a.region != b.region) return false;
  // Two looks, or a look and a seal.
  if ((static_cast<unsigned>(a.kind) & static_cast<unsigned>(b.kind)) == 1) return false;
  return a.range.first < b.range.end() && b.range.first < a.range.end();
}

bool ChangeGate::Enter(GatePlace* place) {
  Shard& at = shard(place->region);
  MutexLock lock(&at.mu);
  CHECK(place->state_ == GatePlace::State::kOut) << "a place entered the gate twice";
  place->blockers_ = 0;
  for (const GatePlace* earlier = at.first; earlier != nullptr; earlier = earlier->next_) {
    if (Conflict(*earlier, *place)) ++place->blockers_;
  }
  place->state_ = place->blockers_ == 0 ? GatePlace::State::kIn : GatePlace::State::kWaiting;
  place->previous_ = std::exchange(at.last, place);
  place->next_ = nullptr;
  (place->previous_ != nullptr ? place->previous_->next_ : at.first) = place;
  at.places.fetch_add(1, std::memory_order_relaxed);
  return place->state_ == GatePlace::State::kIn;
}

// Those behind it that waited for nothing else are in the gate now.
void ChangeGate::RemoveLocked(Shard* shard, GatePlace* place) {
  for (GatePlace* later = place->next_; later != nullptr; later = later->next_) {
    if (later->state_ != GatePlace::State::kWaiting || !Conflict(*place, *later)) continue;
    if (--later->blockers_ > 0) continue;
    later->state_ = GatePlace::State::kIn;
    ResumeLaterLocked(shard, later, GatePlace::Outcome::kIn);
  }
  (place->previous_ != nullptr ? place->previous_->next_ : shard->first) = place->next_;
  (place->next_ != nullptr ? place->next_->previous_ : shard->last) = place->previous_;
  place->state_ = GatePlace::State::kOut;
  shard->places.fetch_sub(1, std::memory_order_relaxed);
}

void ChangeGate::ResumeLaterLocked(Shard* shard, GatePlace* place, GatePlace::Outcome outcome) {
  place->outcome = outcome;
  place->next_resumed_ = nullptr;
  (shard->resumed_first != nullptr ? shard->resumed_last->next_resumed_ : shard->resumed_first) = place;
  shard->resumed_last = place;
}

void ChangeGate::ResumeAll(Shard* shard) {
  while (true) {
    GatePlace* place = nullptr;
    {
      MutexLock lock(&shard->mu);
      place = shard->resumed_first;
      shard->is_resuming = place != nullptr;
      if (place == nullptr) return;
      shard->resumed_first = place->next_resumed_;
    }
    place->resume(place);
  }
}

void ChangeGate::Leave(GatePlace* place) {
  Shard& at = shard(place->region);
  {
    MutexLock lock(&at.mu);
    CHECK(place->state_ == GatePlace::State::kIn) << "a place left the gate that was not in it";
    RemoveLocked(&at, place);
    // The thread that resumes takes these along.
    if (at.is_resuming || at.resumed_first == nullptr) return;
    at.is_resuming = true;
  }
  ResumeAll(&at);
}

bool ChangeGate::Cancel(GatePlace* place) {
  Shard& at = shard(place->region);
  {
    MutexLock lock(&at.mu);
    if (place->state_ != GatePlace::State::kWaiting) return false;
    RemoveLocked(&at, place);
    if (at.is_resuming || at.resumed_first == nullptr) return true;
    at.is_resuming = true;
  }
  ResumeAll(&at);
  return true;
}

bool ChangeGate::IsChanging(RegionId region, const ChunkRange& range) const {
  const Shard& at = shard(region);
  GatePlace look;
  look.kind = GatePlace::Kind::kLook;
  look.region = region;
  look.range = range;
  MutexLock lock(&at.mu);
  for (const GatePlace* place = at.first; place != nullptr; place = place->next_) {
    if (Conflict(*place, look)) return true;
  }
  return false;
}

void ChangeGate::Tick(int64_t now_ns) {
  for (Shard& at : shards_) {
    if (at.places.load(std::memory_order_relaxed) == 0) continue;
    {
      MutexLock lock(&at.mu);
      for (GatePlace* place = at.first; place != nullptr;) {
        GatePlace* const next = place->next_;
        if (place->state_ == GatePlace::State::kWaiting && place->deadline_ns <= now_ns) {
          RemoveLocked(&at, place);
          ResumeLaterLocked(&at, place, GatePlace::Outcome::kLate);
        }
        place = next;
      }
      if (at.is_resuming || at.resumed_first == nullptr) continue;
      at.is_resuming = true;
    }
    ResumeAll(&at);
  }
}

}  // namespace nram
