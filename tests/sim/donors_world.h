#ifndef NRAM_TESTS_SIM_DONORS_WORLD_H_
#define NRAM_TESTS_SIM_DONORS_WORLD_H_

// Thousands of donors whose own programs change, and the clients that store with them, in virtual time. A span is a
// number here and has no bytes. The decisions are the product's: MemoryBalance, Asking, Shedding, CopyMap with
// CopiedChange, PlacementWeight, ChooseReceiver and PlaceSpan.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/host/memory_balance.h"
#include "base/units.h"
#include "memserver/asking.h"
#include "tests/sim/donors_jobs.h"
#include "tests/sim/rng.h"

namespace nram::sim {

struct DonorWorldOptions {
  size_t donors = 2'000;
  size_t clients = 400;
  size_t pool = 48;  // servers that a client uses
  size_t rack = 40;  // donors
  uint64_t total_least_bytes = kGiB;
  uint64_t total_most_bytes = 3 * kGiB;
  int64_t fill_percent = 40;    // of the servers' limit when no donor is pressed
  int64_t growth_percent = 10;  // of the bytes stored at first, while jobs change
  int64_t copied_percent = 30;  // of the clients; their spans have two copies
  uint64_t link_bytes_per_s = 1'250'000'000;
  int64_t frozen_percent = 0;  // of the clients; they neither hear nor do anything while jobs change
  JobMix jobs;
  std::vector<std::pair<size_t, Job>> more_jobs;  // by donor
  int64_t storm_ms = 120'000;                     // the time in which jobs change; afterwards they remain
};

// The sums of a world. Bytes, unless the name says otherwise.
struct DonorCounts {
  uint64_t asked = 0;   // each growth of the servers' demands
  uint64_t needed = 0;  // bytes that donors could not spare: the most of each donor in each 30 s
  uint64_t moves = 0;   // spans that have left a server that asks for another one
  uint64_t drops = 0;   // copies that have left without another one
  uint64_t repairs = 0;
  uint64_t grown = 0;         // new spans
  uint64_t no_place = 0;      // new spans without a server
  uint64_t refusals = 0;      // by chosen servers that had no room any more
  uint64_t late = 0;          // copies that took longer than a client waits
  uint64_t to_asking = 0;     // spans that were sent to a server that asks at that time
  uint64_t returns = 0;       // spans that returned to a server that they had left within 30 s
  uint64_t quick = 0;         // spans that had to leave a server within 5 s
  uint64_t searches = 0;      // for a receiver
  uint64_t in_vain = 0;       // of these
  uint64_t lost = 0;          // spans without a present copy: never
  uint32_t moves_of_one = 0;  // the most that one span has moved within 30 s
  double lacking = 0;         // the jobs' unmet demand while servers held as much: byte-seconds
  int64_t longest_ms = 0;     // the longest time that a server has asked
  int64_t last_shed_ms = 0;   // when a server that asks lost a span
};

class DonorClient;

// The server of one donor, and its host.
struct Donor {
  size_t index = 0;
  uint64_t total = 0;
  uint64_t base = 0;  // taken by the host's system
  uint64_t reserve = 0;
  Jobs jobs;
  uint64_t jobs_bytes = 0;  // the jobs' present demand
  bool stays = false;       // the demand is the same from now on
  MemoryBalance balance{MemoryBalanceOptions{}};
  Asking asking;
  uint64_t stored = 0;  // bytes of spans, including those that will be freed
  uint64_t ceiling = 0;
  uint64_t ceiling_max = 0;
  uint64_t allowed = 0;
  std::vector<std::pair<DonorClient*, uint16_t>> sessions;
  // The time when the link is free, as far as its transfers are known.
  double in_ns = 0;
  double out_ns = 0;

  // Since the last tick.
  uint64_t asked = 0;
  uint64_t freed = 0;
  int64_t asks_since_ms = 0;
  // Of the present 30 s.
  uint64_t window_stored = 0;
  uint64_t window_least = UINT64_MAX;

  uint64_t FreeBytes() const { return ceiling > stored ? ceiling - stored : 0; }
  // Free bytes for new spans, as GiveBack::FreeForNew.
  uint64_t FreeForNew() const { return asking.asks() || stored >= allowed ? 0 : allowed - stored; }
  // Takes one more span, if there is room.
  bool Take() {
    if (FreeBytes() < kSpanBytes) return false;
    stored += kSpanBytes;
    return true;
  }
  void Free() {
    stored -= kSpanBytes;
    freed += kSpanBytes;
  }
};

// One thread. The same options and numbers make the same world.
class DonorWorld {
 public:
  static constexpr int64_t kServerTickMs = 100;
  static constexpr int64_t kWindowMs = 30'000;
  static constexpr int64_t kQuickMs = 5'000;

  DonorWorld(const DonorWorldOptions& options, uint64_t seed);
  ~DonorWorld();

  // Runs until the virtual time `end_ms`.
  void RunUntil(int64_t end_ms);
  // From now on jobs do not change, nothing grows, and no client is frozen.
  void Calm();
  // All jobs end.
  void EndJobs();
  // Checks all stored spans. Returns the first error; "" if there is none.
  std::string Check() const;
  // A span at a server that asks, although it has a place to go to; "" if there is none.
  std::string FindStuck() const;

  int64_t now_ms() const { return now_ms_; }
  int64_t now_ns() const { return now_ms_ * kNsPerMs; }
  bool calm() const { return calm_; }
  const DonorWorldOptions& options() const { return options_; }
  const DonorCounts& counts() const { return counts_; }
  // Servers that ask now, and the asked bytes.
  size_t asking() const;
  uint64_t asked_bytes() const;
  // The sum of the clients of all servers that ask.
  size_t asked_clients() const;
  // The bytes that clients could still place: free at servers that do not ask.
  uint64_t free_bytes() const;
  uint64_t stored_bytes() const;
  // Clients that have work to do.
  size_t busy() const;

  // --- For clients.
  struct Event {
    enum class Kind : uint8_t { kServer, kHear, kTick, kSlot, kFreed, kGrow };
    Kind kind;
    uint32_t who;
    uint32_t what = 0;
    uint32_t span = 0;
    uint32_t number = 0;
  };
  // `at_ms`: within kHorizonMs from now, and not now.
  void At(int64_t at_ms, const Event& event);
  Rng* rng() { return &rng_; }
  Donor* donor(size_t index) { return donors_[index].get(); }
  DonorCounts* mutable_counts() { return &counts_; }

 private:
  static constexpr int64_t kHorizonMs = 1 << 14;

  void MakeDonors();
  void Fill();
  void TickServer(size_t index);
  void NoteAsked(Donor* donor, uint64_t asked);
  void EndWindow();
  void Carry(const Event& event);

  const DonorWorldOptions options_;
  Rng rng_;
  int64_t now_ms_ = 0;
  bool calm_ = false;
  int64_t window_ends_ms_ = kWindowMs;
  std::vector<std::unique_ptr<Donor>> donors_;
  std::vector<std::unique_ptr<DonorClient>> clients_;
  std::vector<std::vector<Event>> wheel_{kHorizonMs};
  DonorCounts counts_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_DONORS_WORLD_H_
