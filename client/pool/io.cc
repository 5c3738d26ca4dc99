#include "client/pool/io.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "base/sync.h"
#include "proto/price.h"

namespace nram {

Io::Io(size_t part_count) : owned_(new IoPart[part_count]), parts_(owned_.get()), part_count_(part_count) {
  static_assert(kPartsMax <= 30, "each part has a bit of events_");
  CHECK(part_count >= 1 && part_count <= kPartsMax) << part_count << " parts; an Io has 1 to " << kPartsMax;
}

Io::~Io() { CHECK(state_ != kRunning && state_ != kSleeping) << "an Io went away while its operation was under way"; }

void Io::Reset(const IoPlace& place, const IoRequest& request, bool blocking) {
  CHECK(state_ != kRunning && state_ != kSleeping) << "an Io was used twice at a time";
  place_ = place;
  request_ = request;
  next_chunk_ = request.range.first;
  busy_ = next_part_ = oldest_part_ = 0;
  blocking_ = blocking;
  status_ = absl::OkStatus();
  callback_ = nullptr;
  // Here and not where a part is claimed: a thread that waits for a call may look at it while another claims the part.
  for (size_t i = 0; i < part_count_; ++i) {
    parts_[i].io = this;
    parts_[i].index = static_cast<uint32_t>(i);
    parts_[i].call.deadline_ns = request.deadline_ns;
  }
  events_.store(kOwned, std::memory_order_relaxed);
  state_.store(kRunning, std::memory_order_release);
}

// --- Blocking.

absl::Status Io::Run(const IoPlace& place, const IoRequest& request) {
  const ChunkRange& range = request.range;
  if (range.first / kChunksPerMessage == (range.end() - 1) / kChunksPerMessage) {
    IoPart part;
    Io io(&part, 1);
    io.Reset(place, request, /*blocking=*/true);
    return io.RunToEnd();
  }
  IoPart parts[kPartsMax];
  Io io(parts, kPartsMax);
  io.Reset(place, request, /*blocking=*/true);
  return io.RunToEnd();
}

absl::Status Io::RunToEnd() {
  while (true) {
    HandleEvents();
    LaunchAll();
    if (busy_ == 0) break;
    Await();
  }
  state_.store(kIdle, std::memory_order_relaxed);
  return std::move(status_);
}

void Io::Await() {
  if ((events_.load(std::memory_order_relaxed) & kEventMask) != 0) return;
  // Parts were called in turn, so the oldest is the next one. One that was called again has its turn after the others,
  // which may hold what it waits for.
  for (size_t i = 0; i < part_count_; ++i) {
    IoPart* const part = &parts_[(oldest_part_ + i) % part_count_];
    if (part->phase != IoPart::Phase::kCalled) continue;
    oldest_part_ = (part->index + 1) % part_count_;
    part->transport.load(std::memory_order_relaxed)->Wait(&part->call);
    Judge(part);
    return;
  }
  SleepForEvent();
}

void Io::SleepForEvent() {
  // A little longer than the waiters may take: those are told of it, if somebody is there to tell.
  SleepUnless(kEventMask, request_.deadline_ns + kNsPerMs);
  if ((events_ & kEventMask) != 0 || place_.environment->NowNs() < request_.deadline_ns) return;
  for (size_t i = 0; i < part_count_; ++i) {
    IoPart* const part = &parts_[i];
    if (part->phase != IoPart::Phase::kWaiting) continue;
    if (part->session->Cancel(&part->waiter)) {
      part->waiter.outcome = Waiter::Outcome::kLate;
      Resume(part);
      continue;
    }
    // It is just being resumed. Sleeping lets the thread that does it run, whatever the priorities are.
    const uint32_t event = 1u << part->index;
    while ((events_ & event) == 0) SleepUnless(event, place_.environment->NowNs() + kNsPerMs);
  }
}

void Io::SleepUnless(uint32_t events, int64_t deadline_ns) {
  uint32_t seen = events_;
  if ((seen & events) != 0 || !events_.compare_exchange_strong(seen, seen | kAsleep)) return;
  FutexWaitUntil(&events_, seen | kAsleep, deadline_ns);
  events_.fetch_and(~kAsleep);
}

// --- Completing by itself.

void Io::Start(const IoPlace& place, const absl::StatusOr<IoRequest>& request, Callback callback, void* context) {
  Reset(place, request.ok() ? *request : IoRequest(), /*blocking=*/false);
  status_ = request.status();
  callback_ = callback;
  callback_context_ = context;
  Pump();
}

absl::Status Io::Wait() {
  CHECK(state_ != kIdle) << "nothing was started on this Io";
  size_t next = 0;
  while (!done()) {
    // Receive for a part whose call is under way; that ends it, and starts what comes next, on this thread.
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
      FutexWaitUntil(&state_, kSleeping, place_.environment->NowNs() + kNsPerMs);
    }
    expected = kSleeping;
    state_.compare_exchange_strong(expected, kRunning);
  }
  return status_;
}

