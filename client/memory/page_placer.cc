#include "client/memory/page_placer.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr int64_t kWindowPatienceMs = 200;
constexpr int64_t kRoomPatienceMs = 1'000;
constexpr int64_t kRoomLookMs = 2;

// Before Linux 6.6 the one thread that touches a lost page cannot be told: the program ends, as it does by default
// with SIGBUS. A handler of the program's own would return to the same fault for ever.
[[noreturn]] void EndBySigbus() {
  signal(SIGBUS, SIG_DFL);
  sigset_t bus;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &bus, nullptr);
  raise(SIGBUS);
  abort();
}

}  // namespace

uint64_t PagePlacer::Claim(const Segment& segment, const Run& run, PageState from) {
  uint64_t claimed = 0;
  while (claimed < run.count && segment.word(run.at(claimed)).Change(from, PageState::kBusy)) ++claimed;
  return claimed;
}

void PagePlacer::Unclaim(const SegmentRef& segment, const Run& run, PageState to) {
  for (uint64_t i = 0; i < run.count; ++i) EndPage(segment.get(), run.at(i), to, userfault_);
}

absl::Status PagePlacer::TakeBudget(uint64_t pages, int64_t deadline_ns) {
  return residency_->TakeBudget(pages,
                                pages > 1 ? std::min(deadline_ns, DeadlineAfterMs(kWindowPatienceMs)) : deadline_ns);
}

void PagePlacer::Open(const SegmentRef& segment, const Run& run, PageState to) {
  const GateShared lock(gate_);
  userfault_->Unprotect(segment->address(run.lowest()), run.count * page_bytes_);
  Unclaim(segment, run, to);
}

std::vector<PagePlacer::Refused> PagePlacer::PutIn(const SegmentRef& segment, uint64_t lowest, uint64_t count,
                                                   const std::byte* data, bool protect, PageState to) {
  // Held to the end: the program may write to a placed page before the others are tried.
  const GateShared lock(gate_);
  std::vector<Refused> refused;
  if (count > 1 && userfault_->Copy(segment->address(lowest), data, count * page_bytes_, protect).ok()) {
    Unclaim(segment, {lowest, count, 1}, to);
    return refused;
  }
  // One at a time: the program may have split the range by an madvise(2) or mlock(2) of its own, or its memory cgroup
  // is full.
  for (uint64_t page = lowest; page < lowest + count; ++page) {
    absl::Status copied =
        userfault_->Copy(segment->address(page), data + (page - lowest) * page_bytes_, page_bytes_, protect);
    // It may be there from before; a flip may have protected it meanwhile.
    if (absl::IsAlreadyExists(copied)) {
      if (!protect && !segment->read_only) userfault_->Unprotect(segment->address(page), page_bytes_);
      copied = absl::OkStatus();
    }
    if (copied.ok()) {
      Unclaim(segment, {page, 1, 1}, to);
    } else {
      refused.push_back({page, std::move(copied)});
    }
  }
  return refused;
}

absl::Status PagePlacer::PutInLater(const SegmentRef& segment, uint64_t page, const std::byte* data, bool protect,
                                    PageState to, int64_t deadline_ns) {
  while (true) {
    const std::vector<Refused> refused = PutIn(segment, page, 1, data, protect, to);
    if (refused.empty()) return absl::OkStatus();
    const absl::Status& why = refused.front().why;
    if (!absl::IsResourceExhausted(why) || MonotonicNs() >= deadline_ns) return why;
    std::this_thread::sleep_for(std::chrono::milliseconds(kRoomLookMs));
  }
}

void PagePlacer::Place(const SegmentRef& segment, uint64_t lowest, uint64_t count, const std::byte* data, bool writable,
                       bool empty, std::optional<uint64_t> demanded) {
  const bool dirty = writable && !segment->read_only;
  const bool protect = !dirty && !segment->read_only;
  const bool note = count == 1 && dirty && !empty;
  if (note) sums_->Note(segment->key(lowest), data);
  const PageState state = empty  ? (dirty ? PageState::kDirtyEmpty : PageState::kCleanEmpty)
                          : note ? PageState::kDirtyNoted
                                 : (dirty ? PageState::kDirty : PageState::kClean);
  uint64_t first = lowest;
  const auto enter = [&](uint64_t end) {
    if (end > first) residency_->Enter(*segment.get(), first, end - first);
  };
  const int64_t deadline_ns = DeadlineAfterMs(kRoomPatienceMs);
  for (const Refused& refused : PutIn(segment, lowest, count, data, protect, state)) {
    const uint64_t page = refused.page;
    absl::Status why = refused.why;
    if (absl::IsResourceExhausted(why)) {
      why = PutInLater(segment, page, data + (page - lowest) * page_bytes_, protect, state, deadline_ns);
      if (why.ok()) continue;
    }
    enter(page);
    first = page + 1;
    if (absl::IsResourceExhausted(why) && page != demanded && page_bytes_ == kPageBytes) {
      residency_->ReturnBudget(1);
      Unclaim(segment, {page, 1, 1}, empty ? PageState::kEmpty : PageState::kRemote);
      continue;
    }
    // Of a large page part may be in place.
    DropLocally(segment->address(page), page_bytes_);
    residency_->ReturnBudget(1);
    Lose(segment, page, absl::StrCat("the kernel does not accept it: ", why.message()));
  }
  enter(lowest + count);
}

void PagePlacer::Lose(const SegmentRef& segment, uint64_t page, const std::string& reason) {
  Counters::Add(&counters_->lost_pages, 1);
  std::byte* const at = segment->address(page);
  const absl::Status poisoned = userfault_->Poison(at, page_bytes_);
  on_loss_(at, page_bytes_, reason);
  if (!poisoned.ok()) EndBySigbus();
  EndPage(segment.get(), page, PageState::kLost, userfault_);
  userfault_->Wake(at, page_bytes_);  // the thread whose fault this is has not said that it waits
}

}  // namespace nram
