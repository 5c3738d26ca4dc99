#include "memserver/region_names.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace nram {
namespace {

absl::Status Full() {
  return absl::ResourceExhaustedError("the server is full, or the tenant has reached its quota");
}

}  // namespace

// The memory of two table entries (also while the tables grow) and of the data that they point to.
uint64_t RegionNames::CostBytes(const RegionManifest& manifest) {
  // A seal grows with each owner, which must need no room of a server that may be full.
  const uint64_t seal_bytes = manifest.seal.empty() ? 0 : RegionManifest::kSealBytesMax;
  return 664 + 2 * manifest.name.size() + manifest.incarnations.size() * sizeof(uint64_t) + seal_bytes;
}

absl::Status RegionNames::Add(Tenant* tenant, RegionId id, RegionManifest manifest) {
  MutexLock lock(&mu_);
  const auto name = std::pair(tenant->number, manifest.name);
  if (ids_.contains(name)) {
    return absl::AlreadyExistsError(absl::StrCat("a region named \"", manifest.name, "\" exists"));
  }
  if (!tenant->account.ChargeIndex(CostBytes(manifest))) return Full();
  ids_.emplace(name, Raw(id));
  const StoredKey key{id, tenant->number};
  CHECK(manifests_.emplace(key, Kept{&tenant->account, std::move(manifest)}).second);
  return absl::OkStatus();
}

void RegionNames::Forget(const StoredKey& key) {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(key);
  if (it == manifests_.end()) return;
  const Kept& kept = it->second;
  kept.account->ReleaseIndex(CostBytes(kept.manifest));
  ids_.erase({key.tenant, kept.manifest.name});
  manifests_.erase(it);
}

absl::Status RegionNames::SetView(const StoredKey& key, uint32_t epoch, uint64_t view,
                                  std::vector<uint64_t> incarnations, uint32_t left_in_order) {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(key);
  if (it == manifests_.end()) return absl::NotFoundError("the region has no name");
  RegionManifest changed = it->second.manifest;
  if (std::pair(epoch, view) < std::pair(changed.view_epoch, changed.view)) {
    return absl::AbortedError(absl::StrCat("the region has view ", changed.view, " already"));
  }
  changed.view_epoch = epoch;
  changed.view = view;
  changed.incarnations = std::move(incarnations);
  changed.left_in_order = left_in_order;
  return Replace(&it->second, std::move(changed));
}

absl::Status RegionNames::SetOwner(const StoredKey& key, std::string seal) {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(key);
  if (it == manifests_.end()) return absl::OkStatus();
  if (seal.empty()) {
    it->second.manifest.left_in_order = 0;
    return absl::OkStatus();
  }
  RegionManifest changed = it->second.manifest;
  changed.left_in_order = 0;
  changed.seal = std::move(seal);
  return Replace(&it->second, std::move(changed));
}

absl::Status RegionNames::Replace(Kept* kept, RegionManifest manifest) {
  const uint64_t before = CostBytes(kept->manifest);
  const uint64_t after = CostBytes(manifest);
  if (after > before && !kept->account->ChargeIndex(after - before)) return Full();
  if (after < before) kept->account->ReleaseIndex(before - after);
  kept->manifest = std::move(manifest);
  return absl::OkStatus();
}

RegionId RegionNames::Find(TenantNumber tenant, const std::string& name) const {
  MutexLock lock(&mu_);
  const auto it = ids_.find({tenant, name});
  return it == ids_.end() ? RegionId{0} : RegionId{it->second};
}

RegionManifest RegionNames::Manifest(const StoredKey& key, bool with_lists) const {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(key);
  if (it == manifests_.end()) return {};
  RegionManifest manifest;
  manifest.name = it->second.manifest.name;
  manifest.size_bytes = it->second.manifest.size_bytes;
  manifest.copies = it->second.manifest.copies;
  manifest.view_epoch = it->second.manifest.view_epoch;
  manifest.view = it->second.manifest.view;
  manifest.left_in_order = it->second.manifest.left_in_order;
  manifest.versioned = it->second.manifest.versioned;
  manifest.companion = it->second.manifest.companion;
  if (with_lists) manifest.incarnations = it->second.manifest.incarnations;
  if (with_lists) manifest.seal = it->second.manifest.seal;
  return manifest;
}

}  // namespace nram
