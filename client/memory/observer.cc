#include "client/memory/observer.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

// A version may be dropped between a look at its record and the first hold; the newest one is looked up again then.
constexpr int kTries = 16;
constexpr int64_t kPauseMs = 10;

// It was dropped, perhaps, after its record was read.
bool MayBeDropped(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }

}  // namespace

absl::StatusOr<std::shared_ptr<Publication>> Observer::FindPublication(const std::string& name) {
  {
    MutexLock lock(&mu_);
    if (const auto it = publications_.find(name); it != publications_.end()) {
      if (auto found = it->second.lock(); found != nullptr) return found;
      publications_.erase(it);
    }
  }
  absl::StatusOr<std::unique_ptr<Publication>> attached;
  // Its creation may be under way: servers then answer UNAVAILABLE, and do not report the end.
  (void)PollUntil(DeadlineAfterMs(io_timeout_ms_), kPauseMs, [&] {
    attached = Publication::Attach(pool_, name, AttachMode::kReadOnly);
    return !absl::IsUnavailable(attached.status());
  });
  if (absl::IsNotFound(attached.status())) {
    return absl::NotFoundError(absl::StrCat("no version of ", Quoted(name), " is published"));
  }
  NRAM_RETURN_IF_ERROR(attached.status());
  std::shared_ptr<Publication> publication = *std::move(attached);
  MutexLock lock(&mu_);
  // Another thread may have been as quick: each uses its own then.
  publications_[name] = publication;
  return publication;
}

absl::StatusOr<Observer::Opened> Observer::Open(const std::string& name, uint64_t version, bool all) {
  const int64_t deadline_ns = DeadlineAfterMs(4 * io_timeout_ms_);
  Opened opened;
  opened.view = std::make_unique<View>();
  NRAM_ASSIGN_OR_RETURN(opened.view->publication, FindPublication(name));
  absl::Status status;
  for (int i = 0; i < kTries && MonotonicNs() < deadline_ns; ++i) {
    NRAM_ASSIGN_OR_RETURN(PublicationRecord record, opened.view->publication->Read(version, deadline_ns));
    // It is still there, and cannot be had.
    const PublicationRecord* const former = opened.view->record.get();
    if (MayBeDropped(status) && former != nullptr && record.number == former->number) return status;
    opened.view->record = std::make_shared<const PublicationRecord>(std::move(record));
    opened.regions.clear();
    status = absl::OkStatus();
    for (const VersionPlace& place : opened.view->record->regions) {
      auto region = pool_->OpenVersion(place);
      status = region.status();
      if (!status.ok()) break;
      opened.regions.push_back(*std::move(region));
      if (!all) break;
    }
    if (status.ok()) return opened;
    if (!MayBeDropped(status)) return status;
  }
  return absl::UnavailableError(
      absl::StrCat("versions of ", Quoted(name), " are dropped faster than they are opened: ", status.message()));
}

void Observer::Add(std::unique_ptr<View> view) {
  MutexLock lock(&mu_);
  views_.push_back(std::move(view));
}

void Observer::Forget(const Segment* segment) {
  std::unique_ptr<View> last;  // its end may block
  MutexLock lock(&mu_);
  for (auto it = views_.begin(); it != views_.end(); ++it) {
    if (std::erase((*it)->segments, segment) == 0) continue;
    if (!(*it)->segments.empty()) return;
    last = std::move(*it);
    views_.erase(it);
    return;
  }
}

Observer::View* Observer::FindView(const Segment* segment) const {
  for (const auto& view : views_) {
    if (absl::c_linear_search(view->segments, segment)) return view.get();
  }
  return nullptr;
}

std::shared_ptr<const PublicationRecord> Observer::RecordOf(const Segment* segment) const {
  MutexLock lock(&mu_);
  const View* const view = FindView(segment);
  return view == nullptr ? nullptr : view->record;
}

absl::StatusOr<const std::byte*> Observer::DataOf(const Segment* segment, const PublishedArray& array) const {
  MutexLock lock(&mu_);
  const View* const view = FindView(segment);
  if (view == nullptr || array.mapping >= view->record->regions.size()) return nullptr;
  for (const Segment* const other : view->segments) {
    if (other->region()->name() != view->record->regions[array.mapping].name) continue;
    // The record is of servers.
    if (array.offset <= other->length() && BytesOf(array) <= other->length() - array.offset) {
      return other->base() + array.offset;
    }
    return absl::DataLossError(absl::StrCat("array ", Quoted(array.name), " at byte ", array.offset,
                                            " extends beyond its mapping, of which ", other->length(),
                                            " bytes are mapped: observe it again"));
  }
  return nullptr;
}

