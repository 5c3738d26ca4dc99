#ifndef NRAM_CLIENT_MEMORY_MEMORY_H_
#define NRAM_CLIENT_MEMORY_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/metrics/metrics_file.h"
#include "base/sync.h"
#include "client/memory/advice.h"
#include "client/memory/auto_budget.h"
#include "client/memory/budget.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/eviction_queue.h"
#include "client/memory/evictor.h"
#include "client/memory/observer.h"
#include "client/memory/page_in.h"
#include "client/memory/publish_gate.h"
#include "client/memory/publisher.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/userfault.h"
#include "client/pool/pool.h"

namespace nram {

struct MemoryOptions {
  static constexpr uint64_t kFloorBytes = 64 * kMiB;
  static constexpr uint64_t kPageBytesMax = kMiB;
  static constexpr uint32_t kCopiesMax = kReplicasMax;

  PoolOptions pool;
  uint64_t budget_bytes = 256 * kMiB;
  // The budget follows the machine, from a floor to a ceiling; 0: kFloorBytes, and this machine's memory.
  bool budget_auto = false;
  uint64_t budget_min_bytes = 0;
  uint64_t budget_max_bytes = 0;
  OnBudget on_budget;  // may be null
  uint64_t page_bytes = kPageBytes;
  uint32_t handlers = 4;
  uint32_t copies = 1;                    // of each page, on servers of different hosts
  std::string copies_setting = "copies";  // that has chosen them, for messages
  uint32_t kept_copies = 0;  // of regions that are kept; 0: two if servers of two hosts answer, or `copies` if more
  Policy policy = Policy::kSecondChance;
  // A version is given up if threads have waited this long for budget, and none of its pages has been sent meanwhile.
  int64_t publish_patience_ms = 250;
  uint32_t publish_versions_max = 1'000;  // see PublisherOptions
  std::string metrics_file;               // see MetricsFile; "": none
  // Null: a line on stderr.
  OnLoss on_loss;
};

enum class MapKind { kNew, kReadOnly, kAttach };

struct MapRequest {
  uint64_t length = 0;  // bytes; 0 with kReadOnly and kAttach: all
  uint64_t align = 0;   // of the address, a power of two; 0: a page
  std::string name;
  MapKind kind = MapKind::kNew;
  bool keep = false;
  bool accepts_loss = false;  // of an attached region: see AttachLoss
  SegmentOwner owner = SegmentOwner::kProgram;
};

struct VersionRequest {
  std::vector<const void*> bases;  // of mappings; the first one's name is the publication's
  VersionKeep keep = VersionKeep::kWithOwner;
  uint32_t history = 2;
  uint64_t step = 0;
  std::string header_json;
  uint32_t most = 0;  // versions that there may be; see PublishRequest
  WhenFull when_full = WhenFull::kDropOldest;
  int64_t wait_ms = 0;
  std::vector<PublishedArray> arrays;
};

struct Observed {
  uint64_t version = 0;
  std::vector<std::byte*> bases;  // in the publication's order
};

// Address ranges of this process whose pages live in a pool, and the threads that fetch and evict the pages. It is the
// engine behind nram.h, whose contracts hold here too. Thread-safe.
//
// Three parties share the pages' states (page_state.h): PageIn answers faults, PageOut writes back and drops, both on
// behalf of the handler threads, the evictor or a caller; Residency counts the pages that are here.
//
// Two more make versions of the mappings, and show those of others: Publisher and Observer (adr/0019).
//
// Lock order: AutoBudget's before Budget's, before Advice's, before all others. None of those is held while another one
// is taken, except Residency's queue before SegmentIndex. AheadWindows, under its lock, asks a read of the pool whether
// it has ended, which may take the pool's locks; the pool holds none of its own when it calls back.
class Memory {
 public:
  static absl::StatusOr<std::unique_ptr<Memory>> Open(MemoryOptions options);
  // Unmaps everything. If pages of kept regions cannot be written, they are lost; call Close first to learn of it.
  ~Memory();
  absl::Status Close();

  absl::StatusOr<std::byte*> Map(const MapRequest& request);
  // INVALID_ARGUMENT: no mapping of the program's begins there (LengthOf: 0).
  absl::Status Unmap(const void* base);
  uint64_t LengthOf(const void* base) const;
  bool Contains(const void* address) const;
  bool IsHeap(const void* address) const;
  bool SameSegment(const void* a, const void* b) const;

