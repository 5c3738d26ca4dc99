#ifndef NRAM_CLIENT_SEAL_SEALERS_H_
#define NRAM_CLIENT_SEAL_SEALERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "client/seal/page_cipher.h"
#include "client/seal/page_versions.h"
#include "client/seal/seal_key.h"
#include "proto/wire.h"

namespace nram {

// What one message of a sealed region needs on its way: a cipher, the pages' seals, and memory for what is sealed, of
// which only the pages that were once used take any. One operation at a time has it.
struct Sealer {
  explicit Sealer(const SealKey* key, Mapping memory) : cipher(key), sealed(std::move(memory)) {}

  // Seals these pages, one counter each, from `first_counter` on. Pages that `masks` (one for each page; empty: all)
  // does not select are left out, and those of zeros too if `zeros_are_holes`: then the message makes them holes. False:
  // this process has no key (it is a child after fork).
  bool Seal(SealPlace first, absl::Span<const std::byte> pages, absl::Span<const ChunkMask> selected,
            uint64_t first_counter, bool zeros_are_holes);
  // Opens in `pages` what was read, with its seals in `seals`, and compares with `versions`. The place of the first page
  // that is not what it should be; kAllFit. What was not opened is zeros. *lost: such a page is lost for good. `settles`:
  // as PageVersions::Check has it.
  static constexpr size_t kAllFit = SIZE_MAX;
  size_t Open(SealPlace first, absl::Span<std::byte> pages, PageVersions* versions, bool settles, bool* lost);
  // Makes `masks` and `seals` those of a message that sends the pages as they came, or of one that makes holes too.
  void SelectSealed(size_t pages, bool makes_holes);

  PageCipher cipher;
  std::array<PageSeal, kPagesPerMessage> seals{};
  // Of what Seal has made: chunks that are sent, and pages that the message changes, or makes holes.
  std::array<ChunkMask, kPagesPerMessage> masks{};
  PageBits stored = 0;
  PageBits holes = 0;
  uint64_t first_counter = 0;
  const Mapping sealed;
  Sealer* next = nullptr;
};

// The sealers of one pool, which share its key. Thread-safe. Nothing blocks.
class Sealers {
 public:
  // With a new key, that dies with this object. RESOURCE_EXHAUSTED: no memory may be locked.
  static absl::StatusOr<std::unique_ptr<Sealers>> Make();
  // Has kStock, whose memory was not touched.
  explicit Sealers(std::unique_ptr<SealKey> key);
  Sealers(const Sealers&) = delete;

  // One that is free: the one that was used last. Makes one if there is none: as many as messages are ever under way at
  // a time. Null: out of memory.
  Sealer* Take();
  void Give(Sealer* sealer);
  // So many are there, and their memory was touched: their use allocates nothing.
  void Prepare(size_t count);
  const SealKey* key() const { return key_.get(); }
  // For each region: half of a nonce. 0: there are none left, and others of these must be made.
  uint32_t TakeNumber();

 private:
  static constexpr size_t kStock = 32;

  Sealer* MakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GrowLocked(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::unique_ptr<SealKey> key_;
  std::atomic<uint64_t> next_number_{1};
  mutable Mutex mu_;
  std::vector<std::unique_ptr<Sealer>> all_ ABSL_GUARDED_BY(mu_);
  Sealer* free_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// What a sealed region has besides its map.
struct RegionSeal {
  RegionSeal(Sealers* from, uint32_t region_number, PageVersion untold)
      : sealers(from), number(region_number), versions(untold) {}
  Sealers* const sealers;  // of the region's key
  const uint32_t number;   // of the region under that key
  PageVersions versions;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_SEALERS_H_
