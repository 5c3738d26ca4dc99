// The legs of a change: one copy's messages, from room to their end.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "client/pool/copied_io.h"
#include "proto/price.h"

namespace nram {
namespace {

// A write of nothing, which raises a span's generation.
constexpr ChunkMask kNoChunks[1] = {0};

absl::Status NoRoomKnown(const ServerSession& session) {
  return absl::UnavailableError(absl::StrCat("memory server ", session.name(), " does not report whether it has room"));
}

}  // namespace

void CopiedIo::ReleaseRooms(Piece* piece) {
  for (size_t leg = 0; leg < parts_per_piece_; ++leg) {
    IoPart* const part = PartOf(*piece, leg);
    if (part->room) engine_->EndRoom(part, 0);
  }
}

// Gives parts to the legs that are next.
void CopiedIo::AssignLegs(Piece* piece) {
  piece->state = State::kRoom;
  // Room that was granted for a new span is used by the leg at the same server, if there is one.
  std::array<std::pair<ServerSession*, Room::Grant>, kReplicasMax> granted;
  for (size_t leg = 0; leg < parts_per_piece_; ++leg) {
    IoPart* const part = PartOf(*piece, leg);
    granted[leg] = {part->room ? part->session : nullptr, std::move(part->room)};
  }
  piece->leg_count = piece->legs_left = std::min(piece->legs.size() - piece->legs_sent, parts_per_piece_);
  piece->next_leg = 0;
  for (size_t leg = 0; leg < piece->leg_count; ++leg) {
    IoPart* const part = PartOf(*piece, leg);
    part->leg = piece->legs[piece->legs_sent++];
    part->session = SessionAt(part->leg.life.server);
    part->is_over = false;
    part->without_room = part->room_unanswered = false;
    part->sends_raise = piece->raises_only;
    part->last = absl::OkStatus();
    for (auto& [session, grant] : granted) {
      if (session != part->session) continue;
      part->room = std::move(grant);
      session = nullptr;
    }
  }
  for (auto& [session, grant] : granted) {
    if (session != nullptr) session->EndRoom(std::move(grant), 0);
  }
}

bool CopiedIo::TakeRooms(Piece* piece) {
  for (; piece->next_leg < piece->leg_count; ++piece->next_leg) {
    IoPart* const part = PartOf(*piece, piece->next_leg);
    if (!part->is_over && PrepareLeg(part) == Prepared::kWaits) return false;
  }
  piece->state = State::kLegs;
  for (size_t leg = 0; leg < piece->leg_count; ++leg) {
    IoPart* const part = PartOf(*piece, leg);
    if (!part->is_over) SendLeg(part);
  }
  return true;
}

CopiedIo::Prepared CopiedIo::PrepareLeg(IoPart* part) {
  const Piece& piece = *PieceOf(*part);
  part->life = part->session->life();
  if (part->life->incarnation != part->leg.life.incarnation) {
    copies()->Bury(part->leg.replica_host);
    EndLeg(part, CopiedChange::End::kMissed, absl::OkStatus());
    return Prepared::kOver;
  }
  copies()->Refresh(SpanOf(piece), &part->leg);
  const bool creates = part->leg.known != CopyMap::Known::kCreated;
  const bool trims = request().op == Op::kTrim;
  // A trim creates nothing. If it is not known that the server has the span, the span is created first.
  if (trims && part->leg.creates) part->sends_raise = true;
  // A raise needs room only where it creates the span.
  const bool needs_room = part->sends_raise ? part->leg.creates : !trims;
  const uint64_t pages = part->sends_raise ? 1 : piece.range.pages();
  return !needs_room || engine_->TakeRoom(part, PriceOfWrite(pages, creates)) ? Prepared::kReady : Prepared::kWaits;
}

void CopiedIo::SendLeg(IoPart* part) {
  const Piece& piece = *PieceOf(*part);
  RegionMap* const map = place().map;
  const RegionKey& key = map->key();
  Call& call = part->call;
  copies()->Refresh(SpanOf(piece), &part->leg);  // another leg may have waited for its room
  if (!part->life->connected()) {
    engine_->EndRoom(part, 0);
    return RetryLeg(
        part, absl::UnavailableError(absl::StrCat("memory server ", part->session->name(), ": a connection is down")));
  }
  if (NRAM_PLANTED(trim_of_one_copy) && request().op == Op::kTrim && part->index % parts_per_piece_ > 0) {
    return EndLeg(part, CopiedChange::End::kStored, absl::OkStatus());
  }
  if (request().op == Op::kTrim && !part->sends_raise) {
    call.masks = nullptr;  // of a raise before
    call.seals = nullptr;
    call.request = MessageHeader(
        TrimRequest{
            .region = key.id, .range = piece.range, .epoch = key.epoch, .span_generation = part->leg.generation},
        static_cast<uint8_t>((request().keeps_room ? kFlagReservation : 0) |
                             (map->has_reserved() ? kFlagWholeFrames : 0)));
    if (request().keeps_room && !part->trims) {
      part->trim = map->BeginTrim(part->session->index(), part->session->room());
      part->trims = true;
      part->trim_sent = false;
    }
  } else {
    uint8_t flags = 0;
    if (part->leg.creates) flags |= kFlagCreate | (key.gc ? kFlagGc : 0);
    if (part->room) flags |= kFlagReservation;
    const bool makes_holes = piece.is_sealed && piece.sealer->holes != 0;
    if (map->has_reserved() && !makes_holes) flags |= kFlagWholeFrames;
    const ChunkRange range = part->sends_raise ? ChunkRange{piece.range.first, LeastChunks()} : piece.range;
    call.request = MessageHeader(WriteRequest{.region = key.id,
                                              .range = range,
                                              .epoch = key.epoch,
                                              .span_generation = part->leg.generation,
                                              .grant_bytes = part->room.bytes()},
                                 flags);
    call.seals = nullptr;
    if (part->sends_raise) {
      call.masks = kNoChunks;
      part->no_seal = PageSeal();  // another one would make a hole
      if (seal() != nullptr) call.seals = &part->no_seal;
    } else {
      engine_->SetData(part, piece.range);
      if (request().repair == RepairWork::kCopy) {
        call.masks = request().found + (piece.range.first_page() - request().range.first_page());
      }
      if (seal() != nullptr) {
        if (!Seal(PieceOf(*part))) return EndLeg(part, CopiedChange::End::kRefused, SealError());
        SetSealed(piece, &call);
      }
    }
  }
  part->times_up = part->session->times_up();
  engine_->StartCall(part);
}

void CopiedIo::JudgeUnansweredLeg(IoPart* part, const absl::Status& status) {
  const Call& call = part->call;
  if (call.request.op != Op::kTrim) engine_->EndUnanswered(part);
  part->session->Suspect();
  if (call.code == absl::StatusCode::kDeadlineExceeded) part->session->NoteSilence();
  if (call.code == absl::StatusCode::kUnavailable || call.code == absl::StatusCode::kDataLoss) {
    return RetryLeg(part, status);
  }
  return EndLeg(part, CopiedChange::End::kMissed, status);
}

void CopiedIo::JudgeLeg(IoPart* part) {
  using End = CopiedChange::End;
  const Call& call = part->call;
  ServerSession* const session = part->session;
  RegionMap* const map = place().map;
  const bool answered = call.code == absl::StatusCode::kOk;
  const bool creates = (call.request.flags & kFlagCreate) != 0;
  const bool trims = call.request.op == Op::kTrim;
  part->trim_sent = part->trim_sent || (trims && call.sent);
  if (creates && call.sent && !(answered && call.reason == Reason::kOk)) copies()->NotePerhaps(part->leg.replica_host);
  const absl::Status status = CallStatus(call, session->name());
  if (call.sent && !part->sends_raise && (!answered || call.reason == Reason::kOk || call.stored_pages > 0)) {
    PieceOf(*part)->may_change = true;
    PieceOf(*part)->change.NoteMayHold();
  }
  if (!answered) return JudgeUnansweredLeg(part, status);
  const uint64_t reserved_bytes = part->room.is_regions() ? part->room.bytes() : 0;
  const uint64_t used_bytes = std::min(call.used_bytes, reserved_bytes);
  const bool had_enough = part->room.bytes() >= part->wanted_room_bytes;
  const bool in_term = !part->room || part->room.term() == session->room()->term();
  if (!trims) engine_->EndRoom(part, call.used_bytes);
  // A page that was stored proves that the span is there.
  if (!trims && (call.reason == Reason::kOk || call.stored_pages > 0)) {
    copies()->NoteAnswered(SpanOf(*PieceOf(*part)), part->leg);
  }
  if (request().used_bytes != nullptr) *request().used_bytes += call.used_bytes;
  switch (call.reason) {
    case Reason::kOk:
      if (!trims && request().op == Op::kTrim && !PieceOf(*part)->raises_only) {
        // The span is there now.
        part->sends_raise = part->leg.creates = false;
        part->leg.known = CopyMap::Known::kCreated;
        return SendLeg(part);
      }
      return EndLeg(part, End::kStored, absl::OkStatus());
    case Reason::kUnknownRegion:
      // A server that is to create the region has no reason for this answer.
      if (creates && !map->key().named) return EndLeg(part, End::kRefused, absl::UnavailableError(status.message()));
      copies()->Bury(part->leg.replica_host);
      return EndLeg(part, End::kMissed, status);
    case Reason::kOtherGeneration:
      // If the span has not risen since, the server has freed its data, and may have the region again.
      if (!part->leg.creates && copies()->IsPresent(SpanOf(*PieceOf(*part)), part->leg)) {
        copies()->Bury(part->leg.replica_host);
        return EndLeg(part, End::kMissed, status);
      }
      return EndLeg(part, End::kOtherGeneration, status);
    case Reason::kStaleEpoch:
    case Reason::kNotOwner:
      map->NoteFenced();
      return EndLeg(part, End::kRefused, status, call.stored_pages);
    case Reason::kLeaseEnded:
      session->NoteLeaseEnded(part->times_up);
      return RetryLeg(part, status);
    case Reason::kFenced:
      session->Suspect();
      return RetryLeg(part, status);
    case Reason::kFull:
    case Reason::kDraining:
      if (!in_term) return RetryLeg(part, status);  // it had room of a former term, which paid for nothing
      if (!had_enough && map->has_reserved() && !repairs())
        return JudgeNoRoom(part, status, reserved_bytes - used_bytes);
      return JudgeNoRoom(part, part->room_unanswered ? NoRoomKnown(*session) : status, std::nullopt);
    case Reason::kDamaged:
      PieceOf(*part)->damaged = true;
      return EndLeg(part, End::kDamaged, status, call.stored_pages);
    default:
      return EndLeg(part, End::kRefused, status, call.stored_pages);
  }
}

// As OneCopyIo::JudgeShortOfReserved.
void CopiedIo::JudgeNoRoom(IoPart* part, const absl::Status& status, std::optional<uint64_t> unused_bytes) {
  using Reserved = RegionMap::Reserved;
  part->waiter.ticket = part->session->returns();
  const uint16_t server = part->session->index();
  switch (unused_bytes ? place().map->LookForReserved(server, *unused_bytes) : Reserved::kNoMore) {
    case Reserved::kMore:
      return RetryLeg(part, status);
    case Reserved::kLent:
      part->last = status;
      part->without_room = false;
      return engine_->WaitFor(part, Waiter::For::kReservedRoom, request().deadline_ns);
    case Reserved::kNoMore:
      break;
  }
  const Call& call = part->call;
  // Where the span is, the same request would need no room.
  const bool is_absent = request().op == Op::kTrim && (call.request.flags & kFlagCreate) != 0;
  if (is_absent) return EndLeg(part, CopiedChange::End::kAbsent, absl::OkStatus());
  return EndLeg(part, CopiedChange::End::kRefused, status, call.stored_pages);
}

bool CopiedIo::IsAnotherUsable(const IoPart& part) const {
  // A page that is damaged on one copy may be whole on this one, which is worth waiting for.
  if (PieceOf(part)->damaged) return false;
  for (const uint16_t server : copies()->ServersOf(SpanOf(*PieceOf(part)))) {
    if (server != part.leg.life.server && SessionAt(server)->usable()) return true;
  }
  return false;
}

void CopiedIo::RetryLeg(IoPart* part, const absl::Status& why) {
  part->last = why;
  part->without_room = false;
  // The copy is gone meanwhile: the change begins anew, or does without it.
  if (request().repair != RepairWork::kOpen &&
      !copies()->GetsChanges(SpanOf(*PieceOf(*part)), part->leg.replica_host)) {
    return EndLeg(part, CopiedChange::End::kMissed, why);
  }
  int64_t wait_ns = kMissNs;  // then it looks again: another copy may be back
  if (IsAnotherUsable(*part)) {
    const int64_t away_ns = part->session->AwayNs();
    if (away_ns >= kMissNs) return EndLeg(part, CopiedChange::End::kMissed, why);
    wait_ns -= away_ns;
  }
  engine_->WaitFor(part, Waiter::For::kConnection, std::min(request().deadline_ns, engine_->NowNs() + wait_ns));
}

void CopiedIo::ResumeLeg(IoPart* part) {
  using Outcome = Waiter::Outcome;
  using End = CopiedChange::End;
  if (part->waiter.outcome == Outcome::kGranted) part->room = std::move(part->waiter.grant);
  Piece* const piece = PieceOf(*part);
  if (!IsInTime()) {
    const std::string late = absl::StrCat("memory server ", part->session->name(), ": no answer in time");
    return EndLeg(part, End::kMissed, part->last.ok() ? absl::DeadlineExceededError(late) : part->last);
  }
  switch (part->waiter.outcome) {
    case Outcome::kLate:
      return RetryLeg(part, part->last);
    case Outcome::kNoAnswer:
      // Its data plane is well all the same: without room it may overwrite, or refuse, and the write does not wait for
      // it.
      if (part->session->usable() && IsAnotherUsable(*part)) {
        part->without_room = part->room_unanswered = true;
        break;
      }
      return RetryLeg(part, absl::UnavailableError(absl::StrCat("memory server ", part->session->name(),
                                                                " does not answer: no room can be reserved")));
    case Outcome::kAwayTooLong:
    case Outcome::kClosing:
      piece->gives_up = piece->gives_up || part->waiter.outcome == Outcome::kClosing || !IsAnotherUsable(*part);
      return EndLeg(part, End::kMissed, absl::UnavailableError(part->session->last_error().message()));
    case Outcome::kRefused:
      part->without_room = true;
      break;
    case Outcome::kUsable:
    case Outcome::kGranted:
      break;
  }
  // While the legs take their rooms, TakeRooms goes on with this one.
  if (piece->state == State::kLegs && PrepareLeg(part) == Prepared::kReady) SendLeg(part);
}

void CopiedIo::EndTrim(IoPart* part) {
  if (!std::exchange(part->trims, false)) return;
  const Call& call = part->call;
  const bool answered = call.request.op == Op::kTrim && call.is_done() && call.code == absl::StatusCode::kOk;
  RegionRoom::TrimEnd end{part->trim_sent, answered, std::nullopt};
  if (answered && call.reason == Reason::kOk) {
    end.kept_chunks = static_cast<uint32_t>(call.kept_bytes / kChunkBytes);
  }
  place().map->EndTrim(part->session->index(), part->session->room(), part->trim, end);
  part->session->NoteReturned();
}

void CopiedIo::EndLeg(IoPart* part, CopiedChange::End end, const absl::Status& status, uint32_t stored_pages) {
  Piece* const piece = PieceOf(*part);
  if (part->room) engine_->EndRoom(part, 0);
  EndTrim(part);
  if (request().op == Op::kTrim && end == CopiedChange::End::kStored) part->session->NoteFreed();
  if (!status.ok() && (piece->error.ok() || end == CopiedChange::End::kRefused || end == CopiedChange::End::kDamaged))
    piece->error = status;
  part->is_over = true;
  part->phase = IoPart::Phase::kFree;
  piece->change.Ended(part->leg.replica_host, end, stored_pages);
  --piece->legs_left;
}

}  // namespace nram
