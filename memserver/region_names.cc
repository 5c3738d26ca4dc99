#include "memserver/region_names.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace nram {
namespace {

// The memory of two table entries (also while the tables grow) and of the data that they point to.
uint64_t CostBytes(const RegionManifest& manifest) {
  return 528 + 2 * manifest.name.size() + manifest.incarnations.size() * sizeof(uint64_t);
}

absl::Status Full() {
  return absl::ResourceExhaustedError("the server is full, or the tenant has all that it may have");
}

}  // namespace

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
                                  std::vector<uint64_t> incarnations, uint32_t sealed) {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(key);
  if (it == manifests_.end()) return absl::NotFoundError("the region has no name");
  RegionManifest* const manifest = &it->second.manifest;
  if (std::pair(epoch, view) < std::pair(manifest->view_epoch, manifest->view)) {
    return absl::AbortedError(absl::StrCat("the region has view ", manifest->view, " already"));
  }
  const uint64_t before = CostBytes(*manifest);
  RegionManifest changed = *manifest;
  changed.view_epoch = epoch;
  changed.view = view;
  changed.incarnations = std::move(incarnations);
  changed.sealed = sealed;
  const uint64_t after = CostBytes(changed);
  ArenaAccount* const account = it->second.account;
  if (after > before && !account->ChargeIndex(after - before)) return Full();
  if (after < before) account->ReleaseIndex(before - after);
  *manifest = std::move(changed);
  return absl::OkStatus();
}

void RegionNames::Unseal(const StoredKey& key) {
  MutexLock lock(&mu_);
  if (const auto it = manifests_.find(key); it != manifests_.end()) it->second.manifest.sealed = 0;
}

RegionId RegionNames::Find(TenantNumber tenant, const std::string& name) const {
  MutexLock lock(&mu_);
  const auto it = ids_.find({tenant, name});
  return it == ids_.end() ? RegionId{0} : RegionId{it->second};
}

RegionManifest RegionNames::Manifest(const StoredKey& key, bool with_incarnations) const {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(key);
  if (it == manifests_.end()) return {};
  RegionManifest manifest;
  manifest.name = it->second.manifest.name;
  manifest.size_bytes = it->second.manifest.size_bytes;
  manifest.copies = it->second.manifest.copies;
  manifest.view_epoch = it->second.manifest.view_epoch;
  manifest.view = it->second.manifest.view;
  manifest.sealed = it->second.manifest.sealed;
  if (with_incarnations) manifest.incarnations = it->second.manifest.incarnations;
  return manifest;
}

}  // namespace nram
