#include "client/seal/sealers.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/plant.h"
#include "base/zero_chunks.h"

namespace nram {
namespace {

// The seal of a page that is to become a hole: any but zeros.
PageSeal HoleSeal() {
  PageSeal seal;
  seal.counter.fill(0xff);
  return seal;
}

}  // namespace

bool Sealer::Seal(RegionSeal* seal, RegionId region, uint64_t first_page, absl::Span<const std::byte> pages,
                  absl::Span<const ChunkMask> selected, bool zeros_are_holes) {
  const size_t count = pages.size() / kPageBytes;
  CHECK_LE(count, kPagesPerMessage);
  first_counter = seal->versions()->TakeCounters(count);
  stored = holes = 0;
  if (!cipher.BeginSealing(*seal->key())) return false;
  bool sealed_all = true;
  for (size_t i = 0; i < count && sealed_all; ++i) {
    seals[i] = PageSeal();
    masks[i] = 0;
    if (!selected.empty() && selected[i] == 0) continue;
    const std::byte* const page = pages.data() + i * kPageBytes;
    if (zeros_are_holes && NonZero(page, kAllChunks) == 0) {
      seals[i] = HoleSeal();
      holes |= PageBits{1} << i;
      continue;
    }
    masks[i] = kAllChunks;
    stored |= PageBits{1} << i;
    sealed_all = cipher.Seal(seal->PlaceOf(region, first_page + i), first_counter + i, page,
                             sealed.data() + i * kPageBytes, &seals[i]);
  }
  cipher.End();
  return sealed_all;
}

size_t Sealer::Open(RegionSeal* seal, RegionId region, uint64_t first_page, absl::Span<std::byte> pages, bool settles,
                    bool* lost) {
  const size_t count = pages.size() / kPageBytes;
  size_t bad = kAllFit;
  const SealKey* key = nullptr;
  for (size_t i = 0; i < count && bad == kAllFit; ++i) {
    const uint64_t counter = CounterOf(seals[i]);
    // Whatever came there: nothing has a seal that says so.
    if (counter == 0 && !NRAM_PLANTED(unsealed_page_believed)) {
      memset(pages.data() + i * kPageBytes, 0, kPageBytes);
    }
    const SealKey* const its_key = counter == 0 ? key : seal->KeyOf(seals[i]);
    bool opens = counter == 0 || its_key != nullptr;
    if (opens && its_key != key) opens = cipher.BeginOpening(*its_key);
    key = its_key;
    opens = opens && (counter == 0 ||
                      cipher.Open(seal->PlaceOf(region, first_page + i), seals[i], pages.data() + i * kPageBytes));
    const PageVersions::Verdict verdict =
        opens ? seal->versions()->Check(first_page + i, counter, settles) : PageVersions::Verdict::kOther;
    *lost = verdict == PageVersions::Verdict::kLost;
    if (verdict != PageVersions::Verdict::kFits) bad = i;
  }
  cipher.End();
  if (bad != kAllFit) memset(pages.data() + bad * kPageBytes, 0, pages.size() - bad * kPageBytes);
  return bad;
}

void Sealer::SelectSealed(size_t pages, bool makes_holes) {
  for (size_t i = 0; i < pages; ++i) {
    const bool is_hole = CounterOf(seals[i]) == 0;
    masks[i] = is_hole ? 0 : kAllChunks;
    if (is_hole && makes_holes) seals[i] = HoleSeal();
  }
}

std::unique_ptr<Sealer> Sealers::Make() {
  absl::StatusOr<Mapping> memory = Mapping::Anonymous(kPagesPerMessage * kPageBytes);
  return memory.ok() ? std::make_unique<Sealer>(*std::move(memory)) : nullptr;
}

Sealers::Sealers() {
  MutexLock lock(&mu_);
  GrowLocked(kStock);
}

void Sealers::GrowLocked(size_t count) {
  stock_ = std::max(stock_, count);
  free_.reserve(stock_);
  while (free_.size() < stock_) {
    std::unique_ptr<Sealer> made = Make();
    if (made == nullptr) return;
    free_.push_back(std::move(made));
  }
}

void Sealers::Prepare(size_t count) {
  MutexLock lock(&mu_);
  GrowLocked(count);
  for (const auto& sealer : free_) memset(sealer->sealed.data(), 0, sealer->sealed.size());
}

Sealer* Sealers::Take() {
  {
    MutexLock lock(&mu_);
    if (!free_.empty()) {
      Sealer* const sealer = free_.back().release();
      free_.pop_back();
      return sealer;
    }
  }
  return Make().release();
}

void Sealers::Give(Sealer* sealer) {
  std::unique_ptr<Sealer> given(sealer);
  MutexLock lock(&mu_);
  if (free_.size() < stock_) free_.push_back(std::move(given));
}

}  // namespace nram
