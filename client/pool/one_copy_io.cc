#include "client/pool/one_copy_io.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plant.h"
#include "proto/price.h"

namespace nram {

void OneCopyIo::LaunchAll() {
  while (engine_->status().ok() && next_chunk_ < request().range.end() &&
         engine_->part(next_part_)->phase == IoPart::Phase::kFree) {
    IoPart* const part = engine_->part(next_part_);
    next_part_ = (next_part_ + 1) % engine_->part_count();
    Claim(part);
    Launch(part);
  }
}

// Takes the next piece: up to the next multiple of 64 pages, so within one message and one span.
void OneCopyIo::Claim(IoPart* part) {
  const uint64_t boundary = (next_chunk_ / kChunksPerMessage + 1) * kChunksPerMessage;
  const ChunkRange range{next_chunk_, std::min(boundary, request().range.end()) - next_chunk_};
  next_chunk_ = range.end();
  ++busy_;
  part->garbled = 0;
  part->without_room = part->placing = false;
  part->session = nullptr;
  part->search.Reset();
  Call& call = part->call;
  const RegionKey& key = place().map->key();
  call.request = request().op == Op::kRead
                     ? MessageHeader(ReadRequest{.region = key.id, .range = range, .epoch = key.epoch})
                     : MessageHeader(WriteRequest{.region = key.id, .range = range, .epoch = key.epoch});
  engine_->SetData(part, range);
}

void OneCopyIo::Launch(IoPart* part) {
  const uint64_t span = part->call.request.range().first / kChunksPerSpan;
  RegionMap::Target target;
  const absl::Status status = place().map->Find(span, &target);
  if (!status.ok()) return End(part, status);
  if (target.placed()) return Aim(part, target);
  if (request().op == Op::kWrite) return Place(part, span);
  memset(part->call.in, 0, part->call.request.range().bytes());
  End(part, absl::OkStatus());
}

void OneCopyIo::Place(IoPart* part, uint64_t span) {
  const uint64_t bytes = PriceOfWrite(part->call.request.range().pages(), /*creates_region=*/true);
  // It was waiting for room, and has it.
  ServerSession* session = part->room ? part->session : part->search.Choose(*place().sessions, *place().map, span);
  while (session != nullptr && !part->room) {
    part->room = session->TryTakeRoom(bytes);
    if (part->room) break;
    if (!session->refused()) {
      part->placing = true;
      part->session = session;
      return engine_->WaitForRoom(part, bytes);
    }
    part->search.NoteFull(*session);
    session = part->search.Choose(*place().sessions, *place().map, span);
  }
  if (session != nullptr) {
    part->session = session;
    part->placing = false;
    part->search.Reset();
    SpanPlacement placement;
    placement.servers[0] = session->index();
    return Aim(part, place().map->Place(span, placement));
  }
  absl::Status why;
  part->session = part->search.Survey(*place().sessions, bytes, &why);
  part->search.Reset();
  if (part->session == nullptr) return End(part, why);
  Retry(part, absl::UnavailableError(absl::StrCat("memory server ", part->session->name(), " does not answer")));
}

void OneCopyIo::Aim(IoPart* part, const RegionMap::Target& target) {
  const bool writes = request().op == Op::kWrite;
  ServerSession* const session = place().sessions->at(target.server);
  // Another thread has placed the span elsewhere meanwhile.
  if (part->room && part->session != session) engine_->EndRoom(part, 0);
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
                                                      " has restarted and lost the data that region ",
                                                      FormatId(Raw(place().map->key().id)), " stored there")));
  }
  if (!writes && !created && !part->unsure) {
    memset(part->call.in, 0, part->call.request.range().bytes());
    return End(part, absl::OkStatus());
  }
  if (writes) {
    // The price of a write includes the region's own bookkeeping, on a server that has not seen it.
    const bool creates = target.known != RegionMap::Known::kCreated;
    if (!engine_->TakeRoom(part, PriceOfWrite(part->call.request.range().pages(), creates))) return;
  }
  Send(part, target);
}

void OneCopyIo::Send(IoPart* part, const RegionMap::Target& target) {
  Call& call = part->call;
  call.request.flags = 0;
  if (request().op == Op::kWrite) {
    if (target.known != RegionMap::Known::kCreated) {
      call.request.flags |= kFlagCreate | (place().map->key().gc ? kFlagGc : 0);
    }
    if (part->room) call.request.flags |= kFlagReservation;
    if (place().map->has_reserved()) call.request.flags |= kFlagWholeFrames;
    auto body = call.request.as<WriteRequest>();
    body.grant_bytes = part->room.bytes();
    call.request.set(body);
    if (!part->life->connected() && !NRAM_PLANTED(retry_overtakes)) {
      engine_->EndRoom(part, 0);
      return Retry(part, absl::UnavailableError(
                             absl::StrCat("memory server ", part->session->name(), ": a connection is down")));
    }
  }
  engine_->StartCall(part);
}

void OneCopyIo::Judge(IoPart* part) {
  const Call& call = part->call;
  ServerSession* const session = part->session;
  RegionMap* const map = place().map;
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
  if (call.request.op == Op::kWrite) engine_->EndRoom(part, call.used_bytes);
  if (call.reason == Reason::kOk) {
    // A read may have found the data of a write without an answer: from now on that data can be lost.
    const bool proves = part->unsure && !NRAM_PLANTED(perhaps_read_not_noted);
    if ((creates || proves) && !map->NoteCreated(session->index(), part->life->incarnation)) {
      // It was executed in a former life of the server, and that was not noticed in time to be remembered.
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

// The server was full. The write has not used `unused_bytes` of its part of the region's quota; the used part has
// stored its first pages. More may be free now, or lent to other writes.
void OneCopyIo::JudgeShortOfReserved(IoPart* part, const absl::Status& status, uint64_t unused_bytes) {
  part->waiter.ticket = part->session->returns();  // from before the look at the quota
  switch (place().map->LookForReserved(part->session->index(), unused_bytes)) {
    case RegionMap::Reserved::kMore:
      return Retry(part, status);
    case RegionMap::Reserved::kLent:
      return Retry(part, status, Waiter::For::kReservedRoom);
    case RegionMap::Reserved::kNoMore:
      return End(part, status);
  }
}

void OneCopyIo::JudgeUnanswered(IoPart* part) {
  const Call& call = part->call;
  if (call.request.op == Op::kWrite) engine_->EndUnanswered(part);
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

void OneCopyIo::Retry(IoPart* part, const absl::Status& why, Waiter::For what) {
  part->last = why;
  part->without_room = false;
  WaitFor(part, what);
}

bool OneCopyIo::Cancel(IoPart* part) {
  if (!part->session->Cancel(&part->waiter)) return false;
  part->waiter.outcome = Waiter::Outcome::kLate;
  return true;
}

void OneCopyIo::Resume(IoPart* part) {
  using Outcome = Waiter::Outcome;
  ServerSession* const session = part->session;
  if (part->waiter.outcome == Outcome::kGranted) part->room = std::move(part->waiter.grant);
  const absl::string_view why = part->last.message();
  // A call that is late from the start would cost others the connection.
  if (part->waiter.outcome == Outcome::kLate || engine_->NowNs() >= request().deadline_ns) {
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

void OneCopyIo::End(IoPart* part, const absl::Status& status) {
  if (part->room) engine_->EndRoom(part, 0);
  engine_->NoteStatus(status);
  part->last = absl::OkStatus();
  part->phase = IoPart::Phase::kFree;
  --busy_;
}

}  // namespace nram
