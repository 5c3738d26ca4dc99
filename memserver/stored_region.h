#ifndef NRAM_MEMSERVER_STORED_REGION_H_
#define NRAM_MEMSERVER_STORED_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/plant.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "memserver/page_index.h"
#include "memserver/payment.h"
#include "memserver/region_lists.h"
#include "memserver/region_versions.h"
#include "memserver/store_counters.h"
#include "memserver/tenant.h"
#include "proto/price.h"

namespace nram {

// A region as a server holds it. Not thread-safe: the lock of its shard guards it, or one thread owns it.
struct StoredRegion {
  StoredRegion(Tenant* whose, bool sealed)
      : tenant(whose), index(&whose->account, sealed ? PageIndex::Pages::kSealed : PageIndex::Pages::kPlain) {}

  // Makes the pages from `begin_page` to `end_page` holes, for at most kSpansPerStep spans that hold pages.
  void DropPages(uint64_t begin_page, uint64_t end_page, StoreCounters* counters, Refund* refund);

  // The functions below do nothing in a region without versions. None of them fails: versions yield (adr/0019).
  //
  // Makes the page's frame one that no version sees, of the same size. With `copies`, it has the same bytes; else they
  // are undefined, and the caller must replace them all. Returns the page's entry.
  PageEntry Detach(FrameArena* arena, uint64_t page, bool copies);
  // Of [begin_page, end_page), makes holes of those pages that a version keeps. `reservation` (may be null) gets as
  // much as their frames take; that is added to *reserved_bytes (may be null). Returns how many pages. The range should
  // have no more than kSpansPerStep spans with pages.
  uint64_t KeepPages(FrameArena* arena, uint64_t begin_page, uint64_t end_page, StoreCounters* counters,
                     ArenaReservation* reservation, uint64_t* reserved_bytes = nullptr);
  void NoteGenerations(uint64_t from_span, uint64_t end_span, SpanGeneration generation);
  // The birth of everything that is stored now.
  uint16_t birth() const { return versions != nullptr && !NRAM_PLANTED(born_not_set) ? versions->birth() : 0; }

  static constexpr uint64_t kSpansPerStep = 64;
  // Its owner is gone: drops versions that go with it. True: some stay, and the region with them.
  bool StaysAlone(int64_t now_ns) { return versions != nullptr && versions->EndOwner(now_ns); }

  Tenant* const tenant;
  LeaseId lease{};
  uint32_t epoch = 0;
  bool gc = false;
  bool named = false;
  uint64_t chunks = 0;
  uint64_t kept_bytes = 0;  // freed by trims into the owner's reservation
  uint64_t kept_term = 0;   // the lease's term that kept_bytes counts for
  PageIndex index;
  std::unique_ptr<RegionVersions> versions;  // null: the region never had any
};

// The cost of a region beyond its pages: itself, its slot in the shard's table (which doubles when it grows), its
// places in two lists, the allocator's words.
inline constexpr uint64_t kRegionBytes = 248;
static_assert(sizeof(StoredRegion) + 2 * sizeof(size_t) + 2 * (3 * sizeof(uint64_t) + 1) + LeaseRegions::kEntryBytes +
                  TenantRegions::kEntryBytes <=
              kRegionBytes);
constexpr uint64_t RegionBytes(bool sealed) {
  return kRegionBytes + PageIndex::PrepaidBytes(sealed ? PageIndex::Pages::kSealed : PageIndex::Pages::kPlain);
}
static_assert(RegionBytes(/*sealed=*/true) <= kReservationBytesPerRegion);

}  // namespace nram

#endif  // NRAM_MEMSERVER_STORED_REGION_H_