void Io::OnEvent(IoPart* part) {
  Io* const io = part->io;
  std::atomic<uint32_t>* const events = &io->events_;
  const uint32_t event = 1u << part->index;
  // Whoever has the operation takes the event along. From here on it may be over, and gone.
  const uint32_t seen = events->fetch_or(event | kOwned, std::memory_order_acq_rel);
  if ((seen & kOwned) == 0) return io->Pump();
  if ((seen & kAsleep) != 0) FutexWakeAll(events);
}

void Io::Pump() {
  while (true) {
    HandleEvents();
    LaunchAll();
    if (busy_ == 0) return Finish();
    uint32_t seen = kOwned;
    if (events_.compare_exchange_strong(seen, 0, std::memory_order_acq_rel)) return;
  }
}

void Io::Finish() {
  const Callback callback = callback_;
  void* const context = callback_context_;
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kSleeping) FutexWakeAll(&state_);
  if (callback != nullptr) callback(this, context);
}

void Io::HandleEvents() {
  if ((events_.load(std::memory_order_relaxed) & kEventMask) == 0) return;
  uint32_t events = events_.exchange(kOwned, std::memory_order_acq_rel) & kEventMask;
  while (events != 0) {
    IoPart* const part = &parts_[std::countr_zero(events)];
    events &= events - 1;
    if (part->phase == IoPart::Phase::kCalled) {
      Judge(part);
    } else {
      Resume(part);
    }
  }
}

// --- A part's way.

void Io::LaunchAll() {
  while (status_.ok() && next_chunk_ < request_.range.end() && parts_[next_part_].phase == IoPart::Phase::kFree) {
    IoPart* const part = &parts_[next_part_];
    next_part_ = (next_part_ + 1) % part_count_;
    Claim(part);
    Launch(part);
  }
}

// Takes the next piece: up to the next multiple of 64 pages, so within one message and one span.
void Io::Claim(IoPart* part) {
  const uint64_t boundary = (next_chunk_ / kChunksPerMessage + 1) * kChunksPerMessage;
  const ChunkRange range{next_chunk_, std::min(boundary, request_.range.end()) - next_chunk_};
  const uint64_t offset = (range.first - request_.range.first) * kChunkBytes;
  next_chunk_ = range.end();
  ++busy_;
  part->garbled = 0;
  part->without_room = part->placing = false;
  part->session = nullptr;
  part->search.Reset();
  Call& call = part->call;
  const RegionKey& key = place_.map->key();
  call.request = request_.op == Op::kRead
                     ? MessageHeader(ReadRequest{.region = key.id, .range = range, .epoch = key.epoch})
                     : MessageHeader(WriteRequest{.region = key.id, .range = range, .epoch = key.epoch});
  call.in = request_.in != nullptr ? request_.in + offset : nullptr;
  call.out = request_.out != nullptr ? request_.out + offset : nullptr;
  call.masks = request_.masks != nullptr ? request_.masks + (range.first_page() - request_.range.first / kChunksPerPage)
                                         : nullptr;
  call.done = blocking_ ? nullptr : &OnCallDone;
  call.wait_expected = !blocking_ && callback_ == nullptr;
  call.may_wait_late = blocking_ && part_count_ > 1;
  call.context = part;
}

