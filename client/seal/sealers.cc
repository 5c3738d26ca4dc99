#include "client/seal/sealers.h"

#include <glog/logging.h>

#include <cstring>
#include <utility>

#include "base/plant.h"
#include "base/status.h"
#include "base/zero_chunks.h"

namespace nram {
namespace {

// Of a page that is to become a hole: any but zeros.
PageSeal HoleSeal() {
  PageSeal seal;
  seal.counter.fill(0xff);
  return seal;
}

}  // namespace

bool Sealer::Seal(SealPlace first, absl::Span<const std::byte> pages, absl::Span<const ChunkMask> selected,
                  uint64_t counter, bool zeros_are_holes) {
  const size_t count = pages.size() / kPageBytes;
  CHECK_LE(count, kPagesPerMessage);
  first_counter = counter;
  stored = holes = 0;
  if (!cipher.BeginSealing()) return false;
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
    SealPlace place = first;
    place.page += i;
    sealed_all = cipher.Seal(place, counter + i, page, sealed.data() + i * kPageBytes, &seals[i]);
  }
  cipher.End();
  return sealed_all;
}

size_t Sealer::Open(SealPlace first, absl::Span<std::byte> pages, PageVersions* versions, bool settles, bool* lost) {
  const size_t count = pages.size() / kPageBytes;
  size_t bad = kAllFit;
  if (!cipher.BeginOpening()) bad = 0;
  for (size_t i = 0; i < count && bad == kAllFit; ++i) {
    SealPlace place = first;
    place.page += i;
    const uint64_t counter = CounterOf(seals[i]);
    const bool opens = counter == 0 || cipher.Open(place, seals[i], pages.data() + i * kPageBytes);
    const PageVersions::Verdict verdict =
        opens ? versions->Check(place.page, counter, settles) : PageVersions::Verdict::kOther;
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

absl::StatusOr<std::unique_ptr<Sealers>> Sealers::Make() {
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<SealKey> key, SealKey::Random());
  return std::make_unique<Sealers>(std::move(key));
}

Sealer* Sealers::MakeLocked() {
  absl::StatusOr<Mapping> memory = Mapping::Anonymous(kPagesPerMessage * kPageBytes);
  if (!memory.ok()) return nullptr;
  all_.push_back(std::make_unique<Sealer>(key_.get(), *std::move(memory)));
  return all_.back().get();
}

Sealer* Sealers::Take() {
  MutexLock lock(&mu_);
  if (free_ == nullptr) return MakeLocked();
  Sealer* const sealer = std::exchange(free_, free_->next);
  sealer->next = nullptr;
  return sealer;
}

void Sealers::Give(Sealer* sealer) {
  MutexLock lock(&mu_);
  sealer->next = free_;
  free_ = sealer;
}

Sealers::Sealers(std::unique_ptr<SealKey> key) : key_(std::move(key)) {
  MutexLock lock(&mu_);
  GrowLocked(kStock);
}

void Sealers::GrowLocked(size_t count) {
  all_.reserve(count);
  while (all_.size() < count) {
    Sealer* const sealer = MakeLocked();
    if (sealer == nullptr) return;
    sealer->next = std::exchange(free_, sealer);
  }
}

void Sealers::Prepare(size_t count) {
  MutexLock lock(&mu_);
  GrowLocked(count);
  for (const auto& sealer : all_) memset(sealer->sealed.data(), 0, sealer->sealed.size());
}

uint32_t Sealers::TakeNumber() {
  const uint64_t number = next_number_.fetch_add(1, std::memory_order_relaxed);
  return number <= UINT32_MAX ? static_cast<uint32_t>(number) : 0;
}

}  // namespace nram
