#include "tests/sim/publish_owner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram::sim {
namespace {

constexpr int64_t kCallNs = 10 * kNsPerSecond;
// A server frees a part of the dropped versions at a time.
constexpr int64_t kDroppedNs = 60 * kNsPerSecond;

}  // namespace

// --- Its death.

void PublishOwner::OnRequest(const MessageHeader& request) {
  if (dies_when_ == When::kNever || dead_ || region_ == nullptr) return;
  const bool is_record = request.op == Op::kWrite && request.region() != region_->id();
  const bool counts = dies_when_ == When::kAny || (dies_when_ == When::kSeal && request.op == Op::kSeal) ||
                      (dies_when_ == When::kRecord && is_record) ||
                      (dies_when_ == When::kDrop && request.op == Op::kDropVersion);
  if (!counts || dies_after_-- > 0) return;
  dies_when_ = When::kNever;
  // This message is not sent, or it is under way, or executed.
  if (world_->rng().OneIn(3)) return Die();
  world_->cluster.world.After(world_->rng().Between(0, 300 * kNsPerUs), host_, [this] { Die(); });
}

void PublishOwner::Die() {
  if (dead_ || over_) return;
  dead_ = true;
  const bool silently = world_->rng().OneIn(2);
  world_->Trace(absl::StrCat("owner ", number_, " dies", silently ? " silently" : ""));
  world_->cluster.network.CloseAll(host_, silently);
  world_->cluster.world.EndLife(host_);
  world_->cluster.world.Freeze(host_);
  world_->fibers.KillAll(host_);
}

bool PublishOwner::MayBeShutOut() const { return world_->takeovers != takeovers_; }

void PublishOwner::Judge(const char* what, const absl::Status& status) {
  ++world_->operations;
  if (status.ok()) return;
  world_->Trace(absl::StrCat("owner ", number_, ": ", what, ": ", status.ToString()));
  if (absl::IsFailedPrecondition(status) || absl::IsAborted(status)) stops_ = true;
  if (MayBeShutOut()) return;
  const bool full = absl::IsResourceExhausted(status) &&
                    (world_->plan.full || world_->plan.faults[static_cast<size_t>(Fault::kFill)] > 0 ||
                     world_->plan.faults[static_cast<size_t>(Fault::kDrain)] > 0);
  if (full) return;
  const bool may_be = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                      absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
                      absl::IsAborted(status) || (absl::IsDataLoss(status) && !world_->KeepsAll()) ||
                      (absl::IsDataLoss(status) && world_->leases_ended > 0);
  if (!world_->plan.calm && may_be) return;
  world_->Fail(absl::StrCat("owner ", number_, ": ", what, ": ", status.ToString()));
}

// --- Its begin.

absl::Status PublishOwner::OpenRecords(AttachMode mode) {
  const std::string name = PublishWorld::kName;
  const bool were_made = world_->records_made;  // another owner may make them after this one has asked the servers
  auto attached = Publication::Attach(pool_.get(), name, mode);
  if (absl::IsDataLoss(attached.status()) && !world_->KeepsAll()) {
    world_->Trace("the records are lost");
    NRAM_ASSIGN_OR_RETURN(const auto rest, pool_->AttachRegion(name + ".versions", mode, AttachLoss::kAccept));
    world_->model.NoteRecordsLost();
    NRAM_RETURN_IF_ERROR(rest->Destroy());
    return absl::UnavailableError("the records were lost, and are to be made anew");
  }
  if (absl::IsNotFound(attached.status())) {
    if (were_made && world_->KeepsAll()) return absl::InternalError("the records are not there any more");
    attached = Publication::Create(pool_.get(), name, RegionOptions());
    if (attached.ok() && world_->records_made && !world_->KeepsAll()) world_->model.NoteRecordsLost();
  }
  NRAM_RETURN_IF_ERROR(attached.status());
  publication_ = *std::move(attached);
  world_->records_made = true;
  world_->records_owner = number_;
  return absl::OkStatus();
}

