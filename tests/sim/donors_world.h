#ifndef NRAM_TESTS_SIM_DONORS_WORLD_H_
#define NRAM_TESTS_SIM_DONORS_WORLD_H_

// Thousands of donors whose own programs come and go, and the clients that store with them, in virtual time. A span is
// a number here and has no bytes. What decides is the product's: MemoryBalance, Asking, Shedding, CopyMap with
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
  int64_t fill_percent = 40;    // of what the servers may hold when nobody is pressed
  int64_t growth_percent = 10;  // of what is stored at first, while jobs come and go
  int64_t copied_percent = 30;  // of the clients, whose spans have two copies
  uint64_t link_bytes_per_s = 1'250'000'000;
  int64_t frozen_percent = 0;  // of the clients, which neither hear nor do anything while jobs come and go
  JobMix jobs;
  std::vector<std::pair<size_t, Job>> more_jobs;  // and these, of those donors
  int64_t storm_ms = 120'000;                     // jobs come and go so long, and then stay as they are
};

// The sums of a world. Bytes, unless the name says otherwise.
struct DonorCounts {
  uint64_t asked = 0;   // each growth of what servers ask for
  uint64_t needed = 0;  // what donors could not spare: of each and each 30 s, the most
  uint64_t moves = 0;   // spans that have left a server that asks for another one
  uint64_t drops = 0;   // spans' copies that have left without one
  uint64_t repairs = 0;
  uint64_t grown = 0;         // new spans
  uint64_t no_place = 0;      // new spans that found none
  uint64_t refusals = 0;      // by servers that were chosen, and had no room any more
  uint64_t late = 0;          // copies that took longer than a client waits
  uint64_t to_asking = 0;     // spans that were sent to a server that asks at that time
  uint64_t returns = 0;       // spans that came to a server that they had left within 30 s
  uint64_t quick = 0;         // spans that had to leave a server within 5 s
  uint64_t searches = 0;      // for a receiver
  uint64_t in_vain = 0;       // of these
  uint64_t lost = 0;          // spans without a copy that is there: never
  uint32_t moves_of_one = 0;  // the most that one span has moved within 30 s
  double lacking = 0;         // what jobs wanted and could not have while servers held as much: byte-seconds
  int64_t longest_ms = 0;     // that a server has asked at a time
  int64_t last_shed_ms = 0;   // when a span left a server that asks
};

class DonorClient;

// The server of one donor, and its host.
struct Donor {
  size_t index = 0;
  uint64_t total = 0;
  uint64_t base = 0;  // what the host's system takes
  uint64_t reserve = 0;
  Jobs jobs;
  uint64_t jobs_bytes = 0;  // what they want now
  bool stays = false;       // they want it from now on
  MemoryBalance balance{MemoryBalanceOptions{}};
  Asking asking;
  uint64_t stored = 0;  // bytes of spans, also of what is to be freed
  uint64_t ceiling = 0;
  uint64_t ceiling_max = 0;
  uint64_t allowed = 0;
  std::vector<std::pair<DonorClient*, uint16_t>> sessions;
  // When the link is free, as far as its transfers are known.
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
  // For new spans. GiveBack::FreeForNew.
  uint64_t FreeForNew() const { return asking.asks() || stored >= allowed ? 0 : allowed - stored; }
  // One more span, if there is room.
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

  // Until the virtual time `end_ms`.
  void RunUntil(int64_t end_ms);
  // From now on jobs stay as they are, nothing grows, and nobody is frozen.
  void Calm();
  // All jobs end.
  void EndJobs();
  // Checks all that is stored. Returns what is wrong.
  std::string Check() const;
  // A span that stays on a server that asks although it has somewhere to go; "" if there is none.
  std::string FindStuck() const;

  int64_t now_ms() const { return now_ms_; }
  int64_t now_ns() const { return now_ms_ * kNsPerMs; }
  bool calm() const { return calm_; }
  const DonorWorldOptions& options() const { return options_; }
  const DonorCounts& counts() const { return counts_; }
  // Servers that ask now, and how much.
  size_t asking() const;
  uint64_t asked_bytes() const;
  // Of servers that ask: how many clients each has, all together.
  size_t asked_clients() const;
  // The bytes that clients could still place: free at servers that do not ask.
  uint64_t free_bytes() const;
  uint64_t stored_bytes() const;
  // Clients that have something to do.
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
  // Within kHorizonMs from now, and not now.
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
