#include "client/pool/copied_io.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "base/zero_chunks.h"
#include "proto/price.h"

namespace nram {
namespace {

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
  return absl::DataLossError(absl::StrCat("all copies of a part of region ", FormatId(Raw(region)),
                                          " are lost: their servers have restarted, or freed them with the lease"));
}

absl::Status ChangedError(RegionId region) {
  return absl::UnavailableError(absl::StrCat("region ", FormatId(Raw(region)),
                                             " was attached read-only, and its owner ",
                                             "has moved or lost copies since: attach it again"));
}

}  // namespace

CopiedIo::~CopiedIo() = default;

void CopiedIo::Begin() {
  // A copy that catches up gets writes too.
  const size_t legs = std::min(copies()->copies() + 1, kReplicasMax);
  parts_per_piece_ = request().op == Op::kRead ? 1 : legs;
  piece_count_ = std::min(engine_->part_count() / parts_per_piece_, kPiecesMax);
  const ChunkRange& range = request().range;
  const bool is_one =
      range.count == 0 || is_of_span() || range.first / kChunksPerMessage == (range.end() - 1) / kChunksPerMessage;
  if (is_one) {
    piece_count_ = 1;
  } else {
    Prepare();
  }
  for (size_t i = 0; i < piece_count_; ++i) PieceAt(i)->index = i;
  if (place().map->key().reader == CopiesReader::kConfirms && confirmed_ == nullptr) {
    confirmed_ = std::make_unique<std::byte[]>(kPiecesMax * kChunkBytes);
  }
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
  uint64_t unit = is_of_span() ? kChunksPerSpan : kChunksPerMessage;
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
  piece->damaged_reads = 0;
  piece->bad.clear();
  piece->confirms = false;
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
  // Where the new owner was not heard of yet, a change is stored; it does not count.
  const bool is_fenced = status.ok() && request().op != Op::kRead && place().map->is_fenced();
  engine_->NoteStatus(is_fenced ? place().map->CheckUsable() : status);
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
  const bool passes = (NRAM_PLANTED(gate_passed) && kind == GatePlace::Kind::kChange) ||
                      (NRAM_PLANTED(copy_outside_gate) && request().repair == RepairWork::kCopy);
  if (passes) gate.range.count = 0;
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
  if (repairs()) return BeginRepair(piece);
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
        engine_->WaitForRoom(part, bytes);
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
  // Others may have room again before it is back.
  engine_->WaitFor(part, Waiter::For::kConnection, std::min(request().deadline_ns, engine_->NowNs() + kMissNs));
  return false;
}

void CopiedIo::ResumePlacing(Piece* piece, IoPart* part) {
  using Outcome = Waiter::Outcome;
  const bool is_late = !IsInTime();
  if (part->waiter.outcome == Outcome::kGranted) part->room = std::move(part->waiter.grant);
  if (is_late) {
    return End(piece,
               absl::DeadlineExceededError(
                   !piece->error.ok() ? piece->error.message()
                                      : absl::StrCat("memory server ", part->session->name(), ": no answer in time")));
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
    if (!died || repairs()) return End(piece, status), false;
    piece->state = State::kBegin;
    return true;
  }
  piece->settles = false;
  if (!status.ok() && !died) return End(piece, status), false;
  LeaveGate(piece);
  piece->tried.clear();
  piece->state = repairs() ? State::kEnter : State::kRead;
  return true;
}

bool CopiedIo::BeginRepair(Piece* piece) {
  piece->whole = {};
  if (!is_of_span()) {
    piece->tried.clear();
    piece->damaged_reads = 0;
    piece->state = State::kRead;
    return true;
  }
  piece->change = CopiedChange(request().repair == RepairWork::kOpen   ? CopiedChange::Kind::kOpen
                               : request().repair == RepairWork::kJoin ? CopiedChange::Kind::kJoin
                                                                       : CopiedChange::Kind::kSettle);
  if (request().copy.has_value()) piece->change.SetCopy(*request().copy);
  for (const uint16_t presence : request().leaves) piece->change.Leave(presence);
  piece->state = State::kNext;
  return true;
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
      return EndRead(piece);
    case CopyMap::ReadState::kLost:
      if (is_reader()) return End(piece, ChangedError(place().map->key().id)), false;
      // A page that is lost already needs no copy.
      return End(piece, repairs() && piece->range.pages() == 1 ? absl::OkStatus() : LostError(place().map->key().id)),
             false;
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
    if (SessionAt(leg.life.server)->usable()) chosen = &leg;
  }
  if (chosen == nullptr) chosen = untried;
  const bool all_tried = chosen == nullptr;
  if (all_tried && piece->confirms) return EndRead(piece);
  if (all_tried) {
    if (piece->damaged_reads >= legs.size()) return FailRead(piece, piece->error);
    piece->tried.clear();
    piece->damaged_reads = 0;
    chosen = &legs[first];
  }
  part->leg = *chosen;
  part->session = SessionAt(chosen->life.server);
  part->life = part->session->life();
  if (part->life->incarnation != chosen->life.incarnation) {
    if (is_reader()) return End(piece, ChangedError(place().map->key().id)), false;
    copies()->Bury(chosen->presence);
    return true;
  }
  piece->state = State::kReading;
  if (all_tried) {
    // Another copy may come back before this one.
    engine_->WaitFor(part, Waiter::For::kConnection, std::min(request().deadline_ns, engine_->NowNs() + kMissNs));
    return false;
  }
  piece->tried.push_back(chosen->presence);
  const RegionKey& key = place().map->key();
  const ChunkRange range = piece->confirms ? ChunkRange{piece->range.first, 1} : piece->range;
  if (piece->confirms) part->call.in = &confirmed_[piece->index * kChunkBytes];
  part->call.request = MessageHeader(
      ReadRequest{.region = key.id, .range = range, .epoch = key.epoch, .span_generation = chosen->generation});
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
    // One that cannot be asked may know better.
    if (piece->confirms) return End(piece, absl::UnavailableError(status.message()));
    const bool is_garbled = call.code == absl::StatusCode::kDataLoss;
    if (is_garbled) NoteBad(piece, part->leg.presence);
    if (is_garbled && ++piece->garbled < kGarbledMax) piece->error = absl::UnavailableError(status.message());
    if (!IsInTime()) return End(piece, piece->error);
    if (piece->garbled >= kGarbledMax) (void)FailRead(piece, piece->error);
    return;
  }
  switch (call.reason) {
    case Reason::kOk:
      if (is_reader()) {
        (void)Confirm(piece);
      } else if (LookAtRead(piece)) {
        (void)EndRead(piece);
      }
      return;
    case Reason::kUnknownRegion:
    case Reason::kOtherGeneration:
      if (is_reader()) {
        End(piece, ChangedError(place().map->key().id));
      } else if (!copies()->Confirms(SpanOf(*piece), part->leg)) {
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
    case Reason::kStaleEpoch:
      return End(piece, is_reader() ? ChangedError(place().map->key().id) : status);
    case Reason::kDamaged:
      if (piece->confirms) return;  // it has the generation
      piece->error = status;
      ++piece->damaged_reads;
      NoteBad(piece, part->leg.presence);
      return;
    default:
      return End(piece, status);
  }
}

