#ifndef NRAM_CLIENT_MEMORY_PAGE_PLACER_H_
#define NRAM_CLIENT_MEMORY_PAGE_PLACER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/publish_gate.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/streams.h"
#include "client/memory/userfault.h"

namespace nram {

// Is told of a page that cannot be had, before the threads that wait for it get SIGBUS.
using OnLoss = std::function<void(void* address, size_t length, const std::string& reason)>;

// Takes pages from a state to kBusy, takes budget for them, and puts them in place. Single pages and whole windows
// share this part of their way in. Has no state of its own; any number of threads may use it at the same time, each for
// the pages that it has claimed.
class PagePlacer {
 public:
  PagePlacer(size_t page_bytes, OnLoss on_loss, PublishGate* gate, Userfault* userfault, Residency* residency,
             ChunkSums* sums, Counters* counters)
      : page_bytes_(page_bytes),
        on_loss_(std::move(on_loss)),
        gate_(gate),
        userfault_(userfault),
        residency_(residency),
        sums_(sums),
        counters_(counters) {}

  // Claims pages of the run that are `from`, from its first on, up to the first that is something else. Returns how
  // many; they are kBusy, and the caller's to end.
  uint64_t Claim(const Segment& segment, const Run& run, PageState from);
  // Ends kBusy for all pages of the run; threads that wait for them look again.
  void Unclaim(const SegmentRef& segment, const Run& run, PageState to);

  // Blocks until there is budget for `pages`. RESOURCE_EXHAUSTED after `deadline_ns`, for several pages sooner: budget
  // for many is rarely free while others take each page that becomes free.
  absl::Status TakeBudget(uint64_t pages, int64_t deadline_ns);

  // Puts claimed pages, which have budget, in place from `data`, and ends kBusy. A page that the kernel refuses is
  // lost, and its budget returned. While the machine, or the memory cgroup, has no room, it is tried again, for a
  // second at most; then only `demanded`, for which a thread has faulted, is lost, and the others are as they were
  // before they were claimed: remote, or empty. (Large pages are lost: part of one may be in place.) `writable`: the
  // pages are about to be written, so their first writes raise no fault. `empty`: `data` is zeros that no server has. A
  // single writable page is noted in ChunkSums: little of it may change, while streams write whole pages.
  void Place(const SegmentRef& segment, uint64_t lowest, uint64_t count, const std::byte* data, bool writable,
             bool empty, std::optional<uint64_t> demanded);

  // Ends a claimed page as lost: OnLoss is told, and touching the page is SIGBUS. Before Linux 6.6 it ends the program.
  void Lose(const SegmentRef& segment, uint64_t page, const std::string& reason);

  // Lets writes through to claimed pages and ends kBusy: as if at once, to a flip.
  void Open(const SegmentRef& segment, const Run& run, PageState to);

 private:
  struct Refused {
    uint64_t page = 0;
    absl::Status why;
  };
  // Copies pages into place and ends kBusy, likewise. Returns those that the kernel does not take: they are kBusy
  // still.
  std::vector<Refused> PutIn(const SegmentRef& segment, uint64_t lowest, uint64_t count, const std::byte* data,
                             bool protect, PageState to);
  // One that was refused for want of room, until `deadline_ns`. Its status then.
  absl::Status PutInLater(const SegmentRef& segment, uint64_t page, const std::byte* data, bool protect, PageState to,
                          int64_t deadline_ns);

  const size_t page_bytes_;
  const OnLoss on_loss_;
  PublishGate* const gate_;
  Userfault* const userfault_;
  Residency* const residency_;
  ChunkSums* const sums_;
  Counters* const counters_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PAGE_PLACER_H_
