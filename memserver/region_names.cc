#include "memserver/region_names.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace nram {
namespace {

// The memory of two table entries (also while the tables grow) and of the data that they point to.
uint64_t CostBytes(const RegionManifest& manifest) {
  return 480 + 2 * manifest.name.size() + manifest.incarnations.size() * sizeof(uint64_t);
}

}  // namespace

absl::Status RegionNames::Add(RegionId id, RegionManifest manifest) {
  MutexLock lock(&mu_);
  if (ids_.contains(manifest.name)) {
    return absl::AlreadyExistsError(absl::StrCat("a region named \"", manifest.name, "\" exists"));
  }
  if (!arena_->ChargeIndex(CostBytes(manifest))) return absl::ResourceExhaustedError("the server is full");
  ids_.emplace(manifest.name, Raw(id));
  CHECK(manifests_.emplace(Raw(id), std::move(manifest)).second);
  return absl::OkStatus();
}

void RegionNames::Forget(RegionId id) {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(Raw(id));
  if (it == manifests_.end()) return;
  arena_->ReleaseIndex(CostBytes(it->second));
  ids_.erase(it->second.name);
  manifests_.erase(it);
}

absl::Status RegionNames::SetView(RegionId id, uint32_t epoch, uint64_t view, std::vector<uint64_t> incarnations,
                                  uint32_t sealed) {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(Raw(id));
  if (it == manifests_.end()) return absl::NotFoundError("the region has no name");
  RegionManifest* const manifest = &it->second;
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
  if (after > before && !arena_->ChargeIndex(after - before)) return absl::ResourceExhaustedError("the server is full");
  if (after < before) arena_->ReleaseIndex(before - after);
  *manifest = std::move(changed);
  return absl::OkStatus();
}

void RegionNames::Unseal(RegionId id) {
  MutexLock lock(&mu_);
  if (const auto it = manifests_.find(Raw(id)); it != manifests_.end()) it->second.sealed = 0;
}

RegionId RegionNames::Find(const std::string& name) const {
  MutexLock lock(&mu_);
  const auto it = ids_.find(name);
  return it == ids_.end() ? RegionId{0} : RegionId{it->second};
}

RegionManifest RegionNames::Manifest(RegionId id, bool with_incarnations) const {
  MutexLock lock(&mu_);
  const auto it = manifests_.find(Raw(id));
  if (it == manifests_.end()) return {};
  RegionManifest manifest;
  manifest.name = it->second.name;
  manifest.size_bytes = it->second.size_bytes;
  manifest.copies = it->second.copies;
  manifest.view_epoch = it->second.view_epoch;
  manifest.view = it->second.view;
  manifest.sealed = it->second.sealed;
  if (with_incarnations) manifest.incarnations = it->second.incarnations;
  return manifest;
}

}  // namespace nram
