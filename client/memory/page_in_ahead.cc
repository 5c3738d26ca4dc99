// Windows that are read ahead: the buffers they arrive in, and who waits for them. The other half of PageIn.

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "client/memory/page_in.h"

namespace nram {

bool PageIn::Join(const SegmentRef& segment, uint64_t page) {
  Buffer* arrived = nullptr;
  Run used;
  {
    MutexLock lock(&mu_);
    if (!segment->word(page).WaitFor(PageState::kBusy)) return false;
    for (const auto& buffer : buffers_) {
      if (buffer->state == Buffer::State::kFree || buffer->segment.get() != segment.get()) continue;
      if (page < buffer->run.lowest() || page >= buffer->run.lowest() + buffer->run.count) continue;
      if (!std::exchange(buffer->used, true)) used = buffer->run;
      if (buffer->state == Buffer::State::kReading) buffer->wanted = true;
      if (buffer->state == Buffer::State::kReady) {
        buffer->state = Buffer::State::kInstalling;
        arrived = buffer.get();
      }
      break;
    }
  }
  Counters::Add(&counters_->hits, 1);
  if (used.count > 0) {
    const StreamPlan plan = streams_.OnAheadUsed(*segment.get(), used);
    if (plan.ahead.count > 0) StartAhead(segment, plan.ahead, plan.writable, /*wanted=*/false);
  }
  if (arrived != nullptr) InstallBuffer(arrived);
  return true;
}

PageIn::Buffer* PageIn::FreeBufferLocked() {
  Buffer* oldest = nullptr;
  for (const auto& buffer : buffers_) {
    if (buffer->state == Buffer::State::kFree) return buffer.get();
    if (buffer->state != Buffer::State::kReady || buffer->wanted) continue;
    if (oldest == nullptr || buffer->stamp < oldest->stamp) oldest = buffer.get();
  }
  if (oldest != nullptr) GiveUpLocked(oldest);
  return oldest;
}

PageIn::Buffer* PageIn::TakeBuffer() {
  MutexLock lock(&mu_);
  Buffer* const buffer = FreeBufferLocked();
  if (buffer != nullptr) buffer->state = Buffer::State::kInstalling;
  return buffer;
}

void PageIn::Release(Buffer* buffer) {
  MutexLock lock(&mu_);
  buffer->segment.Reset();
  buffer->state = Buffer::State::kFree;
  freed_.SignalAll();
}

void PageIn::GiveUpLocked(Buffer* buffer) {
  const absl::Status status = buffer->io.Wait();  // is done
  Unclaim(buffer->segment, buffer->run, PageState::kRemote);
  if (status.ok()) Counters::Add(&counters_->prefetch_wasted_bytes, buffer->run.count * options_.page_bytes);
  buffer->segment.Reset();
  buffer->state = Buffer::State::kFree;
  freed_.SignalAll();
}

void PageIn::StartAhead(const SegmentRef& segment, const Run& run, bool writable, bool wanted) {
  Buffer* buffer = nullptr;
  {
    MutexLock lock(&mu_);
    // Its pages are claimed while it can be found by those who then meet them.
    if (segment->word(run.first).state() != PageState::kRemote) return;
    buffer = FreeBufferLocked();
    if (buffer == nullptr) return;
    const uint64_t count = Claim(*segment.get(), run, PageState::kRemote);
    if (count == 0) return;
    buffer->segment = segment.Share();
    buffer->run = {run.first, count, run.step};
    buffer->state = Buffer::State::kReading;
    buffer->wanted = wanted;
    buffer->used = false;
    buffer->writable = writable;
    buffer->stamp = ++clock_;
  }
  const size_t bytes = buffer->run.count * options_.page_bytes;
  Counters::Add(&counters_->fetched_bytes, bytes);
  Counters::Add(&counters_->prefetched_bytes, bytes);
  segment->region->StartRead(
      &buffer->io, buffer->run.lowest() * options_.page_bytes, {buffer->data, bytes}, {},
      [](Io*, void* context) {
        auto* const read = static_cast<Buffer*>(context);
        read->owner->OnRead(read);
      },
      buffer);
}

void PageIn::OnRead(Buffer* buffer) {
  MutexLock lock(&mu_);
  buffer->state = Buffer::State::kReady;
  if (!buffer->wanted) {
    freed_.SignalAll();
    return;
  }
  const uint64_t one = 1;
  PCHECK(write(arrived_fd_.get(), &one, sizeof(one)) == sizeof(one));
}

void PageIn::HandleArrived() {
  uint64_t count;
  if (read(arrived_fd_.get(), &count, sizeof(count)) != sizeof(count)) return;
  Buffer* arrived = nullptr;
  {
    MutexLock lock(&mu_);
    for (const auto& buffer : buffers_) {
      if (buffer->state != Buffer::State::kReady || !buffer->wanted) continue;
      buffer->state = Buffer::State::kInstalling;
      arrived = buffer.get();
      break;
    }
  }
  if (arrived != nullptr) InstallBuffer(arrived);
}

void PageIn::InstallBuffer(Buffer* buffer) {
  absl::Status status = buffer->io.Wait();  // is done
  const Run run = buffer->run;
  if (status.ok()) status = TakeRoom(run.count, DeadlineAfterMs(options_.timeout_ms));
  if (status.ok()) {
    Install(buffer->segment, run.lowest(), run.count, buffer->data, buffer->writable, /*empty=*/false);
  } else {
    // Those who wait look again, and fetch what they need themselves or learn why not.
    Unclaim(buffer->segment, run, PageState::kRemote);
  }
  Release(buffer);
}

void PageIn::Prefetch(const SegmentRef& segment, uint64_t first, uint64_t count) {
  for (uint64_t page = first; page < first + count;) {
    if (segment->word(page).state() != PageState::kRemote) {
      ++page;
      continue;
    }
    Run run{page, std::min(first + count - page, options_.window_pages), 1};
    uint64_t remote = 1;
    while (remote < run.count && segment->word(page + remote).state() == PageState::kRemote) ++remote;
    run.count = remote;
    {
      MutexLock lock(&mu_);
      // Each of them ends by the deadline of its read.
      while (FreeBufferLocked() == nullptr) freed_.WaitUntil(&mu_, DeadlineAfterMs(100));
    }
    StartAhead(segment, run, /*writable=*/false, /*wanted=*/true);
    page += run.count;
  }
}

void PageIn::Retry(const SegmentRef& segment, uint64_t first, uint64_t count) {
  for (uint64_t page = first; page < first + count; ++page) {
    if (!segment->word(page).Change(PageState::kLost, PageState::kBusy)) continue;
    DropLocally(segment->address(page), options_.page_bytes);
    Unclaim(segment, {page, 1, 1}, PageState::kRemote);
  }
}

void PageIn::CancelAhead(const Segment& segment, uint64_t first, uint64_t count) {
  MutexLock lock(&mu_);
  for (const auto& buffer : buffers_) {
    if (buffer->state != Buffer::State::kReady || buffer->wanted || buffer->segment.get() != &segment) continue;
    if (buffer->run.lowest() < first + count && first < buffer->run.lowest() + buffer->run.count) {
      GiveUpLocked(buffer.get());
    }
  }
}

void PageIn::Forget(const Segment& segment) {
  streams_.Forget(segment);
  MutexLock lock(&mu_);
  while (true) {
    bool busy = false;
    for (const auto& buffer : buffers_) {
      if (buffer->state == Buffer::State::kFree || buffer->segment.get() != &segment) continue;
      if (buffer->state == Buffer::State::kReady && !buffer->wanted) {
        GiveUpLocked(buffer.get());
      } else {
        busy = true;
      }
    }
    if (!busy) return;
    freed_.WaitUntil(&mu_, DeadlineAfterMs(100));
  }
}

}  // namespace nram
