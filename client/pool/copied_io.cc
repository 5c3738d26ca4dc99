#include "client/pool/copied_io.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "proto/price.h"

namespace nram {
namespace {

// A write of nothing, which raises a span's generation.
constexpr ChunkMask kNoChunks[1] = {0};

CopyMap::WholePages WholePagesOf(const ChunkRange& range) {
  return {(range.first + kChunksPerPage - 1) / kChunksPerPage, range.end() / kChunksPerPage};
}

// All chunks of all pages.
bool IsWhole(const ChunkMask* masks, const ChunkRange& range) {
  if (masks == nullptr) return true;
  for (uint64_t i = 0; i < range.pages(); ++i) {
    if (masks[i] != MaskOfPage(range, range.first_page() + i)) return false;
  }
  return true;
}

absl::Status LostError(RegionId region) {
  return absl::DataLossError(
      absl::StrCat("all copies of a part of region ", FormatId(Raw(region)), " are lost: their servers have restarted"));
}

bool IsUsable(const ServerSession& session) {
  const ServerLife* const life = session.life();
  return session.up() && life != nullptr && life->connected();
}

}  // namespace

CopiedIo::~CopiedIo() = default;

void CopiedIo::Begin() {
  // A copy that catches up gets writes too.
  const size_t legs = std::min(copies()->copies() + 1, kReplicasMax);
  parts_per_piece_ = request().op == Op::kRead ? 1 : legs;
  piece_count_ = std::min(engine_->part_count() / parts_per_piece_, kPiecesMax);
  const ChunkRange& range = request().range;
  const bool is_one = range.count == 0 || range.first / kChunksPerMessage == (range.end() - 1) / kChunksPerMessage;
  if (is_one) {
    piece_count_ = 1;
  } else if (more_ == nullptr) {
    more_ = std::make_unique<Piece[]>(kPiecesMax - 1);
  }
  for (size_t i = 0; i < piece_count_; ++i) PieceAt(i)->index = i;
  next_chunk_ = range.first;
  busy_ = next_piece_ = 0;
}

void CopiedIo::LaunchAll() {
  while (engine_->status().ok() && next_chunk_ < request().range.end()) {
    Piece* const piece = PieceAt(next_piece_);
    if (piece->state != State::kFree || !Claim(piece)) return;
    next_piece_ = (next_piece_ + 1) % piece_count_;
    Drive(piece);
  }
}

// Takes the next piece. False: there is none.
bool CopiedIo::Claim(Piece* piece) {
  const uint64_t end = request().range.end();
  uint64_t unit = kChunksPerMessage;
  if (request().op == Op::kTrim) {
    unit = kChunksPerSpan;
    // Holes need no trim.
    const uint64_t span = copies()->NextSpan(next_chunk_ / kChunksPerSpan);
    if (span == UINT64_MAX || span * kChunksPerSpan >= end) {
      next_chunk_ = end;
      return false;
    }
    next_chunk_ = std::max(next_chunk_, span * kChunksPerSpan);
  }
  piece->range = {next_chunk_, std::min((next_chunk_ / unit + 1) * unit, end) - next_chunk_};
  next_chunk_ = piece->range.end();
  ++busy_;
  piece->state = request().op == Op::kRead ? State::kRead : State::kEnter;
  piece->damaged = piece->in_gate = piece->awaits_gate = piece->gives_up = piece->settles = piece->raises_only = false;
  piece->legs.clear();
  piece->legs_sent = piece->leg_count = piece->next_leg = piece->legs_left = 0;
  piece->chosen = SpanPlacement();
  piece->search.Reset();
  piece->tried.clear();
  piece->garbled = 0;
  piece->error = absl::OkStatus();
  return true;
}

void CopiedIo::Drive(Piece* piece) {
  bool goes_on = true;
  while (goes_on && !piece->awaits_gate) {
    switch (piece->state) {
      case State::kEnter:
        goes_on = Enter(piece, GatePlace::Kind::kChange, piece->range, State::kBegin);
        break;
      case State::kBegin:
        goes_on = BeginChange(piece);
        break;
      case State::kPlace:
        goes_on = Place(piece);
        break;
      case State::kNext:
        goes_on = Next(piece);
        break;
      case State::kRoom:
        goes_on = TakeRooms(piece);
        break;
      case State::kLegs:
        if (piece->legs_left > 0) return;
        if (piece->legs_sent < piece->legs.size()) {
          AssignLegs(piece);
        } else {
          piece->state = State::kNext;
        }
        break;
      case State::kRead:
        goes_on = Read(piece);
        break;
      case State::kFree:
      case State::kReading:
        return;
    }
  }
}

void CopiedIo::End(Piece* piece, const absl::Status& status) {
  ReleaseRooms(piece);
  LeaveGate(piece);
  engine_->NoteStatus(status);
  piece->error = absl::OkStatus();
  piece->state = State::kFree;
  --busy_;
}

// --- The gate.

bool CopiedIo::Enter(Piece* piece, GatePlace::Kind kind, const ChunkRange& range, State then) {
  GatePlace& gate = piece->gate;
  gate.kind = kind;
  gate.region = place().map->key().id;
  gate.range = range;
  gate.deadline_ns = request().deadline_ns;
  IoPart* const part = PartOf(*piece, 0);
  gate.context = part;
  gate.resume = [](GatePlace* place) { IoEngine::OnEvent(static_cast<IoPart*>(place->context)); };
  piece->state = then;
  // Before it enters: it may be resumed before Enter returns.
  piece->awaits_gate = true;
  part->phase = IoPart::Phase::kWaiting;
  if (!place().gate->Enter(&gate)) return false;
  part->phase = IoPart::Phase::kFree;
  piece->awaits_gate = false;
  piece->in_gate = true;
  return true;
}

void CopiedIo::LeaveGate(Piece* piece) {
  if (std::exchange(piece->in_gate, false)) place().gate->Leave(&piece->gate);
}

bool CopiedIo::Cancel(IoPart* part) {
  Piece* const piece = PieceOf(*part);
  if (!piece->awaits_gate) {
    if (!part->session->Cancel(&part->waiter)) return false;
    part->waiter.outcome = Waiter::Outcome::kLate;
    return true;
  }
  if (!place().gate->Cancel(&piece->gate)) return false;
  piece->gate.outcome = GatePlace::Outcome::kLate;
  return true;
}

// --- A change.

bool CopiedIo::BeginChange(Piece* piece) {
  if (absl::Status status = place().map->CheckUsable(); !status.ok()) return End(piece, status), false;
  const bool trims = request().op == Op::kTrim;
  IoPart* const part = PartOf(*piece, 0);
  if (!trims) engine_->SetData(part, piece->range);
  piece->whole = WholePagesOf(piece->range);
  if (!trims && !IsWhole(part->call.masks, piece->range)) piece->whole = {};
  bool lost = false;
  const CopyMap::SpanState state = copies()->Look(piece->range, &lost);
  if (lost && !trims) {
    // What is left of a lost page would be taken for all of it.
    const CopyMap::WholePages& whole = piece->whole;
    const bool covers = whole.first < whole.end;
    bool loses = !covers;
    for (const ChunkRange& edge :
         {ChunkRange{piece->range.first, whole.first * kChunksPerPage - piece->range.first},
          ChunkRange{whole.end * kChunksPerPage, piece->range.end() - whole.end * kChunksPerPage}}) {
      if (!covers || edge.count == 0) continue;
      bool edge_lost = false;
      (void)copies()->Look(edge, &edge_lost);
      loses = loses || edge_lost;
    }
    if (loses) return End(piece, LostError(place().map->key().id)), false;
  }
  if (state == CopyMap::SpanState::kPlaced && !(trims && copies()->Unplace(SpanOf(*piece)))) {
    piece->change = CopiedChange(CopiedChange::Kind::kData);
    piece->state = State::kNext;
    return true;
  }
  if (trims) {
    copies()->NoteTrimmed(piece->whole);
    return End(piece, absl::OkStatus()), false;
  }
  piece->state = State::kPlace;
  return true;
}

bool CopiedIo::Place(Piece* piece) {
  const uint64_t bytes = PriceOfWrite(piece->range.pages(), /*creates_region=*/true);
  const uint64_t span = SpanOf(*piece);
  while (true) {
    if (!piece->chosen.placed()) {
      piece->chosen = piece->search.ChooseCopies(*place().sessions, *place().map, span);
      piece->leg_count = 0;
      while (piece->leg_count < kReplicasMax && piece->chosen.servers[piece->leg_count] != kNoServer) {
        PartOf(*piece, piece->leg_count)->session = SessionAt(piece->chosen.servers[piece->leg_count]);
        ++piece->leg_count;
      }
      if (piece->leg_count == 0) return FailToPlace(piece);
    }
    bool rechoose = false;
    for (size_t leg = 0; leg < piece->leg_count && !rechoose; ++leg) {
      IoPart* const part = PartOf(*piece, leg);
      if (part->room) continue;
      part->room = part->session->TryTakeRoom(bytes);
      if (part->room) continue;
      if (!part->session->refused()) {
        part->waiter.room_bytes = bytes;
        engine_->WaitFor(part, Waiter::For::kRoom, request().deadline_ns);
        return false;
      }
      piece->search.NoteFull(*part->session);
      rechoose = true;
    }
    if (!rechoose) break;
    ReleaseRooms(piece);
    piece->chosen = SpanPlacement();
  }
  absl::InlinedVector<CopyMap::Life, kReplicasMax> lives;
  for (size_t leg = 0; leg < piece->leg_count; ++leg) {
    const ServerSession& session = *PartOf(*piece, leg)->session;
    lives.push_back({session.index(), session.incarnation()});
  }
  // Another piece may have placed it meanwhile; then it is where that has put it.
  (void)copies()->Place(span, lives);
  piece->search.Reset();
  piece->change = CopiedChange(CopiedChange::Kind::kData);
  piece->state = State::kNext;
  return true;
}

bool CopiedIo::FailToPlace(Piece* piece) {
  absl::Status why;
  IoPart* const part = PartOf(*piece, 0);
  part->session = piece->search.Survey(*place().sessions, PriceOfWrite(piece->range.pages(), true), &why);
  piece->search.Reset();
  if (part->session == nullptr) return End(piece, why), false;
  piece->error = absl::UnavailableError(absl::StrCat("memory server ", part->session->name(), " does not answer"));
  engine_->WaitFor(part, Waiter::For::kConnection, request().deadline_ns);
  return false;
}

void CopiedIo::ResumePlacing(Piece* piece, IoPart* part) {
  using Outcome = Waiter::Outcome;
  const bool is_late = part->waiter.outcome == Outcome::kLate || !IsInTime();
  if (part->waiter.outcome == Outcome::kGranted) part->room = std::move(part->waiter.grant);
  if (is_late) {
    return End(piece, absl::DeadlineExceededError(
                          !piece->error.ok() ? piece->error.message()
                                             : absl::StrCat("memory server ", part->session->name(),
                                                            ": no answer in time")));
  }
  switch (part->waiter.outcome) {
    case Outcome::kGranted:
      return;
    case Outcome::kRefused:
      piece->search.NoteFull(*part->session);
      break;
    case Outcome::kNoAnswer:
      piece->search.NoteNoAnswer(*part->session);
      break;
    case Outcome::kAwayTooLong:
      return End(piece, absl::UnavailableError(part->session->last_error().message()));
    case Outcome::kClosing:
      return End(piece, absl::UnavailableError("the pool is being closed"));
    case Outcome::kUsable:
    case Outcome::kLate:
      break;
  }
  ReleaseRooms(piece);
  piece->chosen = SpanPlacement();
}

bool CopiedIo::Next(Piece* piece) {
  piece->legs.clear();
  piece->legs_sent = 0;
  const CopiedChange::Step step =
      copies()->Next(SpanOf(*piece), &piece->change, IsInTime() && !piece->gives_up, piece->whole, &piece->legs);
  if (step.kind != CopiedChange::Step::Kind::kSend) return EndChange(piece, step.kind);
  piece->raises_only = step.raises_only;
  AssignLegs(piece);
  return true;
}

bool CopiedIo::EndChange(Piece* piece, CopiedChange::Step::Kind kind) {
  using Kind = CopiedChange::Step::Kind;
  absl::Status status;
  bool died = false;  // all copies did, meanwhile
  if (kind == Kind::kRefused) {
    status = piece->error;
  } else if (kind == Kind::kUnanswered) {
    const absl::string_view why = piece->error.ok() ? "no copy was written in time" : piece->error.message();
    died = IsInTime() && !piece->gives_up;
    status = IsInTime() ? absl::UnavailableError(why) : absl::DeadlineExceededError(why);
  }
  if (!piece->settles) {
    if (!died) return End(piece, status), false;
    piece->state = State::kBegin;
    return true;
  }
  piece->settles = false;
  if (!status.ok() && !died) return End(piece, status), false;
  LeaveGate(piece);
  piece->tried.clear();
  piece->state = State::kRead;
  return true;
}

// --- Legs.

void CopiedIo::ReleaseRooms(Piece* piece) {
  for (size_t leg = 0; leg < parts_per_piece_; ++leg) {
    IoPart* const part = PartOf(*piece, leg);
    if (part->room) engine_->EndRoom(part, 0);
  }
}

// Gives parts to the legs that are next.
void CopiedIo::AssignLegs(Piece* piece) {
  piece->state = State::kRoom;
  // What was granted for a new span stays with its server, if that is one of the legs.
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
    part->without_room = false;
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
    copies()->Bury(part->leg.presence);
    EndLeg(part, CopiedChange::End::kMissed, absl::OkStatus());
    return Prepared::kOver;
  }
  copies()->Refresh(SpanOf(piece), &part->leg);
  const bool creates = part->leg.known != CopyMap::Known::kCreated;
  const bool trims = request().op == Op::kTrim;
  // A trim creates nothing; where nobody knows that the span is there, it is created first.
  if (trims && part->leg.creates) part->sends_raise = true;
  if (part->sends_raise) return part->leg.creates ? TakeRoom(part, PriceOfWrite(1, creates)) : Prepared::kReady;
  return trims ? Prepared::kReady : TakeRoom(part, PriceOfWrite(piece.range.pages(), creates));
}

