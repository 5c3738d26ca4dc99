#include "memserver/server_core.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr Credit kCredit{256, 4096};

constexpr uint64_t kVersionSteps = 64;  // in a tick

// One of every 64 bytes is for landing frames, within bounds.
size_t LandingPages(uint64_t ceiling_bytes) { return std::clamp<size_t>(ceiling_bytes / 64 / kPageBytes, 128, 2048); }

}  // namespace

absl::StatusOr<std::unique_ptr<ServerCore>> ServerCore::Create(const ServerCoreOptions& options, const Clock* clock) {
  CHECK_NE(options.incarnation, 0u);
  NRAM_ASSIGN_OR_RETURN(auto arena,
                        FrameArena::Create(options.ceiling_bytes, options.fixed_bytes + LeaseTable::kFixedBytes));
  std::unique_ptr<ServerCore> core(new ServerCore(options, std::move(arena), clock));
  if (core->landing_.size() < 2 * kPagesPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ceiling of ", FormatByteSize(options.ceiling_bytes), " leaves nothing to lend"));
  }
  return core;
}

ServerCore::ServerCore(const ServerCoreOptions& options, std::unique_ptr<FrameArena> arena, const Clock* clock)
    : clock_(clock),
      arena_(std::move(arena)),
      tenants_(arena_.get()),
      leases_(arena_.get(), clock, options.lease_ttl_ms),
      store_(arena_.get(), &leases_),
      landing_(arena_.get(), LandingPages(options.ceiling_bytes)),
      give_back_(options.give_back, arena_.get(), &leases_, &store_, &landing_),
      context_{&store_, &leases_, &landing_, options.incarnation, kCredit} {
  SetDraining(options.drain);
}

void ServerCore::SetDraining(bool draining, bool leaving, bool urgent) {
  draining_ = draining;
  leaving_ = draining && leaving;
  urgent_ = draining && leaving && urgent;
  store_.SetLeavesSoon(urgent_);
  store_.SetDraining(draining);
}

ServerCore::Leases ServerCore::Tick(int64_t lease_now_ns, int64_t now_ns, int64_t worked_ns) {
  // Renewals that came while the server was stopped have not been read yet. While this thread worked, others read them.
  const int64_t stopped_ns = now_ns - ticked_ns_ - (worked_ns - worked_ns_);
  if (ticked_ns_ != 0 && stopped_ns > kStoppedMs * kNsPerMs) leases_.Extend(stopped_ns);
  ticked_ns_ = now_ns;
  worked_ns_ = worked_ns;
  Leases ended = End(lease_now_ns);
  store_.CollectSome(WorkBound(clock_, kCollectMs * kNsPerMs));
  store_.StepVersions(kVersionSteps, WorkBound(clock_, kVersionsMs * kNsPerMs));
  return ended;
}

ServerCore::Leases ServerCore::Collect(int64_t lease_now_ns) {
  Leases ended = End(lease_now_ns);
  store_.CollectSome(WorkBound());
  return ended;
}

ServerCore::Leases ServerCore::End(int64_t lease_now_ns) {
  Leases ended = leases_.EndExpired(lease_now_ns);
  for (const std::shared_ptr<Lease>& lease : ended) store_.CollectLater(lease);
  return ended;
}

}  // namespace nram
