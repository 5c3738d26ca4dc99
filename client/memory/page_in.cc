#include "client/memory/page_in.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

// The most of a run of first writes that is copied: the room for copies is for pages that are written.
constexpr uint64_t kCopiedBytes = 128 * kKiB;

}  // namespace

absl::StatusOr<std::unique_ptr<PageIn>> PageIn::New(PageInOptions options, PublishGate* gate, Userfault* userfault,
                                                    SegmentIndex* index, Residency* residency, ChunkSums* sums,
                                                    BoundCopies* copies, Counters* counters) {
  auto in = std::unique_ptr<PageIn>(new PageIn(options, gate, userfault, index, residency, sums, copies, counters));
  NRAM_ASSIGN_OR_RETURN(in->zeros_, Mapping::Anonymous(options.most_window_pages * options.page_bytes));
  const AheadOptions ahead{options.page_bytes, options.window_pages, options.most_window_pages, options.buffers,
                           options.timeout_ms};
  NRAM_ASSIGN_OR_RETURN(in->ahead_, AheadWindows::New(ahead, &in->placer_, &in->streams_, counters));
  return in;
}

PageIn::PageIn(const PageInOptions& options, PublishGate* gate, Userfault* userfault, SegmentIndex* index,
               Residency* residency, ChunkSums* sums, BoundCopies* copies, Counters* counters)
    : page_bytes_(options.page_bytes),
      timeout_ms_(options.timeout_ms),
      userfault_(userfault),
      index_(index),
      residency_(residency),
      sums_(sums),
      copies_(copies),
      counters_(counters),
      streams_(options.window_pages),
      placer_(options.page_bytes, options.on_loss, gate, userfault, residency, sums, counters) {}

void PageIn::Handle(const Userfault::Fault& fault, std::byte* buffer) {
  const int64_t began_ns = MonotonicNs();
  const int64_t deadline_ns = began_ns + timeout_ms_ * kNsPerMs;
  Counters::Add(&counters_->faults, 1);
  const SegmentRef segment = index_->Find(fault.address);
  if (!segment) {
    // It is being unmapped; a thread that still uses it learns that.
    auto* const at = reinterpret_cast<std::byte*>(fault.address / 4096 * 4096);
    userfault_->Wake(at, 4096);
    return;
  }
  const uint64_t page = segment->PageOf(fault.address);
  PageWord& word = segment->word(page);
  for (bool answered = false; !answered;) {
    const PageState state = word.state();
    switch (state) {
      case PageState::kEmpty:
        answered = FillZeros(segment, page, fault.write, deadline_ns);
        break;
      case PageState::kRemote:
        answered = Fetch(segment, page, fault.write, buffer, deadline_ns);
        break;
      case PageState::kBusy:
        answered = ahead_->Join(segment, page);
        break;
      case PageState::kCleanEmpty:
      case PageState::kClean:
        if (fault.write_protected) {
          answered = LetWrite(segment, page);
          break;
        }
        [[fallthrough]];
      case PageState::kDirtyEmpty:
      case PageState::kDirty:
      case PageState::kDirtyNoted:
      case PageState::kDirtyCopied:
      case PageState::kLost:
        // Answered already.
        userfault_->Wake(segment->address(page), page_bytes_);
        answered = true;
        break;
      case PageState::kBoundEmpty:
      case PageState::kBound:
      case PageState::kBoundNoted:
        if (fault.write_protected && LetWrite(segment, page)) {
          answered = true;
          break;
        }
        [[fallthrough]];
      case PageState::kWriting:
        if (fault.write_protected) {
          answered = word.WaitFor(state);
        } else {
          userfault_->Wake(segment->address(page), page_bytes_);
          answered = true;
        }
        break;
    }
  }
  Counters::Add(&counters_->wait_ns, static_cast<uint64_t>(MonotonicNs() - began_ns));
}

bool PageIn::FillZeros(const SegmentRef& segment, uint64_t page, bool write, int64_t deadline_ns) {
  if (!segment->word(page).Change(PageState::kEmpty, PageState::kBusy)) return false;
  const StreamPlan plan = streams_.OnFault(*segment.get(), page, write);
  Run run = plan.demand;
  run.count = 1 + placer_.Claim(*segment.get(), run.rest(), PageState::kEmpty);
  absl::Status budget = placer_.TakeBudget(run.count, deadline_ns);
  if (!budget.ok() && run.count > 1) {
    placer_.Unclaim(segment, run.rest(), PageState::kEmpty);
    run.count = 1;
    budget = placer_.TakeBudget(1, deadline_ns);
  }
  if (!budget.ok()) {
    placer_.Lose(segment, page, std::string(budget.message()));
    return true;
  }
  Counters::Add(&counters_->zero_pages, run.count);
  placer_.Place(segment, run.lowest(), run.count, zeros_.data(), plan.writable, /*empty=*/true, page);
  return true;
}

absl::Status PageIn::Read(const SegmentRef& segment, const Run& run, std::byte* to, int64_t deadline_ns) {
  IoOptions how;
  how.timeout_ms = std::max<int64_t>(1, (deadline_ns - MonotonicNs()) / kNsPerMs);
  how.io_class = IoClass::kUrgent;
  NRAM_RETURN_IF_ERROR(segment->region()->Read(run.lowest() * page_bytes_, {to, run.count * page_bytes_}, how));
  return placer_.TakeBudget(run.count, deadline_ns);
}

