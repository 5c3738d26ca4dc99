#include "tests/sim/world.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace nram::sim {

World::World(uint64_t seed) : rng_(seed) { AddHost("nobody"); }

HostId World::AddHost(std::string name) {
  hosts_.emplace_back();
  hosts_.back().name = std::move(name);
  return static_cast<HostId>(hosts_.size() - 1);
}

World::Timer World::At(int64_t time_ns, HostId host, Event event) {
  uint32_t slot = 0;
  if (free_slots_.empty()) {
    slot = static_cast<uint32_t>(slots_.size());
    CHECK_LT(slot, 1u << kSlotBits);
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  const uint64_t number = next_number_++;
  slots_[slot].event = std::move(event);
  slots_[slot].number = number;
  slots_[slot].host = host;
  slots_[slot].life = hosts_[host].life;
  heap_.push_back({std::max(time_ns, now_ns_), number, slot});
  std::push_heap(heap_.begin(), heap_.end());
  return number << kSlotBits | slot;
}

void World::Cancel(Timer timer) {
  const auto slot = static_cast<uint32_t>(timer & ((1u << kSlotBits) - 1));
  if (timer == 0 || slots_[slot].number != timer >> kSlotBits) return;
  // Its entry in the heap, or among the waiting ones, finds the slot with another number, or without an event.
  slots_[slot].event = nullptr;
}

void World::FreeSlot(uint32_t slot) {
  slots_[slot].event = nullptr;
  slots_[slot].number = 0;
  free_slots_.push_back(slot);
}

bool World::Step(int64_t until_ns) {
  while (!heap_.empty() && heap_.front().time_ns <= until_ns) {
    const Entry entry = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    now_ns_ = entry.time_ns;
    Slot& slot = slots_[entry.slot];
    CHECK_EQ(slot.number, entry.number);
    Host& host = hosts_[slot.host];
    if (slot.event == nullptr || slot.life != host.life) {
      FreeSlot(entry.slot);
      continue;
    }
    if (host.frozen) {
      host.waiting.push_back(entry.slot);
      continue;
    }
    Event event = std::move(slot.event);
    Mix(static_cast<uint64_t>(now_ns_) ^ entry.number << 32 ^ slot.host);
    FreeSlot(entry.slot);
    ++event_count_;
    event();
    return true;
  }
  now_ns_ = std::max(now_ns_, until_ns);
  return false;
}

void World::Freeze(HostId host) {
  if (std::exchange(hosts_[host].frozen, true)) return;
  hosts_[host].frozen_since_ns = now_ns_;
}

void World::Thaw(HostId host) {
  if (!std::exchange(hosts_[host].frozen, false)) return;
  hosts_[host].frozen_ns += now_ns_ - hosts_[host].frozen_since_ns;
  for (const uint32_t slot : std::exchange(hosts_[host].waiting, {})) {
    heap_.push_back({now_ns_ + rng_.Between(0, kThawJitterNs), slots_[slot].number, slot});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

int64_t World::frozen_ns(HostId host) const {
  const Host& at = hosts_[host];
  return at.frozen_ns + (at.frozen ? now_ns_ - at.frozen_since_ns : 0);
}

void World::EndLife(HostId host) {
  Thaw(host);
  ++hosts_[host].life;
}

}  // namespace nram::sim
