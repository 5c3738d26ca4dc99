#ifndef NRAM_CLIENT_MEMORY_PAGE_OUT_H_
#define NRAM_CLIENT_MEMORY_PAGE_OUT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/userfault.h"
#include "client/pool/io.h"

namespace nram {

// Writes pages back to their servers, several runs at a time, and drops them from local memory if asked. For one
// thread; others' PageOuts may work on the same pages at the same time.
//
// A page is protected, the chunks of it that servers do not have are sent from where they lie, and it is dropped when
// the servers have them; a thread that writes to it meanwhile sleeps until then, and the page stays.
class PageOut {
 public:
  enum class After { kKeep, kDrop };
  static constexpr uint64_t kRunPagesMax = 256;
  static constexpr uint64_t kRunBytesMax = kMiB;
  // A write that takes longer is not waited for by who has others to do.
  static constexpr int64_t kPatienceMs = 100;

  PageOut(Userfault* userfault, Residency* residency, ChunkSums* sums, Counters* counters, size_t lanes);
  // Waits for what is under way.
  ~PageOut();

  // Clean pages among [first, first + count) are dropped at once (kDrop), dirty ones begin to be written, others are
  // left alone: pinned ones (kDrop), ones that are busy. Blocks while all lanes are in use; after an error that has not
  // been taken it does nothing. `may_stay` is the evictor's: pages may get their second chance, those that cannot leave
  // queue up again, it waits for lanes until `deadline_ns` only, and no server gets more than half of the lanes.
  void Add(const SegmentRef& segment, uint64_t first, uint64_t count, After after, bool may_stay = false,
           int64_t deadline_ns = INT64_MAX);
  // Waits until at least one run that is under way has ended, or `deadline_ns`; at once if none is.
  void WaitAny(int64_t deadline_ns = INT64_MAX);
  // Pages that Add(kKeep) has passed over because somebody else is writing them.
  std::vector<uint64_t> TakePassed() { return std::exchange(passed_, {}); }
  // Waits for all of them, then TakeError().
  absl::Status Finish();

  // The first error since it was last asked for; what failed is still here, and dirty.
  absl::Status TakeError() { return std::exchange(status_, absl::OkStatus()); }

  // Pages under way that will be dropped soon: not those that their servers are slow to take.
  uint64_t leaving_pages() const;
  bool idle() const { return busy_ == 0; }

 private:
  // Of a run, one for 4 KiB.
  using Masks = std::array<ChunkMask, kRunBytesMax / kPageBytes>;
  struct Lane {
    Lane() : io(4) {}
    Io io;
    PageOut* owner = nullptr;
    SegmentRef segment;
    uint64_t first = 0;
    uint64_t count = 0;
    After after = After::kKeep;
    uint16_t server = kNoServer;
    bool busy = false;
    int64_t began_ns = 0;
    size_t index = 0;  // of it in lanes_ and done_
    std::array<PageState, kRunPagesMax> was;
    Masks masks;
  };

  // Null after `deadline_ns`, or when the server is behind.
  Lane* FreeLane(uint16_t server, bool may_stay, int64_t deadline_ns);
  // Its server has ended nothing for long, this least of all.
  bool IsStuck(const Lane& lane) const;
  // It has half of the lanes and ends nothing: others' pages are not to wait for it.
  bool IsBehind(uint16_t server) const;
  size_t LanesOf(uint16_t server) const;
  void Write(const SegmentRef& segment, uint64_t first, uint64_t count, const PageState* was, After after,
             bool may_stay, int64_t deadline_ns);
  void Send(Lane* lane);
  void SetDone(size_t lane, bool done);
  // Which chunks of a protected page its servers do not have.
  void FindMasks(const Segment& segment, uint64_t page, PageState was, absl::Span<ChunkMask> masks) const;
  void EndLane(Lane* lane);
  // Of pages that are kWriting, and which servers now have, because they were sent or as they were.
  void EndWritten(Segment* segment, uint64_t first, uint64_t count, const PageState* was, After after, bool sent);
  void EndFailed(Segment* segment, uint64_t first, uint64_t count);
  // Makes a page writable again that is kWriting or kBusy.
  void EndWritable(Segment* segment, uint64_t page, PageState to);
  // Drops pages that are kBusy.
  void Drop(Segment* segment, uint64_t first, uint64_t count, const PageState* becomes);

  Userfault* const userfault_;
  Residency* const residency_;
  ChunkSums* const sums_;
  Counters* const counters_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  absl::flat_hash_map<uint16_t, int64_t> last_ended_ns_;  // a run of each server
  size_t busy_ = 0;
  absl::Status status_;
  std::vector<uint64_t> passed_;
  // The pool's threads say here which writes have ended; all other fields are the one thread's that uses this object.
  Mutex mu_;
  CondVar ended_;
  std::vector<bool> done_ ABSL_GUARDED_BY(mu_);  // a lane each
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PAGE_OUT_H_