void Io::Launch(IoPart* part) {
  const uint64_t span = part->call.request.range().first / kChunksPerSpan;
  RegionMap::Target target;
  const absl::Status status = place_.map->Find(span, &target);
  if (!status.ok()) return End(part, status);
  if (target.placed()) return Aim(part, target);
  if (request_.op == Op::kWrite) return Place(part, span);
  memset(part->call.in, 0, part->call.request.range().bytes());
  End(part, absl::OkStatus());
}

void Io::Place(IoPart* part, uint64_t span) {
  const uint64_t bytes = PriceOfWrite(part->call.request.range().pages(), /*creates_region=*/true);
  // It was waiting for room, and has it.
  ServerSession* session = part->room ? part->session : part->search.Choose(*place_.sessions, *place_.map, span);
  while (session != nullptr && !part->room) {
    part->room = session->TryTakeRoom(bytes);
    if (part->room) break;
    if (!session->refused()) {
      part->placing = true;
      return WaitForRoom(part, session, bytes);
    }
    part->search.NoteFull(*session);
    session = part->search.Choose(*place_.sessions, *place_.map, span);
  }
  if (session != nullptr) {
    part->session = session;
    part->placing = false;
    part->search.Reset();
    SpanPlacement placement;
    placement.servers[0] = session->index();
    return Aim(part, place_.map->Place(span, placement));
  }
  absl::Status why;
  part->session = part->search.Survey(*place_.sessions, bytes, &why);
  part->search.Reset();
  if (part->session == nullptr) return End(part, why);
  Retry(part, absl::UnavailableError(absl::StrCat("memory server ", part->session->name(), " does not answer")));
}

void Io::Aim(IoPart* part, const RegionMap::Target& target) {
  const bool writes = request_.op == Op::kWrite;
  ServerSession* const session = place_.sessions->at(target.server);
  // Another thread has placed the span elsewhere meanwhile.
  if (part->room && part->session != session) EndRoom(part, 0);
  part->session = session;
  part->placing = false;
  part->times_up = session->times_up();
  part->life = session->life();  // there is one since the region was placed there
  const bool is_hole = NRAM_PLANTED(other_life_is_a_hole) && target.incarnation != part->life->incarnation;
  const bool created = target.known == RegionMap::Known::kCreated && !is_hole;
  // Once the server has restarted, a write without an answer has not happened.
  part->unsure = target.known == RegionMap::Known::kPerhaps && target.incarnation == part->life->incarnation;
  if (created && target.incarnation != part->life->incarnation) {
    return End(part, absl::DataLossError(absl::StrCat("memory server ", session->name(),
                                                      " has restarted and lost what region ",
                                                      FormatId(Raw(place_.map->key().id)), " stored there")));
  }
  if (!writes && !created && !part->unsure) {
    memset(part->call.in, 0, part->call.request.range().bytes());
    return End(part, absl::OkStatus());
  }
  if (writes && !TakeRoom(part, target)) return;
  Send(part, target);
}

bool Io::TakeRoom(IoPart* part, const RegionMap::Target& target) {
  ServerSession* const session = part->session;
  RegionMap* const map = place_.map;
  // What it may cost, the region's own bookkeeping on a server that has not seen it included.
  const bool creates = target.known != RegionMap::Known::kCreated;
  const uint64_t bytes = PriceOfWrite(part->call.request.range().pages(), creates);
  part->wanted_room_bytes = bytes;
  if (!part->room && map->has_room()) {
    part->room = map->TakeReserved(target.server, session->room(), bytes, bytes);
  }
  if (!part->room) part->room = session->TryTakeRoom(bytes);
  if (!part->room && !part->without_room && !session->refused()) {
    WaitForRoom(part, session, bytes);
    return false;
  }
  // Without room it may still overwrite what is there, and room for what is not may be reserved; the server knows.
  if (!part->room && map->has_room()) part->room = map->TakeReserved(target.server, session->room(), 1, bytes);
  return true;
}

