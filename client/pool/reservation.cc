#include "client/pool/reservation.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/sync.h"
#include "proto/price.h"

namespace nram {

Reservation::~Reservation() { CHECK(taken_.empty()) << "a reservation went away under way"; }

void Reservation::Start(const IoPlace& place, const absl::StatusOr<IoRequest>& request, Callback callback,
                        void* context) {
  place_ = place;
  callback_ = callback;
  callback_context_ = context;
  if (request.ok()) {
    chunk_ = request->range.first;
    end_ = request->range.end();
    waiter_.deadline_ns = request->deadline_ns;
    waiter_.resume = &OnResume;
    waiter_.context = this;
  } else {
    status_ = request.status();
  }
  Go();
}

absl::Status Reservation::Wait() {
  while (state_ != kDone) {
    uint32_t expected = kRunning;
    if (state_.compare_exchange_strong(expected, kSleeping) || expected == kSleeping) {
      FutexWaitUntil(&state_, kSleeping, place_.environment->NowNs() + kNsPerSecond);
    }
  }
  return status_;
}

void Reservation::Go() {
  if (std::exchange(awaits_server_, false)) LookAtServer();
  while (chunk_ < end_ && status_.ok()) {
    if (!TakeSpan()) return;
  }
  Settle();
  Finish();
}

bool Reservation::TakeSpan() {
  const uint64_t span = chunk_ / kChunksPerSpan;
  const uint64_t end = std::min((span + 1) * kChunksPerSpan, end_);
  const ChunkRange range{chunk_, end - chunk_};
  RegionMap::Target target;
  if (absl::Status status = place_.map->Find(span, &target); !status.ok()) {
    // Destroyed meanwhile: it may have been granted what it waited for.
    if (std::exchange(waited_, false)) session_->EndRoom(std::move(waiter_.grant), 0);
    Fail(status);
    return true;
  }
  const bool paid_for = target.placed() && (target.paid_for || taken_.contains(target.server));
  const uint64_t bytes = PriceOfWrite(range.pages(), !paid_for);
  ServerSession* session = nullptr;
  if (target.placed()) {
    session = place_.sessions->at(target.server);
  } else if (waited_) {
    session = session_;
  } else {
    session = search_.Choose(*place_.sessions, *place_.map, span);
    if (session == nullptr) return FailToPlace(bytes);
  }
  if (!TakeRoom(session, bytes)) return false;
  // It may have waited at another server than that where the span has been placed meanwhile.
  const bool is_there = target.placed() && target.server == session_->index();
  if (!grant_) return NoteNoRoom(is_there, bytes);
  if (!target.placed()) {
    SpanPlacement placement;
    placement.servers[0] = session->index();
    target = place_.map->Place(span, placement);
  }
  if (target.server != session_->index()) {  // another thread has placed it elsewhere meanwhile: the span once more
    session_->EndRoom(std::move(grant_), 0);
    return true;
  }
  taken_[target.server].Absorb(std::move(grant_));
  search_.Reset();
  chunk_ = end;
  return true;
}

bool Reservation::FailToPlace(uint64_t bytes) {
  absl::Status why;
  if (ServerSession* const awaited = search_.Survey(*place_.sessions, bytes, &why)) return AwaitServer(awaited);
  Fail(why);
  return true;
}

bool Reservation::AwaitServer(ServerSession* session) {
  session_ = session;
  waiter_.what = Waiter::For::kConnection;
  awaits_server_ = true;
  if (session->WaitFor(&waiter_)) return false;
  awaits_server_ = false;
  LookAtServer();
  return true;
}

void Reservation::LookAtServer() {
  switch (waiter_.outcome) {
    case Waiter::Outcome::kUsable:
      return search_.Reset();  // the span once more
    case Waiter::Outcome::kAwayTooLong:
      return Fail(absl::UnavailableError(session_->last_error().message()));
    case Waiter::Outcome::kLate:
      return Fail(absl::DeadlineExceededError(
          absl::StrCat("memory server ", session_->name(), " does not answer: no room can be reserved")));
    default:
      return Fail(absl::UnavailableError("the pool is being closed"));
  }
}

bool Reservation::TakeRoom(ServerSession* session, uint64_t bytes) {
  if (!waited_) {
    session_ = session;
    waiter_.outcome = Waiter::Outcome::kRefused;
    grant_ = session->TryTakeRoom(bytes);
    if (grant_ || session->refused()) return true;
    waiter_.what = Waiter::For::kRoom;
    waiter_.room_bytes = bytes;
    waited_ = true;
    if (session->WaitFor(&waiter_)) return false;
  }
  waited_ = false;
  grant_ = std::move(waiter_.grant);
  return true;
}

bool Reservation::NoteNoRoom(bool placed, uint64_t bytes) {
  const std::string server = absl::StrCat("memory server ", session_->name());
  switch (waiter_.outcome) {
    case Waiter::Outcome::kNoAnswer:
      if (placed) return AwaitServer(session_);
      search_.NoteNoAnswer(*session_);
      return true;
    case Waiter::Outcome::kRefused:
      if (placed) Fail(absl::ResourceExhaustedError(absl::StrCat(server, " has no room for ", FormatByteSize(bytes))));
      search_.NoteFull(*session_);
      return true;
    case Waiter::Outcome::kLate:
      Fail(absl::DeadlineExceededError(absl::StrCat(server, ": no answer in time")));
      return true;
    default:
      Fail(absl::UnavailableError("the pool is being closed"));
      return true;
  }
}

void Reservation::Settle() {
  if (status_.ok() && !taken_.empty()) place_.map->NoteReserved();
  std::map<uint16_t, uint64_t> added;
  for (auto& [server, grant] : taken_) {
    ServerSession* const session = place_.sessions->at(server);
    const uint64_t bytes = grant.bytes();
    if (!status_.ok()) {
      session->EndRoom(std::move(grant), 0);
    } else if (place_.map->AddReserved(server, session->room(), std::move(grant))) {
      added[server] = bytes;
      session->NoteReturned();
    } else {
      status_ = absl::UnavailableError(
          absl::StrCat("memory server ", session->name(), " has restarted while room was reserved"));
    }
  }
  taken_.clear();
  if (status_.ok()) return;
  for (const auto& [server, bytes] : added) {
    ServerSession* const session = place_.sessions->at(server);
    place_.map->ReleaseReserved(server, session->room(), bytes);
    session->NoteRoom();
  }
}

void Reservation::Finish() {
  const Callback callback = callback_;
  void* const context = callback_context_;
  if (state_.exchange(kDone) == kSleeping) FutexWakeAll(&state_);
  if (callback != nullptr) callback(this, context);
}

}  // namespace nram