  absl::Status SetReadAhead(void* address, ReadAhead mode);
  absl::Status Prefetch(void* address, uint64_t length);
  absl::Status Evict(void* address, uint64_t length);
  absl::Status Pin(void* address, uint64_t length);
  absl::Status Unpin(void* address, uint64_t length);
  absl::Status Drop(void* address, uint64_t length);
  absl::Status Flush(void* address, uint64_t length);

  // See Publisher, and Observer: those functions' errors. INVALID_ARGUMENT also: no mapping of the program's begins
  // there.
  absl::StatusOr<uint64_t> Publish(const VersionRequest& request);
  absl::Status AwaitPublished(const void* base, uint64_t version, int64_t deadline_ns);
  absl::Status DropVersion(const void* base, uint64_t version);
  // Maps the version's first region, or all of them. NOT_FOUND: there is no such version.
  absl::StatusOr<Observed> Observe(const std::string& name, uint64_t version, bool all);
  absl::StatusOr<uint64_t> Next(const void* base, int64_t deadline_ns);
  // Null: the mapping does not observe. Its mappings have it until Next, and until the last of them is unmapped.
  std::shared_ptr<const PublicationRecord> ObservedRecord(const void* base) const;
  // Where an array of that record is here; null: its mapping was not observed, or is unmapped. Valid as long.
  // DATA_LOSS: it cannot be there.
  absl::StatusOr<const std::byte*> ObservedData(const void* base, const PublishedArray& array) const;

  // At any time. Returns at once; see Budget::Set. If the budget follows the machine, this is its ceiling.
  absl::Status SetBudget(uint64_t bytes);

  const Counters& counters() const { return counters_; }
  const MemoryOptions& options() const { return options_; }
  const Budget& budget() const { return *budget_; }
  const Pool& pool() const { return *pool_; }
  WakeLatency* wake_latency() { return pool_->wake_latency(); }
  uint64_t mapped_bytes() const { return mapped_bytes_; }
  uint64_t resident_bytes() const;
  uint64_t metadata_bytes() const;

 private:
  Memory(MemoryOptions options, std::unique_ptr<AutoBudget> auto_budget)
      : options_(std::move(options)), auto_budget_(std::move(auto_budget)) {}
  absl::Status Start();
  // The largest budget that there may be.
  uint64_t MostBudget() const;
  absl::StatusOr<std::byte*> MapRegion(const MapRequest& request);
  // `former`: an earlier owner's publication.
  absl::StatusOr<std::byte*> MapOpened(const MapRequest& request, uint64_t length, std::unique_ptr<Region> region,
                                       std::unique_ptr<Publication> former);
  absl::StatusOr<std::unique_ptr<Publication>> TakeOverVersions(const MapRequest& request);
  absl::StatusOr<SegmentRef> FindMapping(const void* base) const;
  absl::Status UnmapSegment(const void* base);
  void ForgetName(const std::string& name);
  void HandleFaults();
  // The pages that [address, address + length) touches; only those that lie in it whole, if `inner`.
  absl::StatusOr<Pages> FindPages(void* address, uint64_t length, bool inner = false) const;
  uint32_t KeptCopies() const;
  absl::StatusOr<std::unique_ptr<Region>> OpenRegion(const MapRequest& request, uint64_t* length);

  const MemoryOptions options_;
  Counters counters_;
  std::atomic<uint64_t> mapped_bytes_{0};
  Mutex names_mu_;
  // Regions that are mapped for writing, or about to be. Attaching one for writing shuts out an earlier writer, so each
  // may be here once only.
  std::set<std::string> written_names_ ABSL_GUARDED_BY(names_mu_);
  std::unique_ptr<Pool> pool_;
  PublishGate publish_gate_;
  std::unique_ptr<Userfault> userfault_;
  SegmentIndex index_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<ChunkSums> sums_;
  std::unique_ptr<BoundCopies> copies_;
  std::unique_ptr<PageIn> page_in_;
  std::unique_ptr<Advice> advice_;
  std::unique_ptr<Budget> budget_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<AutoBudget> auto_budget_;  // null: the budget is fixed
  UniqueFd stop_fd_;
  std::vector<std::thread> handlers_;
  std::unique_ptr<MetricsFile> metrics_;  // null: no metrics file
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_MEMORY_H_