void Io::Send(IoPart* part, const RegionMap::Target& target) {
  Call& call = part->call;
  call.request.flags = 0;
  if (request_.op == Op::kWrite) {
    if (target.known != RegionMap::Known::kCreated) {
      call.request.flags |= kFlagCreate | (place_.map->key().gc ? kFlagGc : 0);
    }
    if (part->room) call.request.flags |= kFlagReservation;
    if (place_.map->has_reserved()) call.request.flags |= kFlagWholeFrames;
    auto body = call.request.as<WriteRequest>();
    body.grant_bytes = part->room.bytes();
    call.request.set(body);
    if (!part->life->connected() && !NRAM_PLANTED(retry_overtakes)) {
      EndRoom(part, 0);
      return Retry(part, absl::UnavailableError(
                             absl::StrCat("memory server ", part->session->name(), ": a connection is down")));
    }
  }
  Transport* const transport = part->life->transport(request_.io_class);
  part->phase = IoPart::Phase::kCalled;
  part->transport.store(transport, std::memory_order_release);
  transport->Start(&call);
}

void Io::Judge(IoPart* part) {
  const Call& call = part->call;
  ServerSession* const session = part->session;
  RegionMap* const map = place_.map;
  part->transport.store(nullptr, std::memory_order_relaxed);
  const bool answered = call.code == absl::StatusCode::kOk;
  const bool creates = (call.request.flags & kFlagCreate) != 0;
  // One that was refused may have stored its first pages.
  if (creates && call.sent && !(answered && call.reason == Reason::kOk) && !NRAM_PLANTED(perhaps_not_noted)) {
    map->NotePerhapsCreated(session->index(), part->life->incarnation);
  }
  if (!answered) return JudgeUnanswered(part);
  const uint64_t reserved_bytes = part->room.is_regions() ? part->room.bytes() : 0;
  const uint64_t used_bytes = NRAM_PLANTED(used_room_looked_for) ? 0 : std::min(call.used_bytes, reserved_bytes);
  const bool had_enough = part->room.bytes() >= part->wanted_room_bytes;
  const bool in_term = !part->room || part->room.term() == session->room()->term();
  if (call.request.op == Op::kWrite) EndRoom(part, call.used_bytes);
  if (call.reason == Reason::kOk) {
    // A read may have found what a write without an answer has left: from now on that can be lost.
    const bool proves = part->unsure && !NRAM_PLANTED(perhaps_read_not_noted);
    if ((creates || proves) && !map->NoteCreated(session->index(), part->life->incarnation)) {
      // It went to a former life of the server, and that was not noticed in time to be remembered.
      return Retry(part, absl::UnavailableError(absl::StrCat("memory server ", session->name(), " has restarted")));
    }
    return End(part, absl::OkStatus());
  }
  const absl::Status status = CallStatus(call, session->name());
  switch (call.reason) {
    case Reason::kUnknownRegion:
      if ((!part->unsure && !NRAM_PLANTED(loss_is_zeros)) || call.request.op != Op::kRead)
        return End(part, absl::DataLossError(status.message()));
      memset(call.in, 0, call.request.range().bytes());
      return End(part, absl::OkStatus());
    case Reason::kLeaseEnded:
      session->NoteLeaseEnded(part->times_up);
      return Retry(part, status);
    case Reason::kFenced:
      session->Suspect();
      return Retry(part, status);
    case Reason::kFull:
    case Reason::kDraining:
      if (!in_term) return Retry(part, status);  // it had room of a former term, which paid for nothing
      if (had_enough || !map->has_reserved()) return End(part, status);
      return JudgeShortOfReserved(part, status, reserved_bytes - used_bytes);
    default:
      return End(part, status);
  }
}

// The server was full, and the write has left `unused_bytes` of what it had of its region's reserved room: what it used
// has stored its first pages. More may be there now, or with other writes.
void Io::JudgeShortOfReserved(IoPart* part, const absl::Status& status, uint64_t unused_bytes) {
  part->waiter.ticket = part->session->returns();  // from before the purse is looked at
  switch (place_.map->LookForReserved(part->session->index(), unused_bytes)) {
    case RegionMap::Reserved::kMore:
      return Retry(part, status);
    case RegionMap::Reserved::kLent:
      return Retry(part, status, Waiter::For::kReservedRoom);
    case RegionMap::Reserved::kNoMore:
      return End(part, status);
  }
}

