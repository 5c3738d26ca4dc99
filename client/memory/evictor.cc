#include "client/memory/evictor.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/signals.h"

namespace nram {
namespace {

// How many pages are taken from the queue at a time: enough for long runs, and yet about in the queue's order.
constexpr uint64_t kBatchPages = 512;
// How often to see whether writes that take long have ended.
constexpr int64_t kSlowLookMs = 10;
// Runs on their way to servers. One that does not answer has half of them, or more if pages have several copies.
constexpr size_t kLanes = 32;
constexpr int64_t kFailedPauseMs = 10;    // before a failed write is tried again
constexpr int64_t kFruitlessPauseMs = 1;  // before the queue is gone through again

}  // namespace

Evictor::Evictor(PublishGate* gate, Userfault* userfault, Residency* residency, ChunkSums* sums, SegmentIndex* index,
                 Counters* counters, std::function<void()> at_rest)
    : residency_(residency),
      index_(index),
      at_rest_(std::move(at_rest)),
      out_(gate, userfault, residency, sums, counters, kLanes) {
  const SignalsBlocked quiet;
  thread_ = std::thread([this] { Run(); });
}

Evictor::~Evictor() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    stop_.Signal();
  }
  residency_->Interrupt();
  thread_.join();
}

bool Evictor::IsStopping() {
  MutexLock lock(&mu_);
  return stopping_;
}

void Evictor::Pause(int64_t ms) {
  const int64_t deadline_ns = DeadlineAfterMs(ms);
  MutexLock lock(&mu_);
  while (!stopping_ && stop_.WaitUntil(&mu_, deadline_ns)) {
  }
}

void Evictor::Run() {
  pthread_setname_np(pthread_self(), "nram-evict");
  while (!IsStopping()) {
    const uint64_t wanted = residency_->Wanted();
    const uint64_t leaving = out_.leaving_pages();
    if (wanted > leaving) {
      Evict(wanted - leaving);
    } else if (leaving > 0) {
      out_.WaitAny(DeadlineAfterMs(PageOut::kPatienceMs));
    } else if (!out_.idle()) {
      // Servers are slow or away. A thread that needs budget is heard at once, the servers within moments.
      residency_->AwaitWanted(DeadlineAfterMs(kSlowLookMs));
      out_.WaitAny(MonotonicNs());
    } else {
      at_rest_();
      residency_->AwaitWanted(DeadlineAfterMs(1'000));
    }
    if (const absl::Status failed = out_.TakeError(); !failed.ok()) {
      // The pages remain here and are tried again: an absent server may return.
      residency_->Report(failed);
      Pause(kFailedPauseMs);
    }
  }
  (void)out_.Finish();
}

void Evictor::Evict(uint64_t pages) {
  std::array<uintptr_t, kBatchPages> keys;
  const size_t count = residency_->Take(keys.data(), std::min(pages, kBatchPages));
  std::sort(keys.begin(), keys.begin() + count);
  // Faults that bring pages meanwhile only make it look worse.
  const auto gone = [&] {
    return static_cast<int64_t>(out_.leaving_pages()) - static_cast<int64_t>(residency_->resident_pages());
  };
  const int64_t before = gone();
  // One deadline for all runs together: each of them may be one of a server that is slow or away.
  const int64_t deadline_ns = DeadlineAfterMs(PageOut::kPatienceMs);
  for (size_t i = 0; i < count;) {
    const SegmentRef segment = index_->Find(keys[i]);
    if (!segment) {
      ++i;
      continue;
    }
    const uint64_t first = segment->PageOf(keys[i]);
    uint64_t run = 0;
    while (i < count && segment->Contains(keys[i]) && segment->PageOf(keys[i]) == first + run) {
      segment->word(first + run).Clear(PageWord::kQueued);
      ++i, ++run;
    }
    out_.Add(segment, first, run, PageOut::After::kDrop, /*may_stay=*/true, deadline_ns);
  }
  if (gone() > before) return;
  // All pages were busy or pinned, or have another round.
  if (out_.idle()) {
    Pause(kFruitlessPauseMs);
  } else {
    out_.WaitAny(DeadlineAfterMs(10));
  }
}

}  // namespace nram
