#include "client/memory/page_in.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace nram {

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
    // It is being unmapped; whoever uses it still is to find that out.
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
        if (fault.write_protected && CopyBound(segment, page, state)) {
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
  placer_.Place(segment, run.lowest(), run.count, zeros_.data(), plan.writable, /*empty=*/true);
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
  // What comes after it is on its way while this is waited for; not if pages in between are here already.
  if (plan.ahead.count > 0 && run.count == plan.demand.count) {
    ahead_->Start(segment, plan.ahead, plan.writable, /*wanted=*/false);
  }
  std::byte* const data = window.has_value() ? ahead_->data(*window) : page_buffer;
  // Others of the window may be on a server that is away: what is waited for is one page, which has half of the time
  // for itself.
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
    placer_.Place(segment, run.lowest(), run.count, data, plan.writable, /*empty=*/false);
  } else {
    placer_.Lose(segment, page, std::string(status.message()));
  }
  if (window.has_value()) ahead_->Return(*window);
  return true;
}

bool PageIn::LetWrite(const SegmentRef& segment, uint64_t page) {
  const Run run = streams_.OnFirstWrite(*segment.get(), page);
  uint64_t count = 0;
  while (count < run.count) {
    // Pages of one kind at a time, each taken while it is let through, so that the evictor does not protect it between.
    PageState was = segment->word(run.at(count)).state();
    if (!IsClean(was)) break;
    const Run same{run.at(count), run.count - count, run.step};
    const uint64_t taken = placer_.Claim(*segment.get(), same, was);
    if (taken == 0) break;
    const Run claimed{same.first, taken, same.step};
    PageState becomes = was == PageState::kClean ? PageState::kDirty : PageState::kDirtyEmpty;
    if (run.count == 1 && was == PageState::kClean) {
      sums_->Note(segment->key(page), segment->address(page));
      becomes = PageState::kDirtyNoted;
    }
    placer_.Open(segment, claimed, becomes);
    // One that was unpinned meanwhile.
    for (uint64_t i = 0; i < taken; ++i) {
      const PageWord& word = segment->word(claimed.at(i));
      if (!word.Has(PageWord::kQueued) && !word.Has(PageWord::kPinned))
        residency_->Enter(*segment.get(), claimed.at(i), 1);
    }
    count += taken;
  }
  if (count > 0) Counters::Add(&counters_->write_faults, 1);
  return count > 0;
}

bool PageIn::CopyBound(const SegmentRef& segment, uint64_t page, PageState state) {
  if (!copies_->Copy(segment, page, state)) return false;
  Counters::Add(&counters_->write_faults, 1);
  // Whoever writes in order has the next ones at once.
  const Run run = streams_.OnFirstWrite(*segment.get(), page);
  for (uint64_t i = 1; i < run.count; ++i) {
    const PageState next = segment->word(run.at(i)).state();
    if (!IsBound(next) || !copies_->Copy(segment, run.at(i), next)) break;
  }
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