CopiedIo::Prepared CopiedIo::TakeRoom(IoPart* part, uint64_t bytes) {
  ServerSession* const session = part->session;
  RegionMap* const map = place().map;
  part->wanted_room_bytes = bytes;
  if (!part->room && map->has_room()) {
    part->room = map->TakeReserved(session->index(), session->room(), bytes, bytes);
  }
  if (!part->room) part->room = session->TryTakeRoom(bytes);
  if (!part->room && !part->without_room && !session->refused()) {
    part->waiter.room_bytes = bytes;
    engine_->WaitFor(part, Waiter::For::kRoom, request().deadline_ns);
    return Prepared::kWaits;
  }
  // Without room it may still overwrite what is there, and room for what is not may be reserved; the server knows.
  if (!part->room && map->has_room()) part->room = map->TakeReserved(session->index(), session->room(), 1, bytes);
  return Prepared::kReady;
}

void CopiedIo::SendLeg(IoPart* part) {
  const Piece& piece = *PieceOf(*part);
  RegionMap* const map = place().map;
  const RegionKey& key = map->key();
  Call& call = part->call;
  copies()->Refresh(SpanOf(piece), &part->leg);  // another leg may have waited for its room
  if (!part->life->connected()) {
    engine_->EndRoom(part, 0);
    return RetryLeg(part, absl::UnavailableError(
                              absl::StrCat("memory server ", part->session->name(), ": a connection is down")));
  }
  if (request().op == Op::kTrim && !part->sends_raise) {
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
    if (map->has_reserved()) flags |= kFlagWholeFrames;
    const ChunkRange range = part->sends_raise ? ChunkRange{piece.range.first, 1} : piece.range;
    call.request = MessageHeader(WriteRequest{.region = key.id,
                                              .range = range,
                                              .epoch = key.epoch,
                                              .span_generation = part->leg.generation,
                                              .grant_bytes = part->room.bytes()},
                                 flags);
    if (part->sends_raise) {
      call.masks = kNoChunks;
    } else {
      engine_->SetData(part, piece.range);
    }
  }
  part->times_up = part->session->times_up();
  engine_->StartCall(part);
}

