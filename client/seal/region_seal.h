#ifndef NRAM_CLIENT_SEAL_REGION_SEAL_H_
#define NRAM_CLIENT_SEAL_REGION_SEAL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "client/seal/key_ring.h"
#include "client/seal/page_cipher.h"
#include "client/seal/page_versions.h"
#include "client/seal/seal_key.h"

namespace nram {

class Sealers;

// The owner's part of a sealed region besides its map. Thread-safe.
class RegionSeal {
 public:
  // `key` is shared by all regions of a pool that have no name; `number`: the region's under that key.
  RegionSeal(Sealers* sealers, const SealKey* key, uint32_t number)
      : sealers_(sealers), key_(key), number_(number), versions_(kHoleVersion) {}
  // Of a region with a name, for an owner in the ring. `untold`: as PageVersions has it.
  RegionSeal(Sealers* sealers, std::unique_ptr<const KeyRing> ring, OwnerNumber owner, PageVersion untold)
      : sealers_(sealers), ring_(std::move(ring)), key_(ring_->Find(owner)), versions_(untold, FirstCounterOf(owner)) {}
  // A reader's: it seals nothing.
  RegionSeal(Sealers* sealers, std::unique_ptr<const KeyRing> ring)
      : sealers_(sealers), ring_(std::move(ring)), versions_(kUnknownVersion) {}

  Sealers* sealers() const { return sealers_; }
  // Those that pages are sealed with, and those that this one was: null if there is no such key.
  const SealKey* key() const { return key_; }
  const SealKey* KeyOf(const PageSeal& seal) const {
    return ring_ == nullptr ? key_ : ring_->Find(OwnerOf(CounterOf(seal)));
  }
  SealPlace PlaceOf(RegionId region, uint64_t page) const { return {number_, region, page}; }
  PageVersions* versions() { return &versions_; }
  const PageVersions& versions() const { return versions_; }

 private:
  Sealers* const sealers_;
  const std::unique_ptr<const KeyRing> ring_;  // null: the region has no name
  const SealKey* const key_ = nullptr;
  const uint32_t number_ = 0;  // 0: a key of its own
  PageVersions versions_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_REGION_SEAL_H_
