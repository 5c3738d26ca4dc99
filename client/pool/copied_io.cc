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

// All chunks of all pages. Of a sealed page, all are written if any is.
bool IsWhole(const ChunkMask* masks, const ChunkRange& range, bool sealed) {
  if (masks == nullptr) return true;
  for (uint64_t i = 0; i < range.pages(); ++i) {
    if (sealed ? masks[i] == 0 : masks[i] != MaskOfPage(range, range.first_page() + i)) return false;
  }
  return true;
}

}  // namespace

CopiedIo::~CopiedIo() = default;  // an operation that has ended has no sealer

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
    confirmed_ = std::make_unique<std::byte[]>(kPiecesMax * kPageBytes);
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
    const uint64_t first = next_chunk_ / kChunksPerSpan;
    uint64_t span = copies()->NextSpan(first);
    if (seal() != nullptr) span = std::min(span, seal()->versions()->NextTold(first));
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
  piece->confirms = piece->waits_for_all = piece->is_sealed = piece->may_change = false;
  piece->deaths = 0;
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
  GiveSealer(piece);
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
  if (!trims && !IsWhole(part->call.masks, piece->range, seal() != nullptr)) piece->whole = {};
  bool lost = false;
  const uint64_t mark = seal() == nullptr ? 0 : seal()->versions()->mark();
  const CopyMap::SpanState state = copies()->Look(piece->range, &lost);
  if (lost && !trims) {
    // The rest of a lost page would be taken for all of it.
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
    if (loses) return End(piece, LostError()), false;
  }
  const ChunkRange all{SpanOf(*piece) * kChunksPerSpan, kChunksPerSpan};
  if (trims && !std::exchange(piece->waits_for_all, true) && copies()->UnplacesReserved(SpanOf(*piece))) {
    LeaveGate(piece);
    return Enter(piece, GatePlace::Kind::kChange, all, State::kBegin);
  }
  if (state == CopyMap::SpanState::kPlaced && !(trims && copies()->Unplace(SpanOf(*piece)))) {
    piece->change = CopiedChange(CopiedChange::Kind::kData);
    piece->state = State::kNext;
    return true;
  }
  if (trims) {
    copies()->NoteTrimmed(piece->whole);
    NoteVersions(piece, /*is_stored=*/true);
    if (state != CopyMap::SpanState::kLost) NoteHole(SpanOf(*piece) * kPagesPerSpan, kPagesPerSpan, mark);
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
  bool lost = false;
  const bool was_hole = copies()->Look(piece->range, &lost) == CopyMap::SpanState::kHole;
  // Another piece may have placed it meanwhile; then it is where that has put it.
  if (copies()->Place(span, lives) && was_hole && seal() != nullptr) seal()->versions()->NoteEmpty(span);
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
    if (NRAM_PLANTED(versions_told_after_gate)) LeaveGate(piece);
    NoteVersions(piece, kind == Kind::kStored);
    // A server that lies may let it die for ever.
    if (!died || repairs() || ++piece->deaths > kDeathsMax) return End(piece, status), false;
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
  for (const uint16_t replica_host : request().leaves) piece->change.Leave(replica_host);
  if (place().map->key().named) piece->change.SetShuts();
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

}  // namespace nram