absl::Status PublishOwner::OpenRegion(AttachMode mode) {
  const bool was_made = world_->region_made;
  auto attached = pool_->AttachRegion(PublishWorld::kName, mode);
  bool loses = false;
  if (absl::IsDataLoss(attached.status()) && !world_->KeepsAll()) {
    loses = true;
    world_->Trace("loss of the region is accepted");
    attached = pool_->AttachRegion(PublishWorld::kName, mode, AttachLoss::kAccept);
  }
  if (absl::IsNotFound(attached.status())) {
    if (was_made && world_->KeepsAll()) return absl::InternalError("the region is not there any more");
    RegionOptions options;
    options.name = PublishWorld::kName;
    options.copies = world_->plan.copies;
    options.size_bytes = PublishModel::kPages * kPageBytes;
    options.versioned = true;
    attached = pool_->CreateRegion(options);
    loses = world_->region_made && !world_->KeepsAll();
  }
  NRAM_RETURN_IF_ERROR(attached.status());
  region_ = *std::move(attached);
  world_->region_made = true;
  world_->model.TakeOver(number_, loses);
  return publication_->DropUnrecorded(region_.get(), DeadlineAfterMs(kCallNs / kNsPerMs));
}

absl::Status PublishOwner::TryOpen() {
  ++world_->takeovers;
  takeovers_ = world_->takeovers;
  const AttachMode mode = world_->rng().OneIn(6) ? AttachMode::kOwner : AttachMode::kTakeOver;
  if (publication_ == nullptr) NRAM_RETURN_IF_ERROR(OpenRecords(mode));
  return OpenRegion(mode);
}

bool PublishOwner::Open(int64_t until_ns) {
  pool_ = world_->MakePool(host_, [this](int, const MessageHeader& request) { OnRequest(request); });
  while (!opened_ && !world_->failed() && world_->cluster.world.NowNs() < until_ns) {
    const absl::Status status = TryOpen();
    world_->Trace(absl::StrCat("owner ", number_, " opens: ", status.ToString()));
    opened_ = status.ok();
    if (absl::IsInternal(status)) world_->Fail(absl::StrCat("owner ", number_, ": ", status.message()));
    if (opened_) break;
    // The next attempt has another number: this one may have had the region.
    publication_.reset();
    if (region_ != nullptr) return false;
    world_->fibers.Sleep(world_->rng().Between(20, 500) * kNsPerMs);
  }
  return opened_;
}

void PublishOwner::Run() {
  if (Open(world_->cluster.world.NowNs() + 120 * kNsPerSecond)) {
    writes_ = true;
    world_->fibers.Start(host_, [this] { Write(); });
    while (goes_on()) {
      PublishOnce();
      if (world_->rng().OneIn(4)) ForgetOne();
      world_->fibers.Sleep(world_->rng().Between(0, 200 * kNsPerMs >> world_->rng().Below(8)));
    }
    stops_ = true;
    while (writes_) world_->fibers.Sleep(kNsPerMs);
  }
  Close();
  over_ = true;
}

void PublishOwner::Close() {
  region_.reset();
  publication_.reset();
  pool_.reset();
}

// --- The last one.

void PublishOwner::CheckHead() {
  for (uint64_t span = 0; span < PublishModel::kSpans && !world_->failed(); ++span) {
    ReadHead({span * kChunksPerSpan, kChunksPerSpan});
  }
}

void PublishOwner::DropAll(int64_t until_ns) {
  const auto records = publication_->List(until_ns);
  Judge("list", records.status());
  for (size_t i = 0; records.ok() && i < records->size(); ++i) {
    Judge("forget", publication_->Forget((*records)[i].number, until_ns));
  }
  const auto dropped = region_->DropVersions(VersionNumber{1}, kVersionNumberMax, /*force=*/false);
  Judge("drop", dropped.status());
  const auto left = [&] {
    int64_t bytes = 0;
    for (const auto& server : world_->cluster.servers) {
      const VersionTotals& totals = server->core()->store().counters().versions;
      bytes += totals.bytes + totals.versions;
    }
    return bytes;
  };
  const int64_t empty_ns = world_->cluster.world.NowNs() + kDroppedNs;
  while (left() != 0 && world_->cluster.world.NowNs() < empty_ns) world_->fibers.Sleep(100 * kNsPerMs);
  if (left() != 0) world_->Fail(absl::StrCat("versions stay when all are dropped: ", left(), " bytes and versions"));
}

void PublishOwner::DestroyAll() {
  Judge("destroy", region_->Destroy());
  Judge("destroy the records", publication_->Destroy());
}

}  // namespace nram::sim