void CopiedIo::Judge(IoPart* part) {
  Piece* const piece = PieceOf(*part);
  part->phase = IoPart::Phase::kFree;
  if (piece->state == State::kReading) {
    JudgeRead(piece, part);
  } else {
    JudgeLeg(part);
  }
  Drive(piece);
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
  if (creates && call.sent && !(answered && call.reason == Reason::kOk)) copies()->NotePerhaps(part->leg.presence);
  const absl::Status status = CallStatus(call, session->name());
  if (!answered) {
    // What was used is unknown.
    if (!trims) engine_->EndRoom(part, call.sent && !part->room.is_regions() ? part->room.bytes() : 0);
    session->Suspect();
    if (call.code == absl::StatusCode::kDeadlineExceeded) session->NoteSilence();
    if (call.code == absl::StatusCode::kUnavailable || call.code == absl::StatusCode::kDataLoss) {
      return RetryLeg(part, status);
    }
    return EndLeg(part, End::kMissed, status);
  }
  const uint64_t reserved_bytes = part->room.is_regions() ? part->room.bytes() : 0;
  const uint64_t used_bytes = std::min(call.used_bytes, reserved_bytes);
  const bool had_enough = part->room.bytes() >= part->wanted_room_bytes;
  const bool in_term = !part->room || part->room.term() == session->room()->term();
  if (!trims) engine_->EndRoom(part, call.used_bytes);
  // A page that was stored proves that the span is there.
  if (!trims && call.stored_pages > 0) copies()->NoteAnswered(SpanOf(*PieceOf(*part)), part->leg.presence);
  switch (call.reason) {
    case Reason::kOk:
      if (!trims) copies()->NoteAnswered(SpanOf(*PieceOf(*part)), part->leg.presence);
      if (!trims && request().op == Op::kTrim && !PieceOf(*part)->raises_only) {
        // The span is there now.
        part->sends_raise = part->leg.creates = false;
        part->leg.known = CopyMap::Known::kCreated;
        return SendLeg(part);
      }
      return EndLeg(part, End::kStored, absl::OkStatus());
    case Reason::kUnknownRegion:
      copies()->Bury(part->leg.presence);
      return EndLeg(part, End::kMissed, status);
    case Reason::kOtherGeneration:
      // If the span has not risen since, the server has freed what it had, and may have the region again.
      if (!part->leg.creates && copies()->IsPresent(SpanOf(*PieceOf(*part)), part->leg)) {
        copies()->Bury(part->leg.presence);
        return EndLeg(part, End::kMissed, status);
      }
      return EndLeg(part, End::kOtherGeneration, status);
    case Reason::kLeaseEnded:
      session->NoteLeaseEnded(part->times_up);
      return RetryLeg(part, status);
    case Reason::kFenced:
      session->Suspect();
      return RetryLeg(part, status);
    case Reason::kFull:
    case Reason::kDraining:
      if (!in_term) return RetryLeg(part, status);  // it had room of a former term, which paid for nothing
      if (!had_enough && map->has_reserved()) return JudgeNoRoom(part, status, reserved_bytes - used_bytes);
      return EndLeg(part, End::kRefused, status, call.stored_pages);
    case Reason::kDamaged:
      PieceOf(*part)->damaged = true;
      return EndLeg(part, End::kDamaged, status, call.stored_pages);
    default:
      return EndLeg(part, End::kRefused, status, call.stored_pages);
  }
}

