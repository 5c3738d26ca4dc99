#include "client/memory/bound_copies.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

// ThreadSanitizer does not see that the kernel stops a thread that writes to a protected page.
__attribute__((no_sanitize("thread"))) void CopyProtected(std::byte* to, const std::byte* from, size_t bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(from);
  auto* const out = reinterpret_cast<uint64_t*>(to);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) out[i] = words[i];
}

bool IsZero(const std::byte* data, size_t bytes) {
  return data[0] == std::byte{0} && memcmp(data, data + 1, bytes - 1) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BoundCopies>> BoundCopies::New(size_t page_bytes, uint64_t most_pages, PublishGate* gate,
                                                              Userfault* userfault, Residency* residency,
                                                              ChunkSums* sums, Counters* counters) {
  const uint64_t slots = std::clamp<uint64_t>(most_pages / kShare, 1, UINT32_MAX);
  std::unique_ptr<BoundCopies> copies(new BoundCopies(page_bytes, slots, gate, userfault, residency, sums, counters));
  NRAM_ASSIGN_OR_RETURN(copies->memory_, Mapping::Untouched(slots * page_bytes));
  return copies;
}

BoundCopies::BoundCopies(size_t page_bytes, uint64_t slots, PublishGate* gate, Userfault* userfault,
                         Residency* residency, ChunkSums* sums, Counters* counters)
    : page_bytes_(page_bytes),
      slots_(slots),
      gate_(gate),
      userfault_(userfault),
      residency_(residency),
      sums_(sums),
      counters_(counters) {
  for (size_t i = 0; i < kLanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->owner = this;
    lanes_.back()->masks.resize(page_bytes / kPageBytes);
  }
}

BoundCopies::~BoundCopies() { CHECK(idle()); }

std::vector<uint32_t> BoundCopies::TakeSlots(uint64_t most) {
  std::vector<uint32_t> slots;
  {
    MutexLock lock(&mu_);
    const uint64_t share = std::min(slots_, residency_->limit_pages() / kShare);
    if (used_ >= share) return slots;
    slots.resize(std::min(most, share - used_));
    used_ += slots.size();
    for (uint32_t& slot : slots) {
      if (free_.empty()) {
        slot = fresh_++;
      } else {
        slot = free_.back();
        free_.pop_back();
      }
    }
  }
  if (residency_->TakeBudget(slots.size(), MonotonicNs()).ok()) return slots;
  // One at least, if there is any.
  const bool one = slots.size() > 1 && residency_->TakeBudget(1, MonotonicNs()).ok();
  const size_t kept = one ? 1 : 0;
  MutexLock lock(&mu_);
  ReturnSlotsLocked(absl::MakeSpan(slots).subspan(kept));
  slots.resize(kept);
  return slots;
}

void BoundCopies::ReturnSlots(absl::Span<const uint32_t> slots) {
  if (slots.empty()) return;
  {
    MutexLock lock(&mu_);
    ReturnSlotsLocked(slots);
  }
  residency_->ReturnBudget(slots.size());
}

void BoundCopies::ReturnSlotsLocked(absl::Span<const uint32_t> slots) {
  used_ -= slots.size();
  free_.insert(free_.end(), slots.begin(), slots.end());
  if (used_ == 0 && trims_) TrimLocked();
}

uint64_t BoundCopies::Copy(const SegmentRef& segment, const Run& run, bool note) {
  uint64_t bound = 0;
  while (bound < run.count && IsBound(segment->word(run.at(bound)).state())) ++bound;
  if (bound == 0) return 0;
  const std::vector<uint32_t> slots = TakeSlots(bound);
  std::vector<PageState> was;
  {
    const GateShared lock(gate_);
    // Bound pages are there only while the segment is being published.
    while (was.size() < slots.size()) {
      PageWord& word = segment->word(run.at(was.size()));
      PageState state = word.state();
      if (!IsBound(state) || !word.Change(state, PageState::kBusy)) break;
      CopyProtected(data(slots[was.size()]), segment->address(run.at(was.size())), page_bytes_);
      was.push_back(state);
    }
    if (!was.empty()) {
      const Run copied{run.first, was.size(), run.step};
      userfault_->Unprotect(segment->address(copied.lowest()), copied.count * page_bytes_);
      for (uint64_t i = 0; i < was.size(); ++i) {
        EndPage(segment.get(), run.at(i), PageState::kDirtyCopied, userfault_);
      }
    }
    // Only now may the publisher end them; with the gate held, so that a version that is given up finds them there.
    MutexLock waiting_lock(&mu_);
    for (uint64_t i = 0; i < was.size(); ++i) {
      waiting_.push_back({segment.Share(), run.at(i), was[i], slots[i], note});
    }
  }
  ReturnSlots(absl::MakeSpan(slots).subspan(was.size()));
  segment->ended.Notify();
  for (uint64_t i = 0; i < was.size(); ++i) {
    const PageWord& word = segment->word(run.at(i));
    if (!word.Has(PageWord::kQueued) && !word.Has(PageWord::kPinned)) {
      residency_->Enter(*segment.get(), run.at(i), 1);
    }
  }
  return was.size();
}

void BoundCopies::FindMasks(Lane* lane) {
  const std::byte* const from = data(lane->copy.slot);
  const PageState was = UnboundOf(lane->copy.was);
  const uintptr_t key = lane->copy.segment->key(lane->copy.page);
  if (was == PageState::kDirtyNoted) return sums_->Take(key, from, absl::MakeSpan(lane->masks));
  for (size_t i = 0; i < lane->masks.size(); ++i) {
    lane->masks[i] = kAllChunks;
    // Zeros that no server has need not go there.
    for (size_t chunk = 0; was == PageState::kDirtyEmpty && chunk < kChunksPerPage; ++chunk) {
      if (IsZero(from + i * kPageBytes + chunk * kChunkBytes, kChunkBytes)) lane->masks[i] &= ~(1u << chunk);
    }
  }
}

void BoundCopies::Send(Lane* lane) {
  uint64_t chunks = 0;
  for (const ChunkMask mask : lane->masks) chunks += static_cast<uint64_t>(std::popcount(mask));
  if (chunks == 0) return End(&lane->copy, /*sent=*/lane->copy.was != PageState::kBoundEmpty);
  lane->busy = true;
  lane->done = false;
  Counters::Add(&counters_->written_bytes, chunks * kChunkBytes);
  Segment* const segment = lane->copy.segment.get();
  const uint64_t offset = lane->copy.page * page_bytes_;
  const absl::Span<const std::byte> from(data(lane->copy.slot), page_bytes_);
  const auto on_done = [](Io*, void* context) {
    auto* const ended = static_cast<Lane*>(context);
    BoundCopies* const owner = ended->owner;
    MutexLock lock(&owner->mu_);
    ended->done = true;
    // The publisher may wait for pages of this segment. It ends the lane, which holds the segment, after this.
    ended->copy.segment->ended.Notify();
    owner->ended_.Signal();
  };
  if (chunks * kChunkBytes == page_bytes_) {
    segment->region()->StartWrite(&lane->io, offset, from, {}, on_done, lane);
  } else {
    segment->region()->StartWriteChunks(&lane->io, offset, from, lane->masks, {}, on_done, lane);
  }
}

void BoundCopies::End(Waiting* copy, bool sent) {
  Segment* const segment = copy->segment.get();
  const bool note = sent && copy->note;
  if (note) sums_->Note(segment->key(copy->page), data(copy->slot));
  {
    const GateShared lock(gate_);
    if (segment->publishing) --segment->bound_pages;
    CHECK(segment->word(copy->page).Change(PageState::kDirtyCopied, note ? PageState::kDirtyNoted : PageState::kDirty));
  }
  segment->ended.Notify();
  ReturnSlots({copy->slot});
  copy->segment.Reset();
}

absl::Status BoundCopies::EndDone() {
  absl::Status first;
  for (const auto& lane : lanes_) {
    if (!lane->busy || !lane->done) continue;
    {
      MutexLock lock(&mu_);  // the callback has left it
    }
    lane->busy = false;
    const absl::Status status = lane->io.Wait();  // is done
    const auto part = [](ChunkMask mask) { return mask != kAllChunks; };
    if (status.ok()) {
      End(&lane->copy, /*sent=*/true);
    } else if (absl::IsDataLoss(status) && std::any_of(lane->masks.begin(), lane->masks.end(), part)) {
      // The server's memory of the page has changed: it refuses parts of it, but all of it is here.
      std::fill(lane->masks.begin(), lane->masks.end(), kAllChunks);
      Send(lane.get());
    } else {
      if (first.ok()) first = status;
      MutexLock lock(&mu_);
      waiting_.push_front(std::move(lane->copy));
    }
  }
  return first;
}

absl::Status BoundCopies::Pump() {
  NRAM_RETURN_IF_ERROR(EndDone());
  for (const auto& lane : lanes_) {
    if (lane->busy) continue;
    {
      MutexLock lock(&mu_);
      if (waiting_.empty()) break;
      lane->copy = std::move(waiting_.front());
      waiting_.pop_front();
    }
    FindMasks(lane.get());
    Send(lane.get());
  }
  return absl::OkStatus();
}

bool BoundCopies::HasDone() const {
  bool free = false;
  for (const auto& lane : lanes_) {
    if (lane->busy && lane->done) return true;
    free = free || !lane->busy;
  }
  MutexLock lock(&mu_);
  return free && !waiting_.empty();
}

bool BoundCopies::idle() const {
  for (const auto& lane : lanes_) {
    if (lane->busy) return false;
  }
  MutexLock lock(&mu_);
  return waiting_.empty();
}

void BoundCopies::GiveUp() {
  while (!idle()) {
    std::deque<Waiting> rest;
    {
      MutexLock lock(&mu_);
      rest.swap(waiting_);
    }
    for (Waiting& copy : rest) End(&copy, /*sent=*/false);
    bool busy = false, done = false;
    for (const auto& lane : lanes_) {
      busy = busy || lane->busy;
      done = done || (lane->busy && lane->done);
    }
    if (busy && !done) {
      // Each ends by its deadline.
      MutexLock lock(&mu_);
      for (const auto& lane : lanes_) done = done || (lane->busy && lane->done);
      if (!done) ended_.WaitUntil(&mu_, DeadlineAfterMs(1'000));
    }
    // Copies that failed wait again, and are forgotten the next time round.
    (void)EndDone();
  }
}

void BoundCopies::Trim() {
  MutexLock lock(&mu_);
  trims_ = true;
  if (used_ == 0) TrimLocked();
}

void BoundCopies::TrimLocked() {
  trims_ = false;
  if (fresh_ > 0) madvise(memory_.data(), fresh_ * page_bytes_, MADV_DONTNEED);
  fresh_ = 0;
  free_.clear();
}

}  // namespace nram
