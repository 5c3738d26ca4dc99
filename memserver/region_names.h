#ifndef NRAM_MEMSERVER_REGION_NAMES_H_
#define NRAM_MEMSERVER_REGION_NAMES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/tenant.h"

namespace nram {

// Where a region is found: an id is one tenant's, and another's region may have the same.
struct StoredKey {
  RegionId id{};
  TenantNumber tenant = 0;
  friend bool operator==(const StoredKey&, const StoredKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StoredKey& key) {
    return H::combine(std::move(h), Raw(key.id), key.tenant);
  }
};

// The facts about a named region that its creator tells clients that attach later.
struct RegionManifest {
  static constexpr size_t kSealBytesMax = 16 << 10;

  std::string name;
  std::vector<uint64_t> incarnations;
  uint64_t size_bytes = 0;
  uint32_t copies = 1;
  // The owner that has told this list of incarnations, and the list's number. Higher owners' lists are newer.
  uint32_t view_epoch = 0;
  uint64_t view = 0;
  // How many copies in sync each span has at least, if the last owner has left the region in good order; 0: not so.
  uint32_t left_in_order = 0;
  std::string seal;        // of a region with sealed pages: its owner's statement, for bearers of the key
  bool versioned = false;  // its spans have generations, also with one plain copy
  uint64_t companion = 0;  // the id of another region that belongs to it
};

// The names of a server's regions, and their manifests. Charges its memory to the tenant as index. A name is one
// tenant's, as an id is. Thread-safe. Its lock is taken after a shard's, never before.
class RegionNames {
 public:
  // The cost of a name and its manifest.
  static uint64_t CostBytes(const RegionManifest& manifest);
  // The region must have no manifest yet. ALREADY_EXISTS: another region has the name. RESOURCE_EXHAUSTED: no room.
  // After an error nothing has changed.
  absl::Status Add(Tenant* tenant, RegionId id, RegionManifest manifest);
  // Does nothing if the region has no name.
  void Forget(const StoredKey& key);
  // NOT_FOUND: the region has no name. ABORTED: the present view is newer. RESOURCE_EXHAUSTED: no room.
  absl::Status SetView(const StoredKey& key, uint32_t epoch, uint64_t view, std::vector<uint64_t> incarnations,
                       uint32_t left_in_order);
  // Another owner has it: it is not in good order now. `seal` is its own; "": it stays. RESOURCE_EXHAUSTED: no room;
  // then nothing has changed.
  absl::Status SetOwner(const StoredKey& key, std::string seal);

  // 0 if no region has this name.
  RegionId Find(TenantNumber tenant, const std::string& name) const;
  // Empty if the region has no name. `with_lists`: with its incarnations and its seal, which are long.
  RegionManifest Manifest(const StoredKey& key, bool with_lists) const;

 private:
  struct Kept {
    ArenaAccount* account = nullptr;
    RegionManifest manifest;
  };

  // RESOURCE_EXHAUSTED: no room.
  static absl::Status Replace(Kept* kept, RegionManifest manifest);

  mutable Mutex mu_;
  absl::flat_hash_map<std::pair<TenantNumber, std::string>, uint64_t> ids_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<StoredKey, Kept> manifests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_REGION_NAMES_H_
