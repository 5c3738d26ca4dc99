#include "client/memory/page_out.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/clock.h"

namespace nram {
namespace {

// ThreadSanitizer does not see that the kernel stops a thread that writes to a protected page. It would report a race
// here.
__attribute__((no_sanitize("thread"))) bool IsZero(const std::byte* data, size_t bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(data);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i += 8) {
    uint64_t any = 0;
    for (size_t k = 0; k < 8; ++k) any |= words[i + k];
    if (any != 0) return false;
  }
  return true;
}

}  // namespace

PageOut::PageOut(PublishGate* gate, Userfault* userfault, Residency* residency, ChunkSums* sums, Counters* counters,
                 size_t lanes)
    : gate_(gate),
      userfault_(userfault),
      residency_(residency),
      sums_(sums),
      counters_(counters),
      servers_(lanes, kPatienceMs * kNsPerMs) {
  for (size_t i = 0; i < lanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->owner = this;
    lanes_.back()->index = i;
  }
  MutexLock lock(&mu_);
  done_.resize(lanes);
}

PageOut::~PageOut() { (void)Finish(); }

void PageOut::Take(Segment* segment, uint64_t first, uint64_t most, After after, bool may_stay, Taken* taken) {
  // All of it is from before a flip, or all from after it.
  const GateShared lock(gate_);
  const bool publishing = segment->publishing;
  const auto leaves = [&](PageState state) { return publishing ? IsBound(state) : IsDirty(state); };
  taken->pages = 0;
  taken->staying = 0;
  taken->dirty = false;
  for (uint64_t& i = taken->pages; i < most; ++i) {
    PageWord& word = segment->word(first + i);
    PageState state = word.state();
    const bool passes =
        IsClean(state) ? after == After::kKeep || (i > 0 && taken->dirty) : !leaves(state) || (i > 0 && !taken->dirty);
    if (passes || (after == After::kDrop && word.Has(PageWord::kPinned))) return;
    if (may_stay && residency_->SecondChance(&word)) {
      residency_->Enter(*segment, first + i, 1);
      taken->staying = 1;
      return;
    }
    if (!word.Change(&state, IsClean(state) ? PageState::kBusy : PageState::kWriting)) return;
    if (IsClean(state) && word.Has(PageWord::kPinned)) {
      // Just now; a dirty one is looked at when it has been written.
      EndPage(segment, first + i, state, userfault_);
      return;
    }
    taken->dirty = !IsClean(state);
    taken->was[i] = state;
  }
}

void PageOut::Add(const SegmentRef& segment, uint64_t first, uint64_t count, After after, bool may_stay,
                  int64_t deadline_ns) {
  Taken taken;
  const uint64_t end = first + count;
  const uint64_t longest = std::clamp<uint64_t>(kRunBytesMax / segment->page_bytes, 1, kRunPagesMax);
  for (uint64_t page = first; page < end && (may_stay || status_.ok());) {
    // Only pages of one span, which have the same servers.
    const uint64_t span_end = (page * segment->page_bytes / kSpanBytes + 1) * kSpanBytes;
    const uint64_t most = std::clamp<uint64_t>(span_end / segment->page_bytes - page, 1, longest);
    Take(segment.get(), page, std::min(most, end - page), after, may_stay, &taken);
    if (taken.pages + taken.staying == 0) {
      // Not ours to take; but each resident page must be in the queue, to be evicted one day.
      PageWord& word = segment->word(page);
      const PageState state = word.state();
      const bool is_written = state == PageState::kWriting || state == PageState::kDirtyCopied;
      if (is_written && after == After::kKeep) passed_.push_back(page);
      if ((IsResident(state) || state == PageState::kBusy) && !word.Has(PageWord::kPinned) && may_stay) {
        residency_->Enter(*segment.get(), page, 1);
      }
      taken.staying = 1;
    } else if (taken.dirty) {
      Write(segment, page, taken.pages, taken.was.data(), after, may_stay, deadline_ns);
    } else if (taken.pages > 0) {
      for (uint64_t i = 0; i < taken.pages; ++i) {
        taken.was[i] = taken.was[i] == PageState::kCleanEmpty ? PageState::kEmpty : PageState::kRemote;
      }
      Drop(segment.get(), page, taken.pages, taken.was.data());
    }
    page += taken.pages + taken.staying;
  }
}

void PageOut::FindMasks(const Segment& segment, uint64_t page, PageState was, absl::Span<ChunkMask> masks) const {
  const std::byte* const data = segment.address(page);
  was = UnboundOf(was);
  if (was == PageState::kDirtyNoted) return sums_->Take(segment.key(page), data, masks);
  for (size_t i = 0; i < masks.size(); ++i) {
    masks[i] = kAllChunks;
    // Zeros that no server has need not go there.
    for (size_t chunk = 0; was == PageState::kDirtyEmpty && chunk < kChunksPerPage; ++chunk) {
      if (IsZero(data + i * kPageBytes + chunk * kChunkBytes, kChunkBytes)) masks[i] &= ~(1u << chunk);
    }
  }
}