bool PageIn::Fetch(const SegmentRef& segment, uint64_t page, bool write, std::byte* page_buffer, int64_t deadline_ns) {
  if (!segment->word(page).Change(PageState::kRemote, PageState::kBusy)) return false;
  const StreamPlan plan = streams_.OnFault(*segment.get(), page, write);
  Run run = plan.demand;
  const std::optional<size_t> window = run.count > 1 ? ahead_->Borrow() : std::nullopt;
  // The plan may be of a moment when windows were larger.
  run.count = std::min(run.count, ahead_->window_pages());
  run.count = !window.has_value() ? 1 : 1 + placer_.Claim(*segment.get(), run.rest(), PageState::kRemote);
  // The next pages are on their way while this run is waited for; not if pages in between are here already.
  if (plan.ahead.count > 0 && run.count == plan.demand.count) {
    ahead_->Start(segment, plan.ahead, plan.writable, /*wanted=*/false);
  }
  std::byte* const data = window.has_value() ? ahead_->data(*window) : page_buffer;
  // The window's other pages may be on an absent server. The thread waits for one page, which has half of the time for
  // itself.
  const int64_t now_ns = MonotonicNs();
  const int64_t first_try_ns = run.count > 1 ? now_ns + (deadline_ns - now_ns) / 2 : deadline_ns;
  absl::Status status = Read(segment, run, data, first_try_ns);
  if (!status.ok() && run.count > 1) {
    placer_.Unclaim(segment, run.rest(), PageState::kRemote);
    run.count = 1;
    status = Read(segment, run, data, deadline_ns);
  }
  if (status.ok()) {
    Counters::Add(&counters_->fetched_bytes, run.count * page_bytes_);
    Counters::Add(&counters_->prefetched_bytes, (run.count - 1) * page_bytes_);
    if (residency_->LeftLately(segment->key(page))) segment->word(page).Set(PageWord::kReferenced);
    placer_.Place(segment, run.lowest(), run.count, data, plan.writable, /*empty=*/false, page);
  } else {
    placer_.Lose(segment, page, std::string(status.message()));
  }
  if (window.has_value()) ahead_->Return(*window);
  return true;
}

uint64_t PageIn::OpenClean(const SegmentRef& segment, const Run& run, PageState was, bool note) {
  // Each is taken while it is let through, so that the evictor does not protect it between.
  const Run claimed{run.first, placer_.Claim(*segment.get(), run, was), run.step};
  if (claimed.count == 0) return 0;
  PageState becomes = PageState::kDirtyEmpty;
  if (was == PageState::kClean) becomes = note ? PageState::kDirtyNoted : PageState::kDirty;
  for (uint64_t i = 0; becomes == PageState::kDirtyNoted && i < claimed.count; ++i) {
    sums_->Note(segment->key(claimed.at(i)), segment->address(claimed.at(i)));
  }
  placer_.Open(segment, claimed, becomes);
  // One that was unpinned meanwhile.
  for (uint64_t i = 0; i < claimed.count; ++i) {
    const PageWord& word = segment->word(claimed.at(i));
    if (!word.Has(PageWord::kQueued) && !word.Has(PageWord::kPinned))
      residency_->Enter(*segment.get(), claimed.at(i), 1);
  }
  return claimed.count;
}

bool PageIn::LetWrite(const SegmentRef& segment, uint64_t page) {
  const WritePlan plan = streams_.OnFirstWrite(*segment.get(), page);
  const uint64_t most_copied = std::max<uint64_t>(1, kCopiedBytes / page_bytes_);
  uint64_t copied = 0;
  for (uint64_t at = 0; at < plan.run.count && copied < most_copied;) {
    Run rest{plan.run.at(at), plan.run.count - at, plan.run.step};
    const PageState state = segment->word(rest.first).state();
    uint64_t opened = 0;
    if (IsClean(state)) {
      opened = OpenClean(segment, rest, state, /*note=*/!plan.sure);
    } else if (IsBound(state)) {
      rest.count = std::min(rest.count, most_copied - copied);
      opened = copies_->Copy(segment, rest, /*note=*/!plan.sure);
      copied = opened > 0 ? copied + opened : most_copied;  // no room for another one now
    }
    // Pages on their way in or out, or writable already, do not change.
    if (at == 0 && opened == 0) return false;
    at += std::max<uint64_t>(opened, 1);
  }
  Counters::Add(&counters_->write_faults, 1);
  return true;
}

void PageIn::Retry(const SegmentRef& segment, uint64_t first, uint64_t count) {
  for (uint64_t page = first; page < first + count; ++page) {
    if (!segment->word(page).Change(PageState::kLost, PageState::kBusy)) continue;
    DropLocally(segment->address(page), page_bytes_);
    placer_.Unclaim(segment, {page, 1, 1}, PageState::kRemote);
  }
}

void PageIn::SetWindow(uint64_t window_pages) {
  streams_.SetWindow(window_pages);
  ahead_->SetWindow(window_pages);
}

void PageIn::ForgetAhead(Segment* segment) {
  Forget(segment);
  segment->leaving = false;
}

void PageIn::Forget(Segment* segment) {
  streams_.Forget(*segment);
  ahead_->Forget(segment);
}

}  // namespace nram
