#ifndef NRAM_CLIENT_SEAL_SEALERS_H_
#define NRAM_CLIENT_SEAL_SEALERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "client/seal/page_cipher.h"
#include "client/seal/page_versions.h"
#include "client/seal/region_seal.h"
#include "proto/wire.h"

namespace nram {

// The tools of one message of a sealed region on its way: a cipher, the pages' seals, and memory for sealed pages, of
// which only the pages that were once used take any. One operation at a time has it.
struct Sealer {
  explicit Sealer(Mapping memory) : sealed(std::move(memory)) {}

  // Seals these pages of the region, from `first_page` on. Pages that `selected` (one mask for each page; empty: all)
  // leaves out are left out, and those of zeros too if `zeros_are_holes`: then the message makes them holes. False:
  // this process has no key (it is a child after fork).
  bool Seal(RegionSeal* seal, RegionId region, uint64_t first_page, absl::Span<const std::byte> pages,
            absl::Span<const ChunkMask> selected, bool zeros_are_holes);
  // Opens the pages read into `pages`, with their seals in `seals`, and compares with the region's versions. Returns
  // the place of the first wrong page; kAllFit. Unopened pages are zeros. *lost: that page is lost for good. `settles`:
  // as PageVersions::Check has it.
  static constexpr size_t kAllFit = SIZE_MAX;
  size_t Open(RegionSeal* seal, RegionId region, uint64_t first_page, absl::Span<std::byte> pages, bool settles,
              bool* lost);
  // Makes `masks` and `seals` those of a message that sends the pages as they came, or of one that makes holes too.
  void SelectSealed(size_t pages, bool makes_holes);

  PageCipher cipher;
  std::array<PageSeal, kPagesPerMessage> seals{};
  // Seal's results: chunks that are sent, and pages that the message changes, or makes holes.
  std::array<ChunkMask, kPagesPerMessage> masks{};
  PageBits stored = 0;
  PageBits holes = 0;
  uint64_t first_counter = 0;
  const Mapping sealed;
};

// The sealers of one pool: a stock, and more while more messages are under way. Thread-safe. Nothing waits; beyond the
// stock, Take allocates.
class Sealers {
 public:
  // Has kStock, whose memory was not touched.
  Sealers();
  Sealers(const Sealers&) = delete;

  // One that is free: the one that was used last. Null: out of memory.
  Sealer* Take();
  void Give(Sealer* sealer);
  // From now on the stock has `count` sealers, whose memory was touched. While none is in use.
  void Prepare(size_t count);

 private:
  static constexpr size_t kStock = 32;

  static std::unique_ptr<Sealer> Make();
  void GrowLocked(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  size_t stock_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Sealer>> free_ ABSL_GUARDED_BY(mu_);  // has room for the stock
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_SEALERS_H_
