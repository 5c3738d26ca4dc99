#ifndef NRAM_CLIENT_MEMORY_PAGE_OUT_H_
#define NRAM_CLIENT_MEMORY_PAGE_OUT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/publish_gate.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/server_lanes.h"
#include "client/memory/userfault.h"
#include "client/pool/io.h"

namespace nram {

// Writes pages back to their servers, several runs at a time, and drops them from local memory if asked. For one thread
// at a time; the PageOuts of other threads may work on the same pages.
//
// Each page is protected first. Then the chunks that servers do not have are sent in place, without a copy. When
// servers have them, the page is dropped. A thread that writes to the page meanwhile sleeps until then, and the page
// remains resident.
//
// Of a segment that is being published only bound pages are written back (publish_gate.h).
class PageOut {
 public:
  enum class After { kKeep, kDrop };
  static constexpr uint64_t kRunPagesMax = 256;
  static constexpr uint64_t kRunBytesMax = kMiB;
  // A thread with other writes to do waits no longer than this for one write.
  static constexpr int64_t kPatienceMs = 100;

  PageOut(PublishGate* gate, Userfault* userfault, Residency* residency, ChunkSums* sums, Counters* counters,
          size_t lanes);
  // Waits for the writes that are under way.
  ~PageOut();

  // Of the pages [first, first + count), starts to write the dirty ones, and drops the clean ones at once (kDrop). Busy
  // pages are left alone, and pinned ones with kDrop. Blocks while all lanes are in use. Does nothing after an error
  // that has not been taken.
  //
  // `may_stay` is for the evictor: pages may get their second chance; pages that cannot leave queue up again; lanes are
  // waited for until `deadline_ns` only; and no server gets all lanes (ServerLanes).
  void Add(const SegmentRef& segment, uint64_t first, uint64_t count, After after, bool may_stay = false,
           int64_t deadline_ns = INT64_MAX);
  // Waits until a run that is under way has ended, or until `deadline_ns`. Returns at once if none is under way.
  void WaitAny(int64_t deadline_ns = INT64_MAX);
  // The pages that Add(kKeep) has passed over because another thread is writing them back, or a copy of them; forgets
  // them.
  std::vector<uint64_t> TakePassed() { return std::exchange(passed_, {}); }
  // Waits for all runs, then TakeError().
  absl::Status Finish();

  // The first error since the last call. The pages whose write failed are still here, and dirty.
  absl::Status TakeError() { return std::exchange(status_, absl::OkStatus()); }

  // How many pages will be dropped soon. Pages whose servers are slow do not count.
  uint64_t leaving_pages() const;
  bool idle() const { return busy_ == 0; }
  bool full() const { return busy_ == lanes_.size(); }

 private:
  // The masks of a run, one for each 4 KiB.
  using Masks = std::array<ChunkMask, kRunBytesMax / kPageBytes>;
  struct Lane {
    Lane() : io(4) {}
    Io io;
    PageOut* owner = nullptr;
    SegmentRef segment;
    uint64_t first = 0;
    uint64_t count = 0;
    After after = After::kKeep;
    size_t index = 0;  // in lanes_, servers_ and done_
    std::array<PageState, kRunPagesMax> was;
    Masks masks;
  };

  // A run of pages of one kind that Add has taken of a range; they are kWriting or kBusy now.
  struct Taken {
    uint64_t pages = 0;
    uint64_t staying = 0;  // after them, pages that are passed over
    bool dirty = false;
    std::array<PageState, kRunPagesMax> was;
  };
  void Take(Segment* segment, uint64_t first, uint64_t most, After after, bool may_stay, Taken* taken);
  // Null after `deadline_ns`, or when one of the servers is behind.
  Lane* FreeLane(const ServerLanes::Servers& servers, bool may_stay, int64_t deadline_ns);
  void Write(const SegmentRef& segment, uint64_t first, uint64_t count, const PageState* was, After after,
             bool may_stay, int64_t deadline_ns);
  void Send(Lane* lane);
  void SetDone(size_t lane, bool done);
  // Finds the chunks of a protected page that its servers do not have.
  void FindMasks(const Segment& segment, uint64_t page, PageState was, absl::Span<ChunkMask> masks) const;
  void EndLane(Lane* lane);
  // The pages are kWriting. Servers have them now, because they were sent or had not changed.
  void EndWritten(Segment* segment, uint64_t first, uint64_t count, const PageState* was, After after, bool sent);
  // The pages are kWriting. Servers may have all, some or none of their changes.
  void EndFailed(Segment* segment, uint64_t first, uint64_t count);
  // The pages are kWriting. They were not sent.
  void EndUnsent(Segment* segment, uint64_t first, uint64_t count, const PageState* was);
  void EndUnsentPage(Segment* segment, uint64_t page, PageState was) ABSL_SHARED_LOCKS_REQUIRED(gate_);
  // Makes a page writable again that is kWriting or kBusy.
  void EndWritable(Segment* segment, uint64_t page, PageState to);
  // Drops pages that are kBusy.
  void Drop(Segment* segment, uint64_t first, uint64_t count, const PageState* becomes);

  PublishGate* const gate_;
  Userfault* const userfault_;
  Residency* const residency_;
  ChunkSums* const sums_;
  Counters* const counters_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  ServerLanes servers_;
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
