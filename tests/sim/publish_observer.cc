#include "tests/sim/publish_observer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace nram::sim {
namespace {

constexpr int64_t kLookNs = 10 * kNsPerSecond;
constexpr int64_t kQuietCallNs = 60 * kNsPerSecond;

bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

bool PublishObserver::MayBeGone(uint64_t uid) const {
  const PublishModel::Published& published = *world_->model.Find(uid);
  // Its owner's lease may have ended at a server.
  const bool has_owner = published.owner == world_->model.owner() && world_->leases_ended == 0 && !quiet_;
  return published.forgotten || world_->LosesVersions() || (published.with_owner && !has_owner);
}

void PublishObserver::JudgeLook(const char* what, const absl::Status& status) {
  ++world_->operations;
  if (status.ok()) return;
  world_->Trace(absl::StrCat(world_->cluster.world.NameOf(host_), ": ", what, ": ", status.ToString()));
  // An owner has died while it made the records, or makes them just now.
  const bool may_be = (IsUnanswered(status) && !quiet_) || (absl::IsDataLoss(status) && !world_->KeepsAll());
  if (may_be) return;
  world_->Fail(absl::StrCat(world_->cluster.world.NameOf(host_), ": ", what, ": ", status.ToString()));
}

void PublishObserver::JudgeOpen(uint64_t uid, const absl::Status& status) {
  ++world_->operations;
  const PublishModel::Published& published = *world_->model.Find(uid);
  const std::string what = absl::StrCat(world_->cluster.world.NameOf(host_), " opens ", published.number, " (", uid,
                                        "): ", status.ToString());
  world_->Trace(what);
  if (status.ok()) return;
  if (absl::IsDataLoss(status) && MayBeGone(uid)) return;
  if (IsUnanswered(status) && !world_->plan.calm && !quiet_) return;
  // A full server has no room for a hold.
  if (absl::IsResourceExhausted(status) && (world_->plan.full || !world_->plan.calm)) return;
  // All servers that had the region have freed it, or ended.
  if (absl::IsNotFound(status) && !world_->KeepsAll()) return;
  world_->Fail(what);
}

void PublishObserver::JudgeRead(const Opened& opened, const absl::Status& status) {
  ++world_->operations;
  if (status.ok()) return;
  const PublishModel::Published& published = *world_->model.Find(opened.uid);
  const std::string what = absl::StrCat(world_->cluster.world.NameOf(host_), " reads ", published.number, " (",
                                        opened.uid, "): ", status.ToString());
  world_->Trace(what);
  if (IsUnanswered(status) && !world_->plan.calm && !quiet_) return;
  // It is held, but its hold ends with a lease.
  const bool may_be_gone = world_->LosesVersions() || world_->leases_ended != opened.leases_ended || !world_->plan.calm;
  if (absl::IsDataLoss(status) && may_be_gone) return;
  world_->Fail(what);
}

bool PublishObserver::Attach() {
  // A version committed during the request may miss the answer, also if the observer itself is frozen meanwhile.
  const bool is_any = world_->model.newest_committed() > 0;
  auto attached = Publication::Attach(pool_.get(), PublishWorld::kName, AttachMode::kReadOnly);
  if (attached.ok()) {
    publication_ = *std::move(attached);
    return true;
  }
  if (!absl::IsNotFound(attached.status()) || (is_any && world_->KeepsAll())) {
    JudgeLook("attach", attached.status());
  }
  return false;
}

uint64_t PublishObserver::FindUid(const PublicationRecord& record) {
  absl::string_view text = record.header_json;
  uint64_t uid = 0;
  const bool parsed =
      absl::ConsumePrefix(&text, "{\"uid\":") && absl::ConsumeSuffix(&text, "}") && absl::SimpleAtoi(text, &uid);
  const PublishModel::Published* const published = parsed ? world_->model.Find(uid) : nullptr;
  if (published == nullptr || record.number != published->number || record.regions.size() != 1 ||
      !(record.regions[0] == published->place)) {
    world_->Fail(absl::StrCat("a record that nobody has made: ", record.number, " ", record.header_json));
    return 0;
  }
  if (published->never) {
    world_->Fail(absl::StrCat("publication ", record.number, " (", uid, ") was committed by owner ", published->owner,
                              " after it had lost the records"));
    return 0;
  }
  return uid;
}

absl::StatusOr<PublicationRecord> PublishObserver::ReadRecord(uint64_t floor) {
  Rng& rng = world_->rng();
  const int64_t deadline_ns = world_->cluster.world.NowNs() + kLookNs;
  if (rng.OneIn(4)) {
    NRAM_ASSIGN_OR_RETURN(const auto list, publication_->List(deadline_ns));
    if (list.empty()) return absl::NotFoundError("none is listed");
    return list[rng.Below(list.size())];
  }
  if (rng.OneIn(2)) {
    const auto above =
        publication_->AwaitAbove(seen_, world_->cluster.world.NowNs() + rng.Between(1, 2'000) * kNsPerMs);
    if (!above.ok()) return above.status();
    return publication_->Read(*above, deadline_ns);
  }
  NRAM_ASSIGN_OR_RETURN(PublicationRecord newest, publication_->Read(0, deadline_ns));
  // Perhaps it was forgotten meanwhile.
  floor = std::min(floor, world_->model.newest_committed());
  if (newest.number < floor && world_->KeepsAll()) {
    world_->Fail(absl::StrCat(world_->cluster.world.NameOf(host_), " finds publication ", newest.number, ", and ",
                              floor, " was there before"));
  }
  return newest;
}

void PublishObserver::Look() {
  const uint64_t floor = world_->model.newest_committed();
  const auto record = ReadRecord(floor);
  if (!record.ok()) {
    const bool may_be = absl::IsDeadlineExceeded(record.status()) || absl::IsNotFound(record.status());
    if (!may_be) JudgeLook("look", record.status());
    // Its region may be another one.
    if (world_->rng().OneIn(3)) publication_.reset();
    return;
  }
  seen_ = std::max(seen_, record->number);
  const uint64_t uid = FindUid(*record);
  if (uid != 0) Open(uid);
}

void PublishObserver::Open(uint64_t uid) {
  const VersionPlace place = world_->model.Find(uid)->place;
  const uint64_t leases_ended = world_->leases_ended;
  auto region = pool_->OpenVersion(place);
  JudgeOpen(uid, region.status());
  if (!region.ok()) return;
  opened_.push_back({uid, *std::move(region), 0, leases_ended});
  while (opened_.size() > kOpenedMax)
    opened_.erase(opened_.begin() + static_cast<long>(world_->rng().Below(kOpenedMax)));
}

void PublishObserver::Read(Opened* opened, ChunkRange range) {
  std::vector<std::byte> bytes(range.bytes(), std::byte{0x5A});
  const absl::Status status = opened->region->Read(range.first * kChunkBytes, absl::MakeSpan(bytes));
  JudgeRead(*opened, status);
  if (!status.ok()) return;
  ++world_->observed;
  PublishModel::Published& published = *world_->model.Find(opened->uid);
  const std::string wrong = PublishModel::Read(&published.state, range, bytes);
  if (wrong.empty()) return;
  world_->Fail(absl::StrCat(world_->cluster.world.NameOf(host_), " reads publication ", published.number, " (",
                            opened->uid, ", version ", Raw(published.place.number), "): ", wrong));
}

void PublishObserver::ReadSome() {
  Rng& rng = world_->rng();
  Opened* const opened = &opened_[rng.Below(opened_.size())];
  const uint64_t span = rng.Below(PublishModel::kSpans);
  const uint64_t page = span * kPagesPerSpan + rng.Below(PublishModel::kHotPages);
  ChunkRange range{page * kChunksPerPage, kChunksPerPage * (1 + rng.Below(4))};
  if (rng.OneIn(4)) range = {span * kChunksPerSpan, kChunksPerSpan};
  if (rng.OneIn(6)) range = {page * kChunksPerPage + rng.Below(kChunksPerPage), 1};
  Read(opened, range);
}

void PublishObserver::Compare() {
  const Opened* from = &opened_[world_->rng().Below(opened_.size())];
  const Opened* to = &opened_[world_->rng().Below(opened_.size())];
  if (from->region->id() != to->region->id() || from->region->version() == to->region->version()) return;
  if (from->region->version() > to->region->version()) std::swap(from, to);
  std::vector<bool> changed(PublishModel::kPages);
  const absl::Status status =
      pool_->VisitChanges(*from->region, *to->region, [&](uint64_t span, const ChangedPages& pages) {
        for (uint64_t i = 0; i < kPagesPerSpan && span < PublishModel::kSpans; ++i) {
          if ((pages[i / 64] >> i % 64 & 1) != 0) changed[span * kPagesPerSpan + i] = true;
        }
      });
  JudgeRead(*from, status);
  const PublishModel::State& before = world_->model.Find(from->uid)->state;
  const PublishModel::State& after = world_->model.Find(to->uid)->state;
  for (uint64_t page = 0; status.ok() && page < PublishModel::kPages; ++page) {
    if (changed[page] || !PublishModel::SurelyDiffers(before, after, page)) continue;
    return world_->Fail(absl::StrCat("page ", page, " differs between versions ", Raw(from->region->version()), " and ",
                                     Raw(to->region->version()), ", and does not count as changed"));
  }
}

void PublishObserver::Run() {
  Rng& rng = world_->rng();
  pool_ = world_->MakePool(host_);
  while (!world_->ends()) {
    if (publication_ == nullptr && !Attach()) {
      world_->fibers.Sleep(rng.Between(1, 300) * kNsPerMs);
      continue;
    }
    const uint64_t what = rng.Below(10);
    if (opened_.empty() || what == 0) Look();
    for (uint64_t i = rng.Below(6); i > 0 && !opened_.empty(); --i) ReadSome();
    if (what < 3 && !opened_.empty()) Compare();
    if (what == 9 && !opened_.empty()) opened_.erase(opened_.begin() + static_cast<long>(rng.Below(opened_.size())));
    world_->fibers.Sleep(rng.Between(0, 400 * kNsPerMs >> rng.Below(8)));
  }
  opened_.clear();
  publication_.reset();
  pool_.reset();
  over_ = true;
}

void PublishObserver::CheckAll() {
  quiet_ = true;
  pool_ = world_->MakePool(host_);
  const bool is_any = world_->model.newest_committed() > 0;
  if (Attach()) {
    const auto list = publication_->List(world_->cluster.world.NowNs() + kQuietCallNs);
    JudgeLook("list", list.status());
    for (size_t i = 0; list.ok() && i < list->size() && !world_->failed(); ++i) {
      const uint64_t uid = FindUid((*list)[i]);
      if (uid == 0) break;
      Open(uid);
      for (uint64_t span = 0; span < PublishModel::kSpans && !opened_.empty(); ++span) {
        Read(&opened_.back(), {span * kChunksPerSpan, kChunksPerSpan});
      }
      opened_.clear();
    }
    const bool finds = list.ok() && !list->empty() && list->back().number >= world_->model.newest_committed();
    if (is_any && !finds && world_->KeepsAll()) world_->Fail("the newest publication is not there in the end");
  }
  publication_.reset();
  pool_.reset();
  over_ = true;
}

}  // namespace nram::sim
