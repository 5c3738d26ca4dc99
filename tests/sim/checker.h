#ifndef NRAM_TESTS_SIM_CHECKER_H_
#define NRAM_TESTS_SIM_CHECKER_H_

// Judges what the clients of a simulation are told. Each chunk that is written carries a stamp: the region, the chunk
// and the number of the write, through all of its bytes. Each chunk is a RegisterHistory.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "tests/sim/register_history.h"
#include "tests/sim/world.h"

namespace nram::sim {

// One thread. The first failure stays; nothing is judged after it.
class Checker {
 public:
  enum class Kind { kRead, kWrite, kTrim, kReserve, kDestroy };
  struct Operation {
    Kind kind = Kind::kRead;
    RegionId region{};
    ChunkRange range;
    uint64_t number = 0;
    Moment began = 0;
    int64_t deadline_ns = 0;
    HostId host = World::kNobody;
    int64_t host_frozen_ns = 0;  // in all, when it began
    std::vector<bool> zeros;     // of a write: which chunks are zeros
  };

  // An operation ends so long after its deadline at the latest, apart from the time that its client was frozen.
  static constexpr int64_t kLateNs = 200 * kNsPerMs;

  explicit Checker(World* world) : world_(world) {}

  // --- Regions. `gc`: its servers free it when `lease` ends.
  void AddRegion(RegionId region, uint64_t chunks, LeaseId lease, bool gc);
  void RemoveRegion(RegionId region) { regions_.erase(Raw(region)); }

  // --- Operations. Begin... fills a write's buffer.
  Operation BeginRead(RegionId region, ChunkRange range, HostId host, int64_t deadline_ns);
  Operation BeginWrite(RegionId region, ChunkRange range, HostId host, int64_t deadline_ns, std::byte* out);
  Operation BeginOther(Kind kind, RegionId region, ChunkRange range, HostId host, int64_t deadline_ns);
  // `in`: what a read that succeeded has found.
  void End(const Operation& operation, const absl::Status& status, const std::byte* in);
  size_t under_way() const { return reads_.size() + others_; }

  // --- What may be lost, and why.
  // The server may hold data of the region's spans that `range` touches.
  void NotePlaced(int server, RegionId region, ChunkRange range);
  // The server has lost all.
  void NoteDeath(int server);
  // The server has freed what the lease's GC regions had there.
  void NoteLeaseEnded(int server, LeaseId lease);
  // A bit of a stored page has changed.
  void NoteDamaged(RegionId region, uint64_t page);
  bool MayBeLost(const Operation& operation) const;
  // Some page of some region is damaged.
  bool HasDamage() const;

  // In a quiet phase every operation must succeed.
  void SetQuiet(bool quiet) { quiet_ = quiet; }

  // Empty while all is well.
  const std::string& failure() const { return failure_; }
  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // --- The last events, of which a failure's report shows those that concern it.
  // All of them go to stderr too.
  void SetVerbose(bool verbose) { verbose_ = verbose; }
  void Trace(std::string event, RegionId region = RegionId{0}, ChunkRange range = {});
  // Those of the failure's region and chunk, and of no region.
  std::string Report() const;

 private:
  static constexpr size_t kTraceMax = 20'000;
  static constexpr size_t kReportMax = 80;

  struct Damage {
    Moment began = 0;
    Moment mended = kNever;
  };
  struct Region {
    LeaseId lease{};
    bool gc = false;
    std::vector<std::unique_ptr<RegisterHistory>> chunks;  // null: never touched
    std::map<uint64_t, std::set<int>> placed;              // by span: the servers
    std::set<uint64_t> lost_spans;
    std::map<uint64_t, Damage> damaged_pages;
  };
  struct Traced {
    int64_t time_ns;
    RegionId region;
    ChunkRange range;
    std::string event;
  };

  static void Lose(int server, Region* region);
  Operation Begin(Kind kind, RegionId region, ChunkRange range, HostId host, int64_t deadline_ns);
  RegisterHistory& At(Region* region, uint64_t chunk);
  void EndChange(Region* region, const Operation& operation, bool known);
  void EndRead(Region* region, const Operation& operation, const std::byte* in);
  void JudgeError(const Region& region, const Operation& operation, const absl::Status& status);
  void FailAt(const Operation& operation, uint64_t chunk, const std::string& what);
  // No read that is under way began before that.
  Moment Oldest() const { return reads_.empty() ? now_ : *reads_.begin(); }

  World* const world_;
  std::map<uint64_t, Region> regions_;
  std::multiset<Moment> reads_;  // when those under way began
  size_t others_ = 0;
  Moment now_ = 0;
  uint64_t next_number_ = 1;
  bool quiet_ = false;
  bool verbose_ = false;
  std::string failure_;
  RegionId failed_region_{};
  uint64_t failed_chunk_ = 0;
  std::deque<Traced> trace_;
};

const char* NameOf(Checker::Kind kind);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_CHECKER_H_
