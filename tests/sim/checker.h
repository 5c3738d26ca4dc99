#ifndef NRAM_TESTS_SIM_CHECKER_H_
#define NRAM_TESTS_SIM_CHECKER_H_

// Judges the results that a simulation's clients get. Each written chunk carries a stamp: the region, the chunk and the
// number of the write, through all of its bytes. Each chunk is a RegisterHistory.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "tests/sim/register_history.h"
#include "tests/sim/world.h"

namespace nram::sim {

// One thread. The first failure remains; nothing is judged after it.
class Checker {
 public:
  enum class Kind { kRead, kWrite, kTrim, kReserve, kDestroy };
  struct Operation {
    Kind kind = Kind::kRead;
    RegionId region{};
    ChunkRange range;
    uint64_t number = 0;
    Moment began = 0;
    int64_t began_ns = 0;
    int64_t deadline_ns = 0;
    uint64_t term_count = 0;  // when it began
    HostId host = World::kNobody;
    int64_t host_frozen_ns = 0;  // in all, when it began
    std::vector<bool> zeros;     // of a write: which chunks are zeros
    std::vector<bool> left_out;  // of a write: which chunks it leaves alone; empty: none
  };

  // An operation ends at most this time after its deadline, apart from the time that its client was frozen.
  static constexpr int64_t kLateNs = 100 * kNsPerMs;

  // An operation that has this time survives any number of broken connections.
  static constexpr int64_t kPatientNs = 5 * kNsPerSecond;

  // The longest time until a client knows that a server that answers has ended its lease.
  static constexpr int64_t kTermKnownNs = 10 * kNsPerSecond;

  explicit Checker(World* world) : world_(world) {}
  // Applies to the writes of regions that are added from now on.
  void SetEffect(RegisterHistory::Effect effect) { effect_ = effect; }

  // --- Regions. `window`: no operation goes beyond. `gc`: each server frees it when its own lease of `leases` ends.
  void AddRegion(RegionId region, ChunkRange window, std::vector<LeaseId> leases, bool gc);
  void RemoveRegion(RegionId region) { regions_.erase(Raw(region)); }

  // --- Operations. Begin... fills a write's buffer. `masks`: as for Region::WriteChunks; empty: all chunks.
  Operation BeginRead(RegionId region, ChunkRange range, HostId host, int64_t deadline_ns);
  Operation BeginWrite(RegionId region, ChunkRange range, HostId host, int64_t deadline_ns, std::byte* out,
                       absl::Span<const ChunkMask> masks = {});
  Operation BeginOther(Kind kind, RegionId region, ChunkRange range, HostId host, int64_t deadline_ns);
  // `in`: the data that a successful read has found. `servers`: those on which parts of the range are placed; needed if
  // the operation has failed.
  void End(const Operation& operation, const absl::Status& status, const std::byte* in, absl::Span<const int> servers);
  size_t under_way() const { return reads_.size() + others_; }

  // --- Room. No write of the region that begins from now on may fail for lack of room, because `reserve` succeeded,
  // until the lease ends somewhere or a server dies.
  void SetRoomy(const Operation& reserve);
  void UnsetRoomy(RegionId region);
  // The servers are large enough that no write may fail for lack of room.
  void SetNeverFull(bool never_full) { never_full_ = never_full; }
  // Servers lie about sealed pages: such a page may seem to be lost, and none may seem to be another one.
  void SetLies(bool lies) { lies_ = lies; }
  // At any time one copy of each page is left.
  void SetNeverLost(bool never_lost) { never_lost_ = never_lost; }

  // --- The possible losses, and their reasons.
  // The server may hold data of the region.
  void NoteSent(int server, RegionId region);
  // The server has lost all of its data.
  void NoteDeath(int server);
  // The server has freed the lease's GC regions there, or all of its regions.
  void NoteLeaseEnded(int server, LeaseId lease, bool with_all = false);
  // A bit of a stored page has changed.
  void NoteDamaged(RegionId region, uint64_t page);
  bool MayBeLost(const Operation& operation, absl::Span<const int> servers) const;
  // Tells whether a copy of the page was damaged.
  bool WasDamaged(RegionId region, uint64_t page) const;
  // Some page of some region is damaged.
  bool HasDamage() const;

  enum class Servers {
    kMayBeAway,  // operations may fail for an absent server
    kStumble,    // connections break and leases end, but every server answers: operations that have time do not fail
    kThere,      // nothing fails for lack of an answer
  };
  void SetServers(Servers servers) { servers_ = servers; }

  // Empty while all is well.
  const std::string& failure() const { return failure_; }
  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // --- The last events. A failure's report shows those that concern it.
  // All of them go to stderr too.
  void SetVerbose(bool verbose) { verbose_ = verbose; }
  bool verbose() const { return verbose_; }
  void Trace(std::string event, RegionId region = RegionId{0}, ChunkRange range = {});
  // The events of the failure's region and chunk, and of no region.
  std::string Report() const;

 private:
  static constexpr size_t kTraceMax = 20'000;
  static constexpr size_t kReportMax = 80;

  struct Damage {
    Moment began = 0;
    Moment mended = kNever;
  };
  struct Region {
    std::vector<LeaseId> leases;  // by server
    bool gc = false;
    ChunkRange window;
    std::vector<std::unique_ptr<RegisterHistory>> chunks;  // of the window; null: never touched
    std::set<int> sent_to;                                 // servers that may hold data
    std::set<int> lost_at;                                 // servers that may have held data and have lost it
    std::map<uint64_t, Damage> damaged_pages;
    bool roomy = false;
    uint64_t roomy_since = 0;
    Moment roomy_from = 0;
  };
  struct Traced {
    int64_t time_ns;
    RegionId region;
    ChunkRange range;
    std::string event;
  };

  Operation Begin(Kind kind, RegionId region, ChunkRange range, HostId host, int64_t deadline_ns);
  RegisterHistory& At(Region* region, uint64_t chunk) const;
  void EndChange(Region* region, const Operation& operation, bool known);
  void EndRead(Region* region, const Operation& operation, const std::byte* in);
  void JudgeError(const Region& region, const Operation& operation, const absl::Status& status,
                  absl::Span<const int> servers);
  void FailAt(const Operation& operation, uint64_t chunk, const std::string& what);
  // No read that is under way began before that.
  Moment Oldest() const { return reads_.empty() ? now_ : *reads_.begin(); }

  World* const world_;
  RegisterHistory::Effect effect_ = RegisterHistory::Effect::kOnce;
  std::map<uint64_t, Region> regions_;
  std::multiset<Moment> reads_;  // when those under way began
  size_t others_ = 0;
  uint64_t term_count_ = 0;  // ended leases and dead servers
  int64_t term_ns_ = 0;      // the time of the last one
  Moment now_ = 0;
  uint64_t next_number_ = 1;
  Servers servers_ = Servers::kMayBeAway;
  bool never_full_ = false;
  bool never_lost_ = false;
  bool lies_ = false;
  bool verbose_ = false;
  std::string failure_;
  RegionId failed_region_{};
  uint64_t failed_chunk_ = 0;
  std::deque<Traced> trace_;
};

const char* NameOf(Checker::Kind kind);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_CHECKER_H_