void PageOut::Write(const SegmentRef& segment, uint64_t first, uint64_t count, const PageState* was, After after,
                    bool may_stay, int64_t deadline_ns) {
  const size_t page_bytes = segment->page_bytes;
  const ServerLanes::Servers servers = segment->region()->ServersOf(first * page_bytes);
  if (may_stay && servers_.IsBehind(servers, MonotonicNs())) return EndUnsent(segment.get(), first, count, was);
  const size_t page_masks = page_bytes / kPageBytes;
  if (!IsBound(was[0])) userfault_->Protect(segment->address(first), count * page_bytes);
  Masks masks;
  const auto goes = [&](uint64_t i) {
    return std::any_of(&masks[i * page_masks], &masks[i * page_masks] + page_masks, [](ChunkMask m) { return m != 0; });
  };
  for (uint64_t i = 0; i < count; ++i) {
    FindMasks(*segment.get(), first + i, was[i], {&masks[i * page_masks], page_masks});
  }
  bool late = false;
  for (uint64_t i = 0, run = 1; i < count; i += run, run = 1) {
    const bool sent = goes(i);
    while (i + run < count && goes(i + run) == sent) ++run;
    if (!sent) {
      EndWritten(segment.get(), first + i, run, was + i, after, /*sent=*/false);
      continue;
    }
    Lane* const lane = late ? nullptr : FreeLane(servers, may_stay, deadline_ns);
    if (lane == nullptr) {
      // Pages behind this one that have not changed need no lane: their sums are known only now.
      late = true;
      EndUnsent(segment.get(), first + i, run, was + i);
      continue;
    }
    servers_.Begin(lane->index, servers, MonotonicNs());
    lane->segment = segment.Share();
    lane->first = first + i;
    lane->count = run;
    lane->after = after;
    SetDone(lane->index, false);
    memcpy(lane->was.data(), was + i, run * sizeof(PageState));
    memcpy(lane->masks.data(), &masks[i * page_masks], run * page_masks);
    Send(lane);
  }
}

void PageOut::Send(Lane* lane) {
  Segment* const segment = lane->segment.get();
  ++busy_;
  const uint64_t offset = lane->first * segment->page_bytes;
  const absl::Span<const std::byte> data(segment->address(lane->first), lane->count * segment->page_bytes);
  const absl::Span<const ChunkMask> masks(lane->masks.data(), data.size() / kPageBytes);
  uint64_t chunks = 0;
  for (const ChunkMask mask : masks) chunks += static_cast<uint64_t>(std::popcount(mask));
  Counters::Add(&counters_->written_bytes, chunks * kChunkBytes);
  const auto on_done = [](Io*, void* context) {
    auto* const ended = static_cast<Lane*>(context);
    ended->owner->SetDone(ended->index, true);
  };
  if (chunks * kChunkBytes == data.size()) {
    segment->region()->StartWrite(&lane->io, offset, data, {}, on_done, lane);
  } else {
    segment->region()->StartWriteChunks(&lane->io, offset, data, masks, {}, on_done, lane);
  }
}

void PageOut::SetDone(size_t lane, bool done) {
  MutexLock lock(&mu_);
  done_[lane] = done;
  // Under the lock: a thread that sees that all is done may end this object.
  if (done) ended_.Signal();
}

PageOut::Lane* PageOut::FreeLane(const ServerLanes::Servers& servers, bool may_stay, int64_t deadline_ns) {
  while (true) {
    const size_t free = servers_.FindFree(servers, /*beyond=*/!may_stay);
    if (free < lanes_.size()) return lanes_[free].get();
    if (may_stay && servers_.IsBehind(servers, MonotonicNs())) return nullptr;
    if (deadline_ns != INT64_MAX && MonotonicNs() > deadline_ns) return nullptr;
    WaitAny(deadline_ns);
  }
}