absl::Status Observer::FindChanges(Move* move) const {
  const Segment& segment = *move->segment.get();
  const Region& from = *segment.region();
  if (from.id() != move->region->id() || from.version() >= move->region->version()) {
    // The region was made anew.
    move->changed.assign(segment.pages(), true);
    return absl::OkStatus();
  }
  move->changed.assign(segment.pages(), false);
  return pool_->VisitChanges(from, *move->region, [&](uint64_t span, const ChangedPages& pages) {
    for (uint64_t i = 0; i < kPagesPerSpan; ++i) {
      if ((pages[i / 64] >> (i % 64) & 1) == 0) continue;
      const uint64_t page = (span * kPagesPerSpan + i) * kPageBytes / segment.page_bytes;
      if (page < segment.pages()) move->changed[page] = true;
    }
  });
}

absl::StatusOr<std::vector<Observer::Move>> Observer::Prepare(const View& view, const PublicationRecord& record) const {
  std::vector<Move> moves;
  for (Segment* const segment : view.segments) {
    const std::string name = segment->region()->name();
    size_t i = 0;
    while (i < record.regions.size() && record.regions[i].name != name) ++i;
    if (i == record.regions.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", record.number, " has no ", Quoted(name), ": unmap it, or observe again"));
    }
    if (RoundUp(record.lengths[i], segment->page_bytes) != segment->length()) {
      return absl::FailedPreconditionError(absl::StrCat(Quoted(name), " has ", record.lengths[i], " bytes in version ",
                                                        record.number, ", and ", segment->length(),
                                                        " are mapped: observe it again"));
    }
    Move move;
    move.segment = SegmentRef(segment);
    NRAM_ASSIGN_OR_RETURN(move.region, pool_->OpenVersion(record.regions[i]));
    NRAM_RETURN_IF_ERROR(FindChanges(&move));
    moves.push_back(std::move(move));
  }
  return moves;
}

void Observer::Exchange(Move* move) {
  Segment* const segment = move->segment.get();
  move->region = index_->Exchange(segment, std::move(move->region));
  // From here on pages are fetched from the next version. Pages under way may be of the former one: where the two
  // differ, they are dropped when they arrive.
  page_in_->ForgetAhead(segment);
  advice_->AwaitSettled(move->segment);
  for (uint64_t page = 0; page < segment->pages(); ++page) {
    // A page that is lost may be there in the next version, though it is the same.
    if (!move->changed[page] && segment->word(page).state() != PageState::kLost) continue;
    uint64_t run = 1;
    while (page + run < segment->pages() && move->changed[page + run]) ++run;
    advice_->Refresh({move->segment.Share(), page, run});
    page += run - 1;
  }
}

absl::StatusOr<uint64_t> Observer::Next(const SegmentRef& segment, int64_t deadline_ns) {
  View* view = nullptr;
  {
    MutexLock lock(&mu_);
    view = FindView(segment.get());
  }
  if (view == nullptr) return absl::InvalidArgumentError("this mapping does not observe a publication");
  const uint64_t present = view->record->number;
  absl::Status status;
  uint64_t failed = 0;
  for (int i = 0; i < kTries; ++i) {
    NRAM_RETURN_IF_ERROR(view->publication->AwaitAbove(present, deadline_ns).status());
    const int64_t until_ns = DeadlineAfterMs(io_timeout_ms_);
    absl::StatusOr<PublicationRecord> newest = view->publication->Read(0, until_ns);
    if (absl::IsNotFound(newest.status())) continue;  // it was dropped meanwhile, and there is no other
    NRAM_RETURN_IF_ERROR(newest.status());
    PublicationRecord record = *std::move(newest);
    if (record.number <= present) continue;  // it was dropped meanwhile
    // It is still there, and cannot be had.
    if (record.number == failed) return status;
    absl::StatusOr<std::vector<Move>> moves = Prepare(*view, record);
    status = moves.status();
    if (status.ok()) {
      for (Move& move : *moves) Exchange(&move);
      const uint64_t number = record.number;
      auto next = std::make_shared<const PublicationRecord>(std::move(record));
      MutexLock lock(&mu_);
      view->record.swap(next);
      return number;
    }
    if (!MayBeDropped(status)) return status;
    failed = record.number;
  }
  return absl::UnavailableError(absl::StrCat("versions are dropped faster than they are opened: ", status.message()));
}

}  // namespace nram
