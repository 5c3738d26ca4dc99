#ifndef NRAM_CLIENT_SEAL_PAGE_VERSIONS_H_
#define NRAM_CLIENT_SEAL_PAGE_VERSIONS_H_

// The owner's knowledge of a sealed region's pages: which version of each a server must have (adr/0016). It exposes a
// server that returns an older one.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "base/sync.h"
#include "base/units.h"
#include "proto/wire.h"

namespace nram {

// The low 32 bits of the counter that a page was sealed with, or one of these.
using PageVersion = uint32_t;
inline constexpr PageVersion kHoleVersion = 0;
inline constexpr PageVersion kUnknownVersion = 1;  // any that opens
inline constexpr PageVersion kLostVersion = 2;     // none, until the page is written again
inline constexpr PageVersion kFirstVersion = 3;    // of a counter

// Pages of one message, by their place in it: a bit each.
using PageBits = uint64_t;
static_assert(kPagesPerMessage == 64);

// Thread-safe. 4 bytes a page, in runs of 16 pages that were ever written, and some 40 bytes a span. Nothing blocks.
// The calls for changes of one page follow one another: each change is told before it leaves the gate.
class PageVersions {
 public:
  // `untold`: the version of pages that were never told: kHoleVersion, or kUnknownVersion in a region that was
  // attached. Counters begin at `first_counter`, whose low word is kFirstVersion or more, and keep its upper 16 bits:
  // other owners' counters have other ones.
  explicit PageVersions(PageVersion untold = kHoleVersion, uint64_t first_counter = kFirstVersion)
      : untold_(untold), next_counter_(first_counter) {}
  PageVersions(const PageVersions&) = delete;

  // Takes `count` counters in a row, none of which was given before; returns the first. At most kPagesPerMessage.
  uint64_t TakeCounters(uint64_t count);

  // Allocates the memory that changes of these pages need. Holes whose trim has had no answer take some more then.
  void Prepare(uint64_t first_page, uint64_t end_page);

  // A change of pages, told at its end. `pages`: which of those from `first_page` on it was of. It has left them sealed
  // with the counters from `first_counter` on, one for each from `first_page` on; 0: holes.
  void Stored(uint64_t first_page, PageBits pages, uint64_t first_counter);
  // Whether it was executed is not known: from now on the page may be either. If there are too many such, it is lost.
  void Doubted(uint64_t first_page, PageBits pages, uint64_t first_counter);
  // Holes, also beyond one message.
  void Trimmed(uint64_t first_page, uint64_t end_page);
  void TrimDoubted(uint64_t first_page, uint64_t end_page);
  // The span is empty everywhere: pages of which nothing was told are holes.
  void NoteEmpty(uint64_t span);
  // No server has any of these pages, or will ever get a message from before the mark: a change that was in doubt then
  // has not happened.
  uint64_t mark() const;
  void EndDoubts(uint64_t first_page, uint64_t end_page, uint64_t mark);
  // The first span at or after `span` of which something was told; UINT64_MAX if there is none.
  uint64_t NextTold(uint64_t span) const;

  enum class Verdict : uint8_t {
    kFits,
    kOther,  // a server should not have it
    kLost,   // no server can have it
  };
  // The finding of a read, at a time when no change of the page is under way. `counter` 0: a hole. Its tag has been
  // checked. `settles`: no change was under way while it was read either. Then the server has that version, and a doubt
  // about it ends. Else of the versions in doubt only the newest fits.
  Verdict Check(uint64_t page, uint64_t counter, bool settles);

  // Client memory beyond sizeof.
  size_t memory_bytes() const;

 private:
  static constexpr uint64_t kRunPages = 16;
  static constexpr uint64_t kRunsPerSpan = kPagesPerSpan / kRunPages;
  static constexpr size_t kDoubtsMax = 1024;  // of writes
  using Run = std::array<PageVersion, kRunPages>;
  static_assert(kRunsPerSpan == 16);

  // The runs of one span, in order: those whose bit is set in `present`.
  struct Span {
    uint16_t present = 0;
    uint16_t capacity = 0;
    std::unique_ptr<Run[]> runs;
  };
  // A write without an answer.
  struct Doubt {
    uint64_t first_page = 0;
    PageBits pages = 0;
    uint64_t first_counter = 0;
    uint64_t number = 0;  // counts up, over writes and holes
  };
  // The pages of changes without an answer that make holes, by their first pages and their numbers. A page is in one at
  // most: there may be many of these, and none is looked at for pages elsewhere.
  using Holes = absl::btree_map<std::pair<uint64_t, uint64_t>, PageBits>;
  struct Doubts {
    std::vector<Doubt> writes;  // in order
    Holes holes;
    uint64_t last_number = 0;
    bool empty() const { return writes.empty() && holes.empty(); }
    // The first that may have pages of a message that begins at `first_page`.
    Holes::iterator HolesNear(uint64_t first_page) {
      return holes.lower_bound({first_page - std::min(first_page, kPagesPerMessage - 1), 0});
    }
  };

  PageVersion FindLocked(uint64_t page) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Span* FindSpanLocked(uint64_t span) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PageVersion* SlotLocked(uint64_t page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetLocked(uint64_t page, PageVersion version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A change that makes holes is in doubt. Takes these pages out of earlier ones, and returns those that it concerns:
  // others are holes in any case.
  PageBits DoubtedHolesLocked(uint64_t first_page, PageBits pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Doubts& DoubtsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndDoubtsLocked(uint64_t first_page, PageBits pages, uint64_t mark = UINT64_MAX)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same for holes alone. There must be doubts.
  void EndHolesLocked(uint64_t first_page, PageBits pages, uint64_t mark) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The number of the change in doubt that has made the page a hole; 0: there is none.
  uint64_t HoleInDoubtLocked(uint64_t page) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PageVersion untold_;
  mutable SharedGate mu_;  // taken exclusively: a mutex in four bytes
  std::atomic<uint64_t> next_counter_;
  bool is_prepared_ ABSL_GUARDED_BY(mu_) = false;
  // A region of one span needs no table.
  uint64_t only_span_ ABSL_GUARDED_BY(mu_) = UINT64_MAX;
  mutable Span only_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<absl::btree_map<uint64_t, Span>> spans_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Doubts> doubts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_PAGE_VERSIONS_H_