bool CopiedIo::Confirm(Piece* piece) {
  if (place().map->key().reader == CopiesReader::kPinned) return EndRead(piece);
  // Those that were tried before did not answer: they are asked again.
  if (!std::exchange(piece->confirms, true)) piece->tried = {PartOf(*piece, 0)->leg.presence};
  return true;
}

bool CopiedIo::EndRead(Piece* piece) {
  const RepairWork repair = request().repair;
  if (repair == RepairWork::kNone) {
    // What came garbled may be damaged where it is stored.
    if (piece->damaged_reads > 0 || piece->garbled > 0) copies()->NoteDamaged(piece->range.first / kChunksPerMessage);
    return End(piece, absl::OkStatus()), false;
  }
  bool has_chunks = repair == RepairWork::kMend;
  const std::byte* const data = PartOf(*piece, 0)->call.in;
  for (uint64_t i = 0; repair == RepairWork::kCopy && i < piece->range.pages(); ++i) {
    ChunkMask* const found = request().found + (piece->range.first_page() + i - request().range.first_page());
    *found = NonZero(data + i * kPageBytes, kAllChunks);
    has_chunks = has_chunks || *found != 0;
  }
  if (!has_chunks) return End(piece, absl::OkStatus()), false;
  piece->change = CopiedChange(repair == RepairWork::kCopy ? CopiedChange::Kind::kCopy : CopiedChange::Kind::kData);
  piece->state = State::kNext;
  return true;
}

void CopiedIo::NoteBad(Piece* piece, uint16_t presence) {
  if (!absl::c_linear_search(piece->bad, presence)) piece->bad.push_back(presence);
}

bool CopiedIo::FailRead(Piece* piece, const absl::Status& why) {
  const bool is_one = piece->range.pages() == 1;
  if (request().repair != RepairWork::kCopy || !is_one) return End(piece, why), false;
  CopyMap::Legs legs;
  bool unsettled = false;
  (void)copies()->LookForRead(piece->range, &legs, &unsettled);
  const bool all_bad =
      absl::c_all_of(legs, [&](const CopyMap::Leg& leg) { return absl::c_linear_search(piece->bad, leg.presence); });
  // One that could not be asked may have it.
  if (!all_bad) return End(piece, absl::UnavailableError(why.message())), false;
  // The next owner of a region with a name would take it for a hole: there the copy does not join.
  if (place().map->key().named) return End(piece, why), false;
  copies()->NoteLostPage(piece->range.first_page());
  return End(piece, absl::OkStatus()), false;
}

// True: what was read counts. Else the piece reads again, with a place in the gate if the pages are being changed.
bool CopiedIo::LookAtRead(Piece* piece) {
  const IoPart& part = *PartOf(*piece, 0);
  if (!piece->in_gate && !NRAM_PLANTED(read_not_confirmed) &&
      place().gate->IsChanging(place().map->key().id, piece->range)) {
    piece->tried.clear();
    (void)Enter(piece, GatePlace::Kind::kLook, piece->range, State::kRead);
    return false;
  }
  if (copies()->Confirms(SpanOf(*piece), part.leg) || NRAM_PLANTED(read_not_confirmed)) return true;
  piece->tried.clear();
  return false;
}

// Some copy that a read may ask can be asked now.
bool CopiedIo::IsReadable(const Piece& piece) const {
  CopyMap::Legs legs;
  bool unsettled = false;
  if (copies()->LookForRead(piece.range, &legs, &unsettled) != CopyMap::ReadState::kPlaced) return true;
  return absl::c_any_of(legs, [&](const CopyMap::Leg& leg) { return SessionAt(leg.life.server)->usable(); });
}

void CopiedIo::ResumeRead(Piece* piece, IoPart* part) {
  using Outcome = Waiter::Outcome;
  piece->state = State::kRead;
  if (!IsInTime()) {
    return End(piece,
               absl::DeadlineExceededError(
                   piece->error.ok() ? absl::StrCat("memory server ", part->session->name(), ": no answer in time")
                                     : piece->error.message()));
  }
  if (part->waiter.outcome == Outcome::kAwayTooLong && !IsReadable(*piece)) {
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