// As OneCopyIo::JudgeShortOfReserved.
void CopiedIo::JudgeNoRoom(IoPart* part, const absl::Status& status, uint64_t unused_bytes) {
  part->waiter.ticket = part->session->returns();
  switch (place().map->LookForReserved(part->session->index(), unused_bytes)) {
    case RegionMap::Reserved::kMore:
      return RetryLeg(part, status);
    case RegionMap::Reserved::kLent:
      part->last = status;
      part->without_room = false;
      return engine_->WaitFor(part, Waiter::For::kReservedRoom, request().deadline_ns);
    case RegionMap::Reserved::kNoMore:
      return EndLeg(part, CopiedChange::End::kRefused, status, part->call.stored_pages);
  }
}

bool CopiedIo::IsAnotherUsable(const IoPart& part) const {
  // What is damaged on one copy may be whole on this one, which is worth waiting for.
  if (PieceOf(part)->damaged) return false;
  for (const uint16_t server : copies()->ServersOf(SpanOf(*PieceOf(part)))) {
    if (server != part.leg.life.server && IsUsable(*SessionAt(server))) return true;
  }
  return false;
}

void CopiedIo::RetryLeg(IoPart* part, const absl::Status& why) {
  part->last = why;
  part->without_room = false;
  int64_t deadline_ns = request().deadline_ns;
  if (IsAnotherUsable(*part)) {
    const int64_t away_ns = part->session->AwayNs();
    if (away_ns >= kMissNs) return EndLeg(part, CopiedChange::End::kMissed, why);
    deadline_ns = std::min(deadline_ns, engine_->NowNs() + kMissNs - away_ns);
  }
  engine_->WaitFor(part, Waiter::For::kConnection, deadline_ns);
}

