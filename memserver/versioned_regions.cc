#include "memserver/versioned_regions.h"

#include <algorithm>
#include <functional>

namespace nram {

void VersionedRegions::Place::Join(VersionedRegions* all, const StoredKey& key) {
  all_ = all;
  key_ = key;
}

void VersionedRegions::Place::Leave() {
  SetAge(std::nullopt, false);
  SetAwake();
  all_ = nullptr;
}

void VersionedRegions::Place::SetAge(std::optional<uint64_t> stamp, bool is_held) {
  if (all_ == nullptr || (stamp == stamp_ && is_held == is_held_)) return;
  MutexLock lock(&all_->mu_);
  std::array<Ages, 2>& ages = all_->ages_[key_.tenant];
  if (stamp_.has_value()) ages[is_held_ ? 1 : 0].erase({*stamp_, Raw(key_.id)});
  if (stamp.has_value()) ages[is_held ? 1 : 0].emplace(*stamp, Raw(key_.id));
  stamp_ = stamp;
  is_held_ = is_held;
}

void VersionedRegions::Place::Wake(int64_t at_ns) {
  if (all_ == nullptr || at_ns >= due_ns_) return;
  MutexLock lock(&all_->mu_);
  if (due_ns_ != kNever) all_->due_.erase({due_ns_, key_.tenant, Raw(key_.id)});
  due_ns_ = at_ns;
  all_->due_.emplace(due_ns_, key_.tenant, Raw(key_.id));
}

void VersionedRegions::Place::SetAwake() {
  if (all_ == nullptr || due_ns_ == kNever) return;
  MutexLock lock(&all_->mu_);
  all_->due_.erase({due_ns_, key_.tenant, Raw(key_.id)});
  due_ns_ = kNever;
}

std::optional<StoredKey> VersionedRegions::TakeDue() {
  const int64_t now_ns = leases_->NowNs();
  MutexLock lock(&mu_);
  if (due_.empty() || std::get<0>(*due_.begin()) > now_ns) return std::nullopt;
  const auto [due_ns, tenant, id] = *due_.begin();
  due_.erase(due_.begin());
  return StoredKey{RegionId{id}, tenant};
}

std::optional<StoredKey> VersionedRegions::Oldest(const Which& which) const {
  using Candidate = std::tuple<uint64_t, TenantNumber, uint64_t>;
  std::optional<Candidate> oldest;
  MutexLock lock(&mu_);
  for (const auto& [tenant, ages] : ages_) {
    if (which.of.has_value() ? tenant != *which.of : tenant == which.not_of) continue;
    for (const Ages& some : {std::cref(ages[0]), std::cref(ages[which.held ? 1 : 0])}) {
      if (some.empty()) continue;
      const Candidate candidate{some.begin()->first, tenant, some.begin()->second};
      oldest = oldest.has_value() ? std::min(*oldest, candidate) : candidate;
    }
  }
  if (!oldest.has_value()) return std::nullopt;
  return StoredKey{RegionId{std::get<2>(*oldest)}, std::get<1>(*oldest)};
}

}  // namespace nram