void Io::JudgeUnanswered(IoPart* part) {
  const Call& call = part->call;
  // What was used is unknown. A renewal tells how much all calls have used, but not which: a region's room stays so.
  if (call.request.op == Op::kWrite) EndRoom(part, call.sent && !part->room.is_regions() ? part->room.bytes() : 0);
  part->session->Suspect();
  const absl::Status status = CallStatus(call, part->session->name());
  switch (call.code) {
    case absl::StatusCode::kUnavailable:
      if (NRAM_PLANTED(acknowledged_when_sent) && call.request.op == Op::kWrite && call.sent) {
        return End(part, absl::OkStatus());
      }
      return Retry(part, status);
    case absl::StatusCode::kDeadlineExceeded:
      part->session->NoteSilence();
      return End(part, status);
    case absl::StatusCode::kDataLoss:
      // The reply to a write carries nothing that a donor's memory could have spoiled.
      if (call.request.op != Op::kRead || ++part->garbled < kGarbledMax) return Retry(part, status);
      return End(part, absl::DataLossError(absl::StrCat(status.message(), ", ", kGarbledMax,
                                                        " times (is that machine's memory sound?)")));
    default:
      return End(part, status);
  }
}

void Io::EndRoom(IoPart* part, uint64_t used_bytes) {
  if (part->room && part->room.is_regions()) {
    place_.map->EndReserved(part->session->index(), part->session->room(), std::move(part->room), used_bytes);
    part->session->NoteReturned();
  } else {
    part->session->EndRoom(std::move(part->room), used_bytes);
  }
}

void Io::Retry(IoPart* part, const absl::Status& why, Waiter::For what) {
  part->last = why;
  part->without_room = false;
  WaitFor(part, what);
}

void Io::WaitForRoom(IoPart* part, ServerSession* session, uint64_t bytes) {
  part->session = session;
  part->waiter.room_bytes = bytes;
  WaitFor(part, Waiter::For::kRoom);
}

void Io::WaitFor(IoPart* part, Waiter::For what) {
  part->phase = IoPart::Phase::kWaiting;
  Waiter& waiter = part->waiter;
  waiter.what = what;
  waiter.urgent = request_.io_class == IoClass::kUrgent;
  waiter.deadline_ns = request_.deadline_ns;
  waiter.resume = &OnResume;
  waiter.context = part;
  if (!part->session->WaitFor(&waiter)) events_.fetch_or(1u << part->index, std::memory_order_relaxed);
}

void Io::Resume(IoPart* part) {
  using Outcome = Waiter::Outcome;
  ServerSession* const session = part->session;
  if (part->waiter.outcome == Outcome::kGranted) part->room = std::move(part->waiter.grant);
  const absl::string_view why = part->last.message();
  // A call that is late from the start would cost others the connection.
  if (part->waiter.outcome == Outcome::kLate || place_.environment->NowNs() >= request_.deadline_ns) {
    return End(part, absl::DeadlineExceededError(
                         why.empty() ? absl::StrCat("memory server ", session->name(), ": no answer in time") : why));
  }
  switch (part->waiter.outcome) {
    case Outcome::kUsable:
    case Outcome::kGranted:
      return Launch(part);
    case Outcome::kRefused:
      part->without_room = !part->placing;
      if (part->placing) part->search.NoteFull(*session);
      return Launch(part);
    case Outcome::kNoAnswer:
      if (!part->placing) {
        return Retry(part, absl::UnavailableError(absl::StrCat("memory server ", session->name(),
                                                               " does not answer: no room can be reserved")));
      }
      part->search.NoteNoAnswer(*session);
      return Launch(part);
    case Outcome::kAwayTooLong:
      return End(part, absl::UnavailableError(session->last_error().message()));
    case Outcome::kClosing:
      return End(part, absl::UnavailableError("the pool is being closed"));
    case Outcome::kLate:
      break;
  }
  LOG(FATAL) << "a waiter was resumed with no outcome";
}

void Io::End(IoPart* part, const absl::Status& status) {
  if (part->room) EndRoom(part, 0);
  if (status_.ok() && !status.ok()) status_ = status;
  part->last = absl::OkStatus();
  part->phase = IoPart::Phase::kFree;
  --busy_;
}

}  // namespace nram