void PageOut::WaitAny(int64_t deadline_ns) {
  if (busy_ == 0) return;
  while (true) {
    bool ended = false;
    for (const auto& lane : lanes_) {
      if (!servers_.busy(lane->index)) continue;
      {
        MutexLock lock(&mu_);
        if (!done_[lane->index]) continue;
      }
      EndLane(lane.get());
      ended = true;
    }
    if (ended) return;
    MutexLock lock(&mu_);
    bool done = false;
    for (const auto& lane : lanes_) done |= servers_.busy(lane->index) && done_[lane->index];
    // Each operation ends by its deadline.
    if (!done && !ended_.WaitUntil(&mu_, std::min(deadline_ns, DeadlineAfterMs(1'000))) &&
        MonotonicNs() > deadline_ns) {
      return;
    }
  }
}

uint64_t PageOut::leaving_pages() const {
  const int64_t now_ns = MonotonicNs();
  uint64_t pages = 0;
  for (const auto& lane : lanes_) {
    const bool leaves = servers_.busy(lane->index) && lane->after == After::kDrop;
    if (leaves && !servers_.IsStuck(lane->index, now_ns)) pages += lane->count;
  }
  return pages;
}

absl::Status PageOut::Finish() {
  while (busy_ > 0) WaitAny();
  return TakeError();
}

void PageOut::EndLane(Lane* lane) {
  const absl::Status status = lane->io.Wait();  // is done
  servers_.NoteEnded(lane->index, MonotonicNs());
  Segment* const segment = lane->segment.get();
  const size_t masks = lane->count * segment->page_bytes / kPageBytes;
  const auto part = [](ChunkMask mask) { return mask != kAllChunks; };
  if (absl::IsDataLoss(status) && std::any_of(lane->masks.begin(), lane->masks.begin() + masks, part)) {
    // The server's memory of a page has changed: it refuses parts of that page, but all of it is here.
    std::fill_n(lane->masks.begin(), masks, kAllChunks);
    --busy_;
    SetDone(lane->index, false);
    Send(lane);
    return;
  }
  if (status.ok()) {
    EndWritten(segment, lane->first, lane->count, lane->was.data(), lane->after, /*sent=*/true);
  } else {
    if (status_.ok()) status_ = status;
    EndFailed(segment, lane->first, lane->count);
  }
  lane->segment.Reset();
  servers_.Free(lane->index);
  --busy_;
}

void PageOut::EndWritten(Segment* segment, uint64_t first, uint64_t count, const PageState* was, After after,
                         bool sent) {
  const GateShared lock(gate_);
  // All that is being written back is bound then.
  if (segment->publishing) segment->bound_pages -= count;
  std::array<PageState, kRunPagesMax> becomes;
  uint64_t droppable = 0;  // pages right before `i`
  const auto drop = [&](uint64_t i) {
    if (droppable > 0) Drop(segment, first + i - droppable, droppable, becomes.data());
    droppable = 0;
  };
  for (uint64_t i = 0; i < count; ++i) {
    PageWord& word = segment->word(first + i);
    const bool empty = !sent && UnboundOf(was[i]) == PageState::kDirtyEmpty;
    const PageState still = empty ? PageState::kDirtyEmpty : PageState::kDirty;
    if (word.Has(PageWord::kPinned)) {
      // Pinned memory may be written to by devices, of which page tables tell nothing: it always counts as dirty.
      EndWritable(segment, first + i, still);
      drop(i);
      continue;
    }
    if (after == After::kKeep) {
      EndPage(segment, first + i, empty ? PageState::kCleanEmpty : PageState::kClean, userfault_);
      continue;
    }
    CHECK(word.Change(PageState::kWriting, PageState::kBusy));
    if (!word.Has(PageWord::kWaiter)) {
      becomes[droppable++] = empty ? PageState::kEmpty : PageState::kRemote;
      continue;
    }
    // A thread is about to write to it: it remains resident.
    drop(i);
    EndWritable(segment, first + i, still);
    residency_->Enter(*segment, first + i, 1);
  }
  drop(count);
}

void PageOut::EndWritable(Segment* segment, uint64_t page, PageState to) {
  userfault_->Unprotect(segment->address(page), segment->page_bytes);
  EndPage(segment, page, to, userfault_);
}

void PageOut::EndUnsentPage(Segment* segment, uint64_t page, PageState was) {
  // A flip that has come since has protected it.
  if (segment->publishing) return EndPage(segment, page, BoundOf(was), userfault_);
  EndWritable(segment, page, UnboundOf(was));
}

void PageOut::EndUnsent(Segment* segment, uint64_t first, uint64_t count, const PageState* was) {
  {
    const GateShared lock(gate_);
    for (uint64_t i = 0; i < count; ++i) EndUnsentPage(segment, first + i, was[i]);
  }
  residency_->Enter(*segment, first, count);
}

void PageOut::EndFailed(Segment* segment, uint64_t first, uint64_t count) {
  {
    const GateShared lock(gate_);
    // A server may have it all the same, so it is not "empty" any more.
    for (uint64_t i = 0; i < count; ++i) EndUnsentPage(segment, first + i, PageState::kDirty);
  }
  residency_->Enter(*segment, first, count);
}

void PageOut::Drop(Segment* segment, uint64_t first, uint64_t count, const PageState* becomes) {
  DropLocally(segment->address(first), count * segment->page_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    residency_->NoteLeft(segment->key(first + i));
    EndPage(segment, first + i, becomes[i], userfault_);
  }
  Counters::Add(&counters_->evicted_pages, count);
  residency_->ReturnBudget(count);
}

}  // namespace nram
