#include "client/pool/io_engine.h"

#include <glog/logging.h>

#include <bit>
#include <utility>

#include "base/clock.h"
#include "base/sync.h"

namespace nram {

IoEngine::IoEngine(IoPart* parts, size_t part_count) : parts_(parts), part_count_(part_count) {
  CHECK(part_count >= 1 && part_count < 30) << part_count << " parts: each has a bit of events_";
}

IoEngine::~IoEngine() {
  CHECK(state_ != kRunning && state_ != kSleeping) << "an Io went away while its operation was under way";
}

void IoEngine::Reset(const IoPlace& place, const IoRequest& request, IoWay* way, bool blocking, bool wait_expected) {
  CHECK(state_ != kRunning && state_ != kSleeping) << "an Io was used twice at a time";
  place_ = place;
  request_ = request;
  way_ = way;
  oldest_part_ = 0;
  blocking_ = blocking;
  wait_expected_ = wait_expected;
  status_ = absl::OkStatus();
  // Here and not where a part is claimed: a thread that waits for a call may look at it while another claims the part.
  for (size_t i = 0; i < part_count_; ++i) {
    parts_[i].engine = this;
    parts_[i].index = static_cast<uint32_t>(i);
    parts_[i].call.deadline_ns = request.deadline_ns;
  }
  events_.store(kOwned, std::memory_order_relaxed);
  state_.store(kRunning, std::memory_order_release);
}

// --- Blocking.

void IoEngine::RunToEnd() {
  while (true) {
    HandleEvents();
    way_->LaunchAll();
    if (!way_->is_busy()) break;
    Await();
  }
  state_.store(kIdle, std::memory_order_relaxed);
}

void IoEngine::Await() {
  if ((events_.load(std::memory_order_relaxed) & kEventMask) != 0) return;
  // Parts were called in turn, so the oldest is the next one. A part that was called again has its turn after the
  // others, since these may hold the room that it waits for.
  for (size_t i = 0; i < part_count_; ++i) {
    IoPart* const part = &parts_[(oldest_part_ + i) % part_count_];
    if (part->phase != IoPart::Phase::kCalled) continue;
    oldest_part_ = (part->index + 1) % part_count_;
    part->transport.load(std::memory_order_relaxed)->Wait(&part->call);
    part->transport.store(nullptr, std::memory_order_relaxed);
    if (part->call.asks_back) part->session->NoteAsksBack();
    way_->Judge(part);
    return;
  }
  SleepForEvent();
}

void IoEngine::SleepForEvent() {
  // A little longer than the deadline, at which a session resumes the waiters, if it has a driver.
  SleepUnless(kEventMask, request_.deadline_ns + kNsPerMs);
  if ((events_ & kEventMask) != 0 || NowNs() < request_.deadline_ns) return;
  for (size_t i = 0; i < part_count_; ++i) {
    IoPart* const part = &parts_[i];
    if (part->phase != IoPart::Phase::kWaiting) continue;
    if (way_->Cancel(part)) {
      way_->Resume(part);
      continue;
    }
    // It is just being resumed. Sleeping lets the thread that does it run, whatever the priorities are.
    const uint32_t event = 1u << part->index;
    while ((events_ & event) == 0) SleepUnless(event, NowNs() + kNsPerMs);
  }
}

void IoEngine::SleepUnless(uint32_t events, int64_t deadline_ns) {
  uint32_t seen = events_;
  if ((seen & events) != 0 || !events_.compare_exchange_strong(seen, seen | kAsleep)) return;
  FutexWaitUntil(&events_, seen | kAsleep, deadline_ns);
  events_.fetch_and(~kAsleep);
}

// --- Completing by itself.

void IoEngine::Go(Finished finished, void* context) {
  finished_ = finished;
  finished_context_ = context;
  Pump();
}

void IoEngine::Wait() {
  CHECK(state_ != kIdle) << "nothing was started on this Io";
  size_t next = 0;
  while (!is_done()) {
    // Receives for a part whose call is under way; that ends it, and starts the next one, on this thread.
    Transport* transport = nullptr;
    for (size_t i = 0; i < part_count_ && transport == nullptr; ++i, ++next) {
      IoPart* const part = &parts_[next % part_count_];
      transport = part->transport.load(std::memory_order_acquire);
      if (transport != nullptr && part->call.is_done()) transport = nullptr;
      if (transport != nullptr) transport->Wait(&part->call);
    }
    if (transport != nullptr) continue;
    // Another thread is judging one, or it waits for its server. Each ends by its deadline.
    uint32_t expected = kRunning;
    if (state_.compare_exchange_strong(expected, kSleeping)) {
      FutexWaitUntil(&state_, kSleeping, NowNs() + kNsPerMs);
    }
    expected = kSleeping;
    state_.compare_exchange_strong(expected, kRunning);
  }
}

void IoEngine::OnEvent(IoPart* part) {
  IoEngine* const engine = part->engine;
  std::atomic<uint32_t>* const events = &engine->events_;
  const uint32_t event = 1u << part->index;
  // The thread that has the operation handles the event, too. From here on the operation may be over, and destroyed.
  const uint32_t seen = events->fetch_or(event | kOwned, std::memory_order_acq_rel);
  if ((seen & kOwned) == 0) return engine->Pump();
  if ((seen & kAsleep) != 0) FutexWakeAll(events);
}

void IoEngine::Pump() {
  while (true) {
    HandleEvents();
    way_->LaunchAll();
    if (!way_->is_busy()) break;
    uint32_t seen = kOwned;
    if (events_.compare_exchange_strong(seen, 0, std::memory_order_acq_rel)) return;
  }
  const Finished finished = finished_;
  void* const context = finished_context_;
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kSleeping) FutexWakeAll(&state_);
  if (finished != nullptr) finished(context);
}

