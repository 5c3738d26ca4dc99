#ifndef NRAM_TESTS_SIM_WORLD_H_
#define NRAM_TESTS_SIM_WORLD_H_

// Virtual time: a clock that jumps from event to event, and one source of chance. Everything that happens in a
// simulation happens in an event, and the seed alone decides which and when.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/sim/rng.h"

namespace nram::sim {

using HostId = uint32_t;

// One thread. An event belongs to a host, or to kNobody. While a host is frozen, its events wait; once it has died, the
// events of its former life are dropped.
class World : public Clock {
 public:
  static constexpr HostId kNobody = 0;
  using Event = std::function<void()>;
  // Names an event until it has happened. 0: none.
  using Timer = uint64_t;

  explicit World(uint64_t seed);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int64_t NowNs() const override { return now_ns_; }
  Rng& rng() { return rng_; }

  // --- Events. Those of the same time happen in the order in which they were made.
  Timer At(int64_t time_ns, HostId host, Event event);
  Timer After(int64_t delay_ns, HostId host, Event event) { return At(now_ns_ + delay_ns, host, std::move(event)); }
  // The event does not happen, if it has not yet.
  void Cancel(Timer timer);
  // Makes the next event happen. False: there is none before `until_ns`, and the time is `until_ns` now.
  bool Step(int64_t until_ns);
  uint64_t event_count() const { return event_count_; }

  // --- Hosts.
  HostId AddHost(std::string name);
  const std::string& NameOf(HostId host) const { return hosts_[host].name; }
  bool frozen(HostId host) const { return hosts_[host].frozen; }
  void Freeze(HostId host);
  // Events that waited happen soon, in any order, like the messages that a stopped program finds in its sockets.
  void Thaw(HostId host);
  // The time for which the host has been frozen in all.
  int64_t frozen_ns(HostId host) const;
  // Its events are dropped, also the waiting ones. Events made from now on belong to its next life. It is not frozen.
  void EndLife(HostId host);

  // --- Results.
  // A number that depends on all events: the same for the same seed.
  uint64_t digest() const { return digest_; }
  void Mix(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001B3u + (digest_ >> 29); }

 private:
  struct Entry {
    int64_t time_ns;
    uint64_t number;
    uint32_t slot;
    // The heap has the earliest on top.
    bool operator<(const Entry& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
  };
  struct Slot {
    Event event;
    uint64_t number = 0;  // 0: free
    HostId host = kNobody;
    uint32_t life = 0;
  };
  struct Host {
    std::string name;
    bool frozen = false;
    uint32_t life = 0;
    int64_t frozen_since_ns = 0;
    int64_t frozen_ns = 0;
    std::deque<uint32_t> waiting;  // slots, in order
  };

  static constexpr int kSlotBits = 20;
  static constexpr int64_t kThawJitterNs = 200 * kNsPerUs;

  void FreeSlot(uint32_t slot);

  Rng rng_;
  int64_t now_ns_ = kNsPerSecond;
  uint64_t next_number_ = 1;
  uint64_t event_count_ = 0;
  uint64_t digest_ = 0xCBF29CE484222325u;
  std::vector<Entry> heap_;
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<Host> hosts_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_WORLD_H_