void CopiedIo::ResumeLeg(IoPart* part) {
  using Outcome = Waiter::Outcome;
  using End = CopiedChange::End;
  if (part->waiter.outcome == Outcome::kGranted) part->room = std::move(part->waiter.grant);
  Piece* const piece = PieceOf(*part);
  if (!IsInTime()) return EndLeg(part, End::kMissed, part->last.ok() ? absl::DeadlineExceededError("late") : part->last);
  switch (part->waiter.outcome) {
    case Outcome::kLate:
      return RetryLeg(part, part->last);
    case Outcome::kNoAnswer:
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
  if (!status.ok() && (piece->error.ok() || end == CopiedChange::End::kRefused || end == CopiedChange::End::kDamaged)) piece->error = status;
  part->is_over = true;
  part->phase = IoPart::Phase::kFree;
  piece->change.Ended(part->leg.presence, end, stored_pages);
  --piece->legs_left;
}

void CopiedIo::Resume(IoPart* part) {
  Piece* const piece = PieceOf(*part);
  part->phase = IoPart::Phase::kFree;
  if (std::exchange(piece->awaits_gate, false)) {
    piece->in_gate = piece->gate.outcome == GatePlace::Outcome::kIn;
    if (!piece->in_gate) {
      return End(piece, absl::DeadlineExceededError("an earlier change of the same pages has not ended in time"));
    }
  } else if (piece->state == State::kPlace) {
    ResumePlacing(piece, part);
  } else if (piece->state == State::kReading) {
    ResumeRead(piece, part);
  } else {
    ResumeLeg(part);
    if (part->phase != IoPart::Phase::kFree) return;
  }
  Drive(piece);
}

// --- A read.

bool CopiedIo::Read(Piece* piece) {
  if (absl::Status status = place().map->CheckUsable(); !status.ok()) return End(piece, status), false;
  IoPart* const part = PartOf(*piece, 0);
  engine_->SetData(part, piece->range);
  CopyMap::Legs legs;
  switch (copies()->LookForRead(piece->range, &legs, &piece->unsettled)) {
    case CopyMap::ReadState::kHole:
      memset(part->call.in, 0, piece->range.bytes());
      return End(piece, absl::OkStatus()), false;
    case CopyMap::ReadState::kLost:
      return End(piece, LostError(place().map->key().id)), false;
    case CopyMap::ReadState::kDoubtful:
      return Settle(piece);
    case CopyMap::ReadState::kPlaced:
      break;
  }
  // Neighbouring blocks are read from the same copy, and streams from all.
  const size_t first = piece->range.first / kChunksPerMessage % legs.size();
  const CopyMap::Leg* chosen = nullptr;
  const CopyMap::Leg* untried = nullptr;
  for (size_t i = 0; i < legs.size() && chosen == nullptr; ++i) {
    const CopyMap::Leg& leg = legs[(first + i) % legs.size()];
    if (absl::c_linear_search(piece->tried, leg.presence)) continue;
    if (untried == nullptr) untried = &leg;
    if (IsUsable(*SessionAt(leg.life.server))) chosen = &leg;
  }
  if (chosen == nullptr) chosen = untried;
  const bool all_tried = chosen == nullptr;
  if (all_tried) {
    if (absl::IsDataLoss(piece->error)) return End(piece, piece->error), false;
    piece->tried.clear();
    chosen = &legs[first];
  }
  part->leg = *chosen;
  part->session = SessionAt(chosen->life.server);
  part->life = part->session->life();
  if (part->life->incarnation != chosen->life.incarnation) {
    copies()->Bury(chosen->presence);
    return true;
  }
  piece->state = State::kReading;
  if (all_tried) {
    engine_->WaitFor(part, Waiter::For::kConnection, request().deadline_ns);
    return false;
  }
  piece->tried.push_back(chosen->presence);
  const RegionKey& key = place().map->key();
  part->call.request = MessageHeader(ReadRequest{
      .region = key.id, .range = piece->range, .epoch = key.epoch, .span_generation = chosen->generation});
  part->times_up = part->session->times_up();
  engine_->StartCall(part);
  return false;
}

void CopiedIo::JudgeRead(Piece* piece, IoPart* part) {
  const Call& call = part->call;
  ServerSession* const session = part->session;
  const absl::Status status = CallStatus(call, session->name());
  piece->state = State::kRead;
  if (call.code != absl::StatusCode::kOk) {
    session->Suspect();
    if (call.code == absl::StatusCode::kDeadlineExceeded) session->NoteSilence();
    piece->error = status;
    const bool is_garbled = call.code == absl::StatusCode::kDataLoss;
    if (is_garbled && ++piece->garbled < kGarbledMax) piece->error = absl::UnavailableError(status.message());
    if (!IsInTime() || piece->garbled >= kGarbledMax) End(piece, piece->error);
    return;
  }
  switch (call.reason) {
    case Reason::kOk:
      if (LookAtRead(piece)) End(piece, absl::OkStatus());
      return;
    case Reason::kUnknownRegion:
    case Reason::kOtherGeneration:
      if (!copies()->Confirms(SpanOf(*piece), part->leg)) {
        piece->tried.clear();
      } else if (piece->unsettled) {
        (void)Settle(piece);
      } else {
        // The server has freed what it had of the region, and may have it again for other spans.
        copies()->Bury(part->leg.presence);
      }
      return;
    case Reason::kLeaseEnded:
      session->NoteLeaseEnded(part->times_up);
      piece->error = status;
      return;
    case Reason::kFenced:
      session->Suspect();
      piece->error = status;
      return;
    case Reason::kDamaged:
      piece->error = status;
      return;
    default:
      return End(piece, status);
  }
}

// True: what was read counts. Else the piece reads again, with a place in the gate if the pages are being changed.
bool CopiedIo::LookAtRead(Piece* piece) {
  const IoPart& part = *PartOf(*piece, 0);
  if (!piece->in_gate && place().gate->IsChanging(place().map->key().id, piece->range)) {
    piece->tried.clear();
    (void)Enter(piece, GatePlace::Kind::kLook, piece->range, State::kRead);
    return false;
  }
  if (copies()->Confirms(SpanOf(*piece), part.leg)) return true;
  piece->tried.clear();
  return false;
}

void CopiedIo::ResumeRead(Piece* piece, IoPart* part) {
  using Outcome = Waiter::Outcome;
  piece->state = State::kRead;
  if (part->waiter.outcome == Outcome::kLate || !IsInTime()) {
    return End(piece, absl::DeadlineExceededError(
                          piece->error.ok() ? absl::StrCat("memory server ", part->session->name(), ": no answer in time")
                                            : piece->error.message()));
  }
  if (part->waiter.outcome == Outcome::kAwayTooLong) {
    return End(piece, absl::UnavailableError(part->session->last_error().message()));
  }
  if (part->waiter.outcome == Outcome::kClosing) End(piece, absl::UnavailableError("the pool is being closed"));
}

bool CopiedIo::Settle(Piece* piece) {
  LeaveGate(piece);
  piece->settles = true;
  piece->whole = {};
  piece->change = CopiedChange(CopiedChange::Kind::kSettle);
  return Enter(piece, GatePlace::Kind::kChange, {SpanOf(*piece) * kChunksPerSpan, kChunksPerSpan}, State::kNext);
}

}  // namespace nram
