#ifndef NRAM_MEMSERVER_TENANT_H_
#define NRAM_MEMSERVER_TENANT_H_

// A server keeps the data of its tenants apart (adr/0015). Only a caller that names the tenant finds the tenant's
// things, and they count for the tenant.

#include <glog/logging.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/sync.h"
#include "memserver/frame_arena.h"
#include "memserver/landing_frames.h"
#include "memserver/store_counters.h"
#include "memserver/tenant_limits.h"

namespace nram {

// Things of one kind that a tenant has, and how many it may have. Thread-safe.
class Quota {
 public:
  // False, and nothing changes: it has as many as it may have.
  bool Take() {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (used >= limit_.load(std::memory_order_relaxed)) return false;
    } while (!used_.compare_exchange_weak(used, used + 1));
    return true;
  }
  void Give() { used_.fetch_sub(1); }
  void SetLimit(uint64_t limit) { limit_ = limit; }
  bool is_full() const { return used_ >= limit_; }
  uint64_t used() const { return used_; }
  uint64_t limit() const { return limit_; }

 private:
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> limit_{TenantLimits::kNone};
};

// One thing of a quota. Gives it back when it goes.
class QuotaShare {
 public:
  QuotaShare() = default;
  // `taken`: by Take.
  explicit QuotaShare(Quota* taken) : quota_(taken) {}
  QuotaShare(QuotaShare&& other) noexcept : quota_(std::exchange(other.quota_, nullptr)) {}
  QuotaShare& operator=(QuotaShare&& other) noexcept {
    std::swap(quota_, other.quota_);
    return *this;
  }
  ~QuotaShare() {
    if (quota_ != nullptr) quota_->Give();
  }
  bool taken() const { return quota_ != nullptr; }
  // It is given back by other means.
  void Keep() { quota_ = nullptr; }

 private:
  Quota* quota_ = nullptr;
};

// Thread-safe. Stays as long as the server runs.
struct Tenant {
  Tenant(TenantNumber its_number, std::string its_name, FrameArena* arena)
      : number(its_number), name(std::move(its_name)), account(arena) {}

  void SetLimits(const TenantLimits& limits) {
    account.SetLimit(limits.bytes);
    leases.SetLimit(limits.leases);
    regions.SetLimit(limits.regions);
    connections.SetLimit(limits.connections);
    calls.SetLimit(limits.calls);
  }

  const TenantNumber number;
  const std::string name;
  ArenaAccount account;
  Quota leases;
  Quota regions;
  Quota connections;       // of the data plane
  Quota calls;             // control calls under way
  VersionTotals versions;  // of its regions
  size_t uncharged_leases = 0;  // guarded by the lease table's lock
  LandingShare landing;
  std::atomic<uint64_t> answer_bytes{0};      // of large answers of control that are not taken yet (AnswerRoom)
  std::atomic<int64_t> landing_waited_ns{0};  // when a connection of it last waited for landing frames
};

// All tenants since the server started, by their numbers. Thread-safe.
class Tenants {
 public:
  // `arena` is not owned.
  explicit Tenants(FrameArena* arena) : arena_(arena) {}

  // Adds the tenant if it is new, and sets its limits. The numbers begin with 0, and none is left out.
  Tenant* Set(TenantNumber number, const std::string& name, const TenantLimits& limits) {
    MutexLock lock(&mu_);
    CHECK_LE(number, tenants_.size());
    if (number == tenants_.size()) tenants_.push_back(std::make_unique<Tenant>(number, name, arena_));
    tenants_[number]->SetLimits(limits);
    return tenants_[number].get();
  }
  // Null if there is none.
  Tenant* Of(size_t number) const {
    MutexLock lock(&mu_);
    return number < tenants_.size() ? tenants_[number].get() : nullptr;
  }
  Tenant* Named(const std::string& name) const {
    MutexLock lock(&mu_);
    for (const auto& tenant : tenants_) {
      if (tenant->name == name) return tenant.get();
    }
    return nullptr;
  }

 private:
  FrameArena* const arena_;
  mutable Mutex mu_;
  std::vector<std::unique_ptr<Tenant>> tenants_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_TENANT_H_
