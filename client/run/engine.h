#ifndef NRAM_CLIENT_RUN_ENGINE_H_
#define NRAM_CLIENT_RUN_ENGINE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/memory/streams.h"
#include "client/run/address_space.h"
#include "client/run/page_store.h"
#include "client/run/page_table.h"
#include "client/run/page_views.h"
#include "client/run/range_map.h"
#include "client/run/write_habit.h"

namespace nram {

struct RunOptions {
  static constexpr uint64_t kBudgetPagesMin = 1024;

  uint64_t budget_pages = 16384;                  // kBudgetPagesMin or more
  uint64_t window_pages = 64;                     // the most that one fault brings
  int evictors = 2;                               // threads
  int readers = 2;                                // threads that read ahead
  uint64_t homes = kRegionBytesMax / kPageBytes;  // pages that the store has
};

struct RunCounters {
  std::atomic<uint64_t> faults{0};
  std::atomic<uint64_t> first_writes{0};   // faults of pages that were there, protected
  std::atomic<uint64_t> zero_pages{0};     // filled with zeros
  std::atomic<uint64_t> fetched_pages{0};  // read from the store
  std::atomic<uint64_t> ahead_pages{0};    // of those, before they were asked for
  std::atomic<uint64_t> evicted_pages{0};  // taken out of memory
  std::atomic<uint64_t> written_pages{0};  // of those, written to the store
  std::atomic<uint64_t> stayed_pages{0};   // times that a page could not be taken
  std::atomic<uint64_t> budget_waits{0};   // faults that waited for evictions
  std::atomic<uint64_t> peak_pages{0};     // the most that were in memory, or on their way, at a time
};

struct RunFault {
  uint64_t address = 0;
  bool write = false;
  bool write_protected = false;  // the page is there, and protected
};

// Keeps the memory of one program within a budget: answers its faults from a store, and takes pages out before the
// budget is used up. Thread-safe. After an error that leaves the program's memory unknown it calls `on_fatal`, once,
// from any thread, and answers nothing any more: the program must end then.
class RunEngine {
 public:
  using OnFatal = std::function<void(const absl::Status& status)>;

  RunEngine(const RunOptions& options, AddressSpace* space, PageStore* store, RunCounters* counters, OnFatal on_fatal);
  ~RunEngine() { Stop(); }
  // Begins and ends the threads that evict. After Stop no call waits for evictions.
  void Start();
  void Stop();

  // Answers a fault, or leaves it to the thread that works on the page. `buffer`: of a window, the calling thread's.
  void HandleFault(const RunFault& fault, absl::Span<std::byte> buffer);

  // The functions below are for one thread at a time, the one that makes the program's calls.

  // From now on the pages are looked after. `present`: which are in memory already; empty for none. If the store has no
  // homes for that many pages at a time, the engine fails.
  void Attach(uint64_t begin, uint64_t pages, const std::vector<bool>& present = {});
  // Takes addresses out, and waits until no thread works on their pages. Faults there wait until EndChange.
  std::vector<HomeRange> Detach(uint64_t begin, uint64_t end);
  // Pages that were detached are at these addresses from now on. `moved`: protection may have been lost.
  void Reattach(const HomeRange& range, bool moved);
  // The contents of detached pages are not needed: the pages are empty.
  void Forget(const HomeRange& range);
  // As Forget. The pages will not be reattached, and others may have their homes.
  void Release(const HomeRange& range);
  // All homes that have been given are below it.
  uint64_t homes() const;
  // Ends the change that Detach has begun: waiters look again.
  void EndChange();
  bool Overlaps(uint64_t begin, uint64_t end) const;
  // From now on the page is in memory, may be written to without a fault, and is not evicted. Blocks until it is in
  // memory, or the engine has failed or stops. `buffer`: as for HandleFault. False: it is not looked after.
  bool Pin(uint64_t address, absl::Span<std::byte> buffer);

  // Called before fork(2), which copies the pages in memory: no work on pages begins any more, and none is under way
  // when this returns. Faults wait until Thaw, which is due in any case. False: the engine has failed or stops.
  bool Freeze();
  void Thaw();
  // Before Start, and in place of Attach: this engine's program is a copy of that of `parent`, which is frozen, with
  // the same pages in memory, none of them protected.
  void CopyFrom(const RunEngine& parent);
  // While frozen. `all`: pages that the store has, in their present or a former content. `remote`: pages that are not
  // in memory.
  struct Stored {
    std::vector<PageRun> all;
    std::vector<PageRun> remote;
  };
  Stored stored() const;

  uint64_t resident_pages() const;
  uint64_t attached_pages() const;
  // The addresses that are looked after.
  std::vector<AddressRun> attached() const;
  // Whether pages are in the store only, or on their way: a copy of memory would lack them.
  bool HasRemotePages() const;
  uint64_t metadata_bytes() const;

