#include "client/pool/reservation.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
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
  const uint64_t pages = ChunkRange{chunk_, end - chunk_}.pages();
  bool waits = false;
  if (servers_.empty() && !FindServers(span, &waits)) return !waits;
  while (grants_.size() < servers_.size()) {
    ServerSession* const session = place_.sessions->at(servers_[grants_.size()]);
    const uint64_t bytes = PriceAt(session->index(), pages);
    if (!TakeRoom(session, bytes)) return false;
    if (!grant_) {
      DropGrants();
      return NoteNoRoom(bytes);
    }
    grants_.push_back(std::move(grant_));
  }
  if (!PlaceSpan(span)) {  // it was destroyed meanwhile, or is elsewhere: the span once more
    DropGrants();
    return true;
  }
  for (size_t i = 0; i < servers_.size(); ++i) taken_[servers_[i]].Absorb(std::move(grants_[i]));
  if (place_.map->copies() != nullptr) place_.map->copies()->NoteReserved(span, pages);
  if (RegionSeal* const seal = place_.map->seal()) {
    seal->versions()->Prepare(chunk_ / kChunksPerPage, (end + kChunksPerPage - 1) / kChunksPerPage);
  }
  DropGrants();
  search_.Reset();
  passed_over_.clear();
  chunk_ = end;
  return true;
}

void Reservation::DropGrants() {
  for (size_t i = 0; i < grants_.size(); ++i) {
    if (grants_[i]) place_.sessions->at(servers_[i])->EndRoom(std::move(grants_[i]), 0);
  }
  grants_.clear();
  servers_.clear();
}

bool Reservation::FindServers(uint64_t span, bool* waits) {
  CopyMap* const copies = place_.map->copies();
  RegionMap::Target target;
  if (absl::Status status = place_.map->Find(span, &target); !status.ok()) {
    Fail(status);
    return false;
  }
  if (copies != nullptr) {
    where_ = servers_ = copies->ChangedServersOf(span);
    KeepUsable(copies->ServersOf(span));
    std::sort(servers_.begin(), servers_.end());
  } else if (target.placed()) {
    servers_.push_back(target.server);
  }
  placed_ = !servers_.empty();
  if (placed_) return true;
  if (copies != nullptr) {
    for (const uint16_t server : search_.ChooseCopies(*place_.sessions, *place_.map, span).servers) {
      if (server != kNoServer) servers_.push_back(server);
    }
  } else if (const ServerSession* const session = search_.Choose(*place_.sessions, *place_.map, span)) {
    servers_.push_back(session->index());
  }
  if (!servers_.empty()) return true;
  *waits = !FailToPlace(PriceAt(kNoServer, kPagesPerSpan));
  return false;
}

void Reservation::KeepUsable(const CopyMap::Servers& in_sync) {
  CopyMap::Servers usable;
  bool is_enough = false;
  for (const uint16_t server : servers_) {
    const ServerSession& session = *place_.sessions->at(server);
    const bool gives_none =
        session.capacity().draining || session.asks() || absl::c_linear_search(passed_over_, server);
    if (!session.usable() || gives_none) continue;
    usable.push_back(server);
    is_enough = is_enough || absl::c_linear_search(in_sync, server);
  }
  // A copy that catches up does not do: a write that only such ones have is refused.
  if (is_enough) servers_ = usable;
}

uint64_t Reservation::PriceAt(uint16_t server, uint64_t pages) const {
  // Where a span is to be placed, several writes may each have to pay for the region.
  bool paid_for = placed_ && taken_.contains(server);
  if (placed_ && !paid_for) {
    if (const CopyMap* const copies = place_.map->copies()) {
      paid_for = copies->IsCreated({server, place_.sessions->at(server)->incarnation()});
    } else {
      RegionMap::Target target;
      paid_for = place_.map->Find(chunk_ / kChunksPerSpan, &target).ok() && target.paid_for;
    }
  }
  return PriceOfWrite(pages, !paid_for);
}

bool Reservation::PlaceSpan(uint64_t span) {
  if (absl::Status status = place_.map->CheckUsable(); !status.ok()) return Fail(status), false;
  if (CopyMap* const copies = place_.map->copies()) {
    if (placed_) return copies->ChangedServersOf(span) == where_;  // a copy may have moved meanwhile
    absl::InlinedVector<CopyMap::Life, kReplicasMax> lives;
    for (const uint16_t server : servers_) lives.push_back({server, place_.sessions->at(server)->incarnation()});
    if (copies->Place(span, lives)) return true;
    // Another operation has placed it; or it cannot be.
    if (copies->ChangedServersOf(span).empty()) Fail(absl::UnavailableError("the region has no place any more"));
    return false;
  }
  SpanPlacement placement;
  placement.servers[0] = servers_[0];
  return place_.map->Place(span, placement).server == servers_[0];
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

bool Reservation::PassOver() {
  const uint16_t server = session_->index();
  if (place_.map->copies() == nullptr || !placed_ || absl::c_linear_search(passed_over_, server)) return false;
  passed_over_.push_back(server);
  return true;
}

bool Reservation::NoteNoRoom(uint64_t bytes) {
  const std::string server = absl::StrCat("memory server ", session_->name());
  switch (waiter_.outcome) {
    case Waiter::Outcome::kNoAnswer:
      if (PassOver()) return true;
      if (placed_) return AwaitServer(session_);
      search_.NoteNoAnswer(*session_);
      return true;
    case Waiter::Outcome::kRefused:
      if ((session_->capacity().draining || session_->needs_memory()) && PassOver()) return true;
      if (placed_) Fail(absl::ResourceExhaustedError(absl::StrCat(server, " has no room for ", FormatByteSize(bytes))));
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
    } else if (place_.map->copies() == nullptr || place_.map->copies()->copies() == 1) {
      status_ = absl::UnavailableError(
          absl::StrCat("memory server ", session->name(), " has restarted while room was reserved"));
    }
  }
  if (status_.ok() && added.empty() && !taken_.empty()) {
    status_ = absl::UnavailableError("the memory servers have restarted while room was reserved");
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