void IoEngine::HandleEvents() {
  if ((events_.load(std::memory_order_relaxed) & kEventMask) == 0) return;
  uint32_t events = events_.exchange(kOwned, std::memory_order_acq_rel) & kEventMask;
  while (events != 0) {
    IoPart* const part = &parts_[std::countr_zero(events)];
    events &= events - 1;
    if (part->phase == IoPart::Phase::kCalled) {
      part->transport.store(nullptr, std::memory_order_relaxed);
      if (part->call.asks_back) part->session->NoteAsksBack();
      way_->Judge(part);
    } else {
      way_->Resume(part);
    }
  }
}

// --- For the way.

void IoEngine::SetData(IoPart* part, const ChunkRange& range) {
  const uint64_t offset = (range.first - request_.range.first) * kChunkBytes;
  Call& call = part->call;
  call.in = request_.in != nullptr ? request_.in + offset : nullptr;
  call.out = request_.out != nullptr ? request_.out + offset : nullptr;
  call.seals = nullptr;  // of another operation
  call.masks = request_.masks != nullptr ? request_.masks + (range.first_page() - request_.range.first / kChunksPerPage)
                                         : nullptr;
}

void IoEngine::StartCall(IoPart* part) {
  Call& call = part->call;
  call.done = blocking_ ? nullptr : &OnCallDone;
  call.wait_expected = !blocking_ && wait_expected_;
  call.may_wait_late = blocking_ && part_count_ > 1;
  call.context = part;
  Transport* const transport = part->life->transport(request_.io_class);
  part->phase = IoPart::Phase::kCalled;
  part->transport.store(transport, std::memory_order_release);
  transport->Start(&call);
}

void IoEngine::WaitFor(IoPart* part, Waiter::For what, int64_t deadline_ns) {
  part->phase = IoPart::Phase::kWaiting;
  Waiter& waiter = part->waiter;
  waiter.what = what;
  waiter.urgent = request_.io_class == IoClass::kUrgent;
  waiter.deadline_ns = deadline_ns;
  waiter.resume = &OnResume;
  waiter.context = part;
  if (!part->session->WaitFor(&waiter)) events_.fetch_or(1u << part->index, std::memory_order_relaxed);
}

bool IoEngine::TakeRoom(IoPart* part, uint64_t bytes) {
  ServerSession* const session = part->session;
  RegionMap* const map = place_.map;
  part->wanted_room_bytes = bytes;
  // Repair does not use up the quota that the region's own writes are promised.
  const bool has_room = map->has_room() && request_.repair == RepairWork::kNone;
  if (!part->room && has_room) {
    part->room = map->TakeReserved(session->index(), session->room(), bytes, bytes);
  }
  if (!part->room) part->room = session->TryTakeRoom(bytes);
  if (!part->room && !part->without_room && !session->refused()) {
    WaitForRoom(part, bytes);
    return false;
  }
  // Without room it may still overwrite stored pages, and room for new ones may be reserved; the server knows.
  if (!part->room && has_room) part->room = map->TakeReserved(session->index(), session->room(), 1, bytes);
  return true;
}

void IoEngine::WaitForRoom(IoPart* part, uint64_t bytes) {
  part->waiter.room_bytes = bytes;
  WaitFor(part, Waiter::For::kRoom, request_.deadline_ns);
}

void IoEngine::EndRoom(IoPart* part, uint64_t used_bytes) {
  if (part->room && part->room.is_regions()) {
    place_.map->EndReserved(part->session->index(), part->session->room(), std::move(part->room), used_bytes);
    part->session->NoteReturned();
  } else {
    part->session->EndRoom(std::move(part->room), used_bytes);
  }
}

void IoEngine::EndUnanswered(IoPart* part) {
  if (!part->call.sent) return EndRoom(part, 0);
  if (!part->room.is_regions()) return EndRoom(part, part->room.bytes());
  place_.map->EndUnknown(part->session->index(), part->session->room(), std::move(part->room));
  part->session->NoteReturned();
}

}  // namespace nram
