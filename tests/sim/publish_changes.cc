#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/publish_owner.h"

namespace nram::sim {
namespace {

constexpr int64_t kRecordNs = 10 * kNsPerSecond;
constexpr int kCommitsMax = 3;

}  // namespace

// --- The owner changes the region.

ChunkRange PublishOwner::ChooseRange() {
  Rng& rng = world_->rng();
  const uint64_t span = rng.Below(PublishModel::kSpans);
  const uint64_t hot = PublishModel::kHotPages * kChunksPerPage;
  ChunkRange range{rng.Below(hot), 0};
  range.count = 1 + rng.Below(std::min<uint64_t>(hot - range.first, rng.OneIn(4) ? hot : 12));
  if (rng.OneIn(2)) {
    range.count = RoundUp(range.end(), kChunksPerPage) - RoundDown(range.first, kChunksPerPage);
    range.first = RoundDown(range.first, kChunksPerPage);
  }
  range.first += span * kChunksPerSpan;
  return range;
}

void PublishOwner::ReadHead(ChunkRange range) {
  std::vector<std::byte> bytes(range.bytes());
  const absl::Status status = region_->Read(range.first * kChunkBytes, absl::MakeSpan(bytes));
  Judge("read", status);
  if (!status.ok() || world_->model.owner() != number_) return;
  const std::string wrong = world_->model.ReadHead(range, bytes);
  if (!wrong.empty()) world_->Fail(absl::StrCat("owner ", number_, " reads the head: ", wrong));
}

void PublishOwner::ChangeOnce() {
  Rng& rng = world_->rng();
  PublishModel& model = world_->model;
  ChunkRange range = ChooseRange();
  if (rng.OneIn(4)) return ReadHead(range);
  PublishModel::Value value = model.NextValue();
  bool trims = rng.OneIn(6);
  if (trims && rng.OneIn(3)) range = {RoundDown(range.first, kChunksPerSpan), kChunksPerSpan};
  // The same data again, or zeros.
  if (!trims && rng.OneIn(8) && last_value_ != 0) {
    range = last_range_;
    value = last_value_;
  }
  if (trims || rng.OneIn(12)) value = 0;
  std::vector<std::byte> bytes(range.bytes());
  PublishModel::Fill(value, range, absl::MakeSpan(bytes));
  model.BeginChange(number_, range, value);
  absl::Status status;
  if (trims) {
    const auto room = rng.OneIn(3) ? Region::TrimRoom::kKeep : Region::TrimRoom::kFree;
    status = region_->Trim(range.first * kChunkBytes, range.bytes(), {}, room);
  } else {
    status = region_->Write(range.first * kChunkBytes, bytes);
  }
  model.EndChange(number_, range, value, status.ok());
  last_range_ = range;
  last_value_ = value;
  Judge(trims ? "trim" : "write", status);
}

void PublishOwner::Write() {
  while (goes_on()) {
    ChangeOnce();
    if (world_->rng().OneIn(3)) world_->fibers.Sleep(world_->rng().Between(0, 20 * kNsPerMs >> world_->rng().Below(8)));
  }
  writes_ = false;
}

// --- The owner publishes.

void PublishOwner::PublishOnce() {
  Rng& rng = world_->rng();
  if (world_->plan.death_one_in > 0 && rng.OneIn(world_->plan.death_one_in)) {
    dies_when_ = static_cast<When>(1 + rng.Below(4));
    dies_after_ = rng.Below(dies_when_ == When::kAny ? 60 : 6);
  }
  const bool with_owner = world_->plan.with_owner && rng.OneIn(2);
  world_->model.BeginSeal(number_);
  const auto sealed = region_->Snapshot(with_owner ? VersionKeep::kWithOwner : VersionKeep::kUntilDropped);
  PublishModel::State state = world_->model.EndSeal(number_);
  // No page is written yet.
  if (absl::IsFailedPrecondition(sealed.status()) && state.empty()) return;
  Judge("seal", sealed.status());
  if (!sealed.ok()) return;
  PublishModel::Published published;
  published.number = publication_->NextNumber();
  published.place = {PublishWorld::kName, region_->id(), sealed->number, sealed->incarnations, sealed->least_in_sync};
  published.state = std::move(state);
  published.never = world_->records_owner != number_;
  published.with_owner = with_owner;
  published.owner = number_;
  PublicationRecord record;
  record.number = published.number;
  record.time_ns = world_->cluster.world.NowNs();
  record.regions = {published.place};
  record.lengths = {PublishModel::kPages * kPageBytes};
  const std::string unused = world_->model.CheckUnused(published.place);
  if (!unused.empty()) return world_->Fail(unused);
  const uint64_t uid = world_->model.AddPublished(std::move(published));
  record.header_json = absl::StrCat("{\"uid\":", uid, "}");
  Commit(uid, record);
}

void PublishOwner::Commit(uint64_t uid, const PublicationRecord& record) {
  world_->Trace(absl::StrCat("owner ", number_, " commits ", record.number, " (", uid, ") of version ",
                             Raw(record.regions[0].number), ", members ", record.regions[0].incarnations.size(),
                             ", least ", record.regions[0].least_in_sync));
  for (int i = 0; i < kCommitsMax && !stops_; ++i) {
    const absl::Status status = publication_->Commit(record, DeadlineAfterMs(kRecordNs / kNsPerMs));
    Judge("commit", status);
    if (status.ok()) return world_->model.NoteCommitted(uid);
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return;
  }
}

void PublishOwner::ForgetOne() {
  if (stops_) return;
  std::vector<uint64_t> there;
  for (const auto& [uid, published] : world_->model.published()) {
    if (published.committed && !published.forgotten && published.place.region == region_->id()) there.push_back(uid);
  }
  if (there.size() <= world_->plan.history) return;
  const uint64_t uid = there[world_->rng().OneIn(3) ? world_->rng().Below(there.size()) : 0];
  const PublishModel::Published& published = *world_->model.Find(uid);
  const VersionNumber version = published.place.number;
  world_->Trace(absl::StrCat("owner ", number_, " forgets ", published.number, " (", uid, ")"));
  world_->model.NoteForgotten(uid);
  const absl::Status forgotten = publication_->Forget(published.number, DeadlineAfterMs(kRecordNs / kNsPerMs));
  Judge("forget", forgotten);
  if (!forgotten.ok()) return;
  Judge("drop", region_->DropVersions(version, version, /*force=*/false).status());
}

}  // namespace nram::sim