 private:
  // Pages that a thread has made kComing: it brings them, for which there is budget, or lets them be written to if they
  // were kClean.
  struct Coming {
    uint64_t home = 0;
    uint64_t address = 0;
    uint64_t count = 0;
    RunState from = RunState::kEmpty;
    bool writable = false;
    std::optional<uint64_t> demanded;  // the home, the first or last of them, whose fault this is; none: read ahead
  };
  // A window that is read ahead.
  struct Ahead {
    Run run;
    Coming coming;
    bool begun = false;
    bool used = false;  // a thread has waited for it
  };
  // Pages that a thread has made kLeaving, by address.
  struct Leaving {
    uint64_t home = 0;
    uint64_t address = 0;
    bool again = false;
  };
  uint64_t window_pages() const { return std::min(options_.window_pages, options_.budget_pages / 32); }
  // Homes for `pages` pages, by runs; none if there are fewer. New ones while there are any: then a heap that grows by
  // small steps has its homes in a row.
  std::vector<HomeRange> TakeHomes(uint64_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveHomes(uint64_t home, uint64_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Coming> Choose(const RunFault& fault);
  // A page is missing, and there is budget for `room`.
  Coming ChooseMissing(uint64_t home, bool write, uint64_t room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Coming ChooseProtected(uint64_t home) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the first pages of the run kComing, as far as they are in the state `from` and their addresses follow.
  Coming Claim(Run* run, RunState from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeBudget(const Coming& coming) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A window is read ahead if there is room for it without an eviction.
  void StartAhead(Run run, bool writable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A thread waits for a page that is kComing. If the page is read ahead, the next window follows.
  void JoinAhead(uint64_t home) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a window to read; null when the engine stops.
  Ahead* NextAhead();
  void ReadAhead();
  // Fetches the pages, or lets them be written to, and ends kComing. `buffer` as for HandleFault.
  void Bring(const Coming& coming, absl::Span<std::byte> buffer);
  // They cannot be read. The demanded one is read by itself, or the engine fails; the others remain in the store.
  void OnUnread(const Coming& coming, const absl::Status& status, absl::Span<std::byte> buffer);
  void EndComing(const Coming& coming, RunState state, bool wake);
  void OnUnknown(uint64_t address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Evict();
  bool Shares() const {
    MutexLock lock(&mu_);
    return shares_;
  }
  bool WantedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ChooseLeaving(std::vector<Leaving>* dirty, std::vector<Leaving>* clean);
  // False: none could be taken.
  bool DropClean(const std::vector<Leaving>& pages);
  bool TakeDirty(const std::vector<Leaving>& pages, absl::Span<std::byte> buffer);
  absl::Status Store(const std::vector<Leaving>& pages, absl::Span<const std::byte> data,
                     const std::vector<bool>& taken, std::vector<bool>* zero);
  // Ends kLeaving.
  void EndLeaving(const Leaving& page, RunState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnqueueLocked(uint64_t home, RunPage* page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status);

  const RunOptions options_;
  const uint64_t low_pages_;  // with less free budget than this, pages are evicted
  AddressSpace* const space_;
  PageStore* const store_;
  RunCounters* const counters_;
  const OnFatal on_fatal_;
  std::atomic<bool> failed_{false};

  mutable Mutex mu_;
  CondVar left_;     // budget was returned
  CondVar wanted_;   // for the evictors
  CondVar idle_;     // a page has ended being busy, for Detach
  CondVar to_read_;  // for the threads that read ahead
  CondVar thawed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  RangeMap ranges_ ABSL_GUARDED_BY(mu_);
  PageTable pages_ ABSL_GUARDED_BY(mu_);
  std::vector<AddressRun> changing_ ABSL_GUARDED_BY(mu_);
  uint64_t next_home_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, uint64_t> free_homes_ ABSL_GUARDED_BY(mu_);  // runs below it, which are apart: first and pages
  uint64_t resident_ ABSL_GUARDED_BY(mu_) = 0;                    // pages in memory, or on their way in or out
  uint64_t leaving_ ABSL_GUARDED_BY(mu_) = 0;                     // of those, on their way out
  uint64_t remote_ ABSL_GUARDED_BY(mu_) = 0;                      // kRemote pages
  uint64_t coming_ ABSL_GUARDED_BY(mu_) = 0;                      // kComing pages
  bool frozen_ ABSL_GUARDED_BY(mu_) = false;
  bool shares_ ABSL_GUARDED_BY(mu_) = false;  // the kernel may share pages with a copy: they do not move as they are
  uint64_t unknown_faults_ ABSL_GUARDED_BY(mu_) = 0;  // in a row
  std::deque<uint64_t> queue_ ABSL_GUARDED_BY(mu_);   // homes, the next to evict first
  std::vector<uint64_t> left_lately_ ABSL_GUARDED_BY(mu_);
  // Homes are the pages of one area: neighbours there are neighbours in memory.
  const StreamArea homes_{options_.homes};
  Streams streams_;
  WriteHabit habit_ ABSL_GUARDED_BY(mu_);
  std::list<Ahead> ahead_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_ENGINE_H_
