#include "memserver/doomed_regions.h"

#include <limits>
#include <utility>

#include "base/clock.h"

namespace nram {

DoomedRegions::~DoomedRegions() { FreeSome(std::numeric_limits<int64_t>::max()); }

bool DoomedRegions::FreeStep(Doomed* doomed) {
  StoredRegion* const region = doomed->get();
  if (region == nullptr) return true;
  if (region->versions != nullptr) {
    if (!region->versions->FreeAll()) return false;
    region->versions = nullptr;
  }
  region->index.ForgetGenerations();
  if (region->index.pages() > 0) {
    region->DropPages(0, kRegionChunksMax / kChunksPerPage, counters_, nullptr);
  }
  if (region->index.pages() > 0) return false;
  if (const auto lease = leases_->Find(region->lease)) leases_->Unname(lease.get());
  Tenant* const tenant = region->tenant;
  const uint64_t bytes = RegionBytes(region->index.sealed());
  doomed->reset();
  tenant->account.ReleaseIndex(bytes);
  tenant->regions.Give();
  counters_->regions.fetch_sub(1);
  return true;
}

void DoomedRegions::Free(Doomed doomed) {
  while (!FreeStep(&doomed)) {
  }
}

void DoomedRegions::FreeLater(Doomed doomed) {
  if (doomed == nullptr) return;
  MutexLock lock(&mu_);
  later_.push_back(std::move(doomed));
}

bool DoomedRegions::FreeSome(int64_t until_ns) {
  MutexLock turn(&free_some_mu_);
  Doomed doomed;
  while (true) {
    if (doomed == nullptr) {
      MutexLock lock(&mu_);
      if (later_.empty()) return true;
      doomed = std::move(later_.back());
      later_.pop_back();
    }
    (void)FreeStep(&doomed);
    if (MonotonicNs() >= until_ns) {
      FreeLater(std::move(doomed));
      MutexLock lock(&mu_);
      return later_.empty();
    }
  }
}

}  // namespace nram
