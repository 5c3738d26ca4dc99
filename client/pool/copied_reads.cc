// A piece of a read: it asks one copy after the other, and checks at the end whether its data counts.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "base/zero_chunks.h"
#include "client/pool/copied_io.h"

namespace nram {

absl::Status CopiedIo::LostError() const {
  return absl::DataLossError(absl::StrCat("all copies of a part of region ", FormatId(Raw(place().map->key().id)),
                                          " are lost: their servers have restarted, or freed them with the lease"));
}

absl::Status CopiedIo::ChangedError() const {
  return absl::UnavailableError(absl::StrCat(
      "region ", FormatId(Raw(place().map->key().id)),
      " was attached read-only, and its owner has changed, moved or lost copies since: ", "attach it again"));
}

absl::Status CopiedIo::GoneError() const {
  const RegionKey& key = place().map->key();
  return absl::DataLossError(
      absl::StrCat("version ", Raw(key.version), " of region ", FormatId(Raw(key.id)), " is gone on all its servers"));
}

bool CopiedIo::Read(Piece* piece) {
  if (absl::Status status = place().map->CheckUsable(); !status.ok()) return End(piece, status), false;
  IoPart* const part = PartOf(*piece, 0);
  engine_->SetData(part, piece->range);
  CopyMap::Legs legs;
  const uint64_t mark = seal() == nullptr ? 0 : seal()->versions()->mark();
  switch (copies()->LookForRead(piece->range, &legs, &piece->unsettled, /*uses=*/!repairs())) {
    case CopyMap::ReadState::kHole:
      if (repairs()) return End(piece, absl::OkStatus()), false;
      NoteUnplaced(*piece, mark);
      memset(part->call.in, 0, piece->range.bytes());
      return EndRead(piece);
    case CopyMap::ReadState::kLost:
      if (is_reader()) return End(piece, is_version() ? GoneError() : ChangedError()), false;
      // A page that is lost already needs no copy.
      return End(piece, repairs() && piece->range.pages() == 1 ? absl::OkStatus() : LostError()), false;
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
    if (absl::c_linear_search(piece->tried, leg.replica_host)) continue;
    if (untried == nullptr) untried = &leg;
    if (SessionAt(leg.life.server)->usable()) chosen = &leg;
  }
  if (chosen == nullptr) chosen = untried;
  const bool all_tried = chosen == nullptr;
  if (all_tried && piece->confirms) return EndRead(piece);
  if (all_tried) {
    if (piece->damaged_reads >= legs.size()) return TryOnceMore(piece);
    piece->tried.clear();
    piece->damaged_reads = 0;
    chosen = &legs[first];
  }
  part->leg = *chosen;
  part->session = SessionAt(chosen->life.server);
  part->life = part->session->life();
  if (part->life->incarnation != chosen->life.incarnation) {
    if (is_reader() && !is_version()) return End(piece, ChangedError()), false;
    copies()->Bury(chosen->replica_host);
    return true;
  }
  piece->state = State::kReading;
  if (all_tried) {
    // Another copy may be back before this one.
    engine_->WaitFor(part, Waiter::For::kConnection, std::min(request().deadline_ns, engine_->NowNs() + kMissNs));
    return false;
  }
  piece->tried.push_back(chosen->replica_host);
  return SendRead(piece, part);
}

bool CopiedIo::SendRead(Piece* piece, IoPart* part) {
  const RegionKey& key = place().map->key();
  const ChunkRange range = piece->confirms ? ChunkRange{piece->range.first, LeastChunks()} : piece->range;
  if (piece->confirms) part->call.in = &confirmed_[piece->index * kPageBytes];
  part->call.seals = nullptr;
  if (seal() != nullptr) {
    if (!TakeSealer(piece)) return End(piece, SealError()), false;
    part->call.seals = piece->confirms ? &part->no_seal : piece->sealer->seals.data();
  }
  part->call.request = MessageHeader(ReadRequest{.region = key.id,
                                                 .range = range,
                                                 .epoch = key.epoch,
                                                 .span_generation = part->leg.generation,
                                                 .version = key.version});
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
    if (is_garbled) NoteBad(piece, part->leg.replica_host);
    if (is_garbled && ++piece->garbled < kGarbledMax) piece->error = absl::UnavailableError(status.message());
    if (!IsInTime()) return End(piece, piece->error);
    if (piece->garbled >= kGarbledMax) (void)FailRead(piece, piece->error);
    return;
  }
  switch (call.reason) {
    case Reason::kOk:
      if (is_reader()) {
        if (piece->confirms || Open(piece)) (void)Confirm(piece);
      } else if (LookAtRead(piece) && Open(piece)) {
        (void)EndRead(piece);
      }
      return;
    case Reason::kUnknownRegion:
    case Reason::kOtherGeneration:
    case Reason::kUnknownSnapshot:
      if (is_version()) {
        // It has yielded there, or the server has freed it. Another copy may have it; if none has, the span is lost.
        copies()->Bury(part->leg.replica_host);
      } else if (is_reader()) {
        End(piece, ChangedError());
      } else if (!copies()->Confirms(SpanOf(*piece), part->leg)) {
        piece->tried.clear();
      } else if (piece->unsettled) {
        (void)Settle(piece);
      } else {
        // The server has freed its data of the region, and may have it again for other spans.
        copies()->Bury(part->leg.replica_host);
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
      return End(piece, is_reader() ? ChangedError() : status);
    case Reason::kDamaged:
      if (piece->confirms) return;  // it has the generation
      piece->error = status;
      ++piece->damaged_reads;
      NoteBad(piece, part->leg.replica_host);
      return;
    default:
      return End(piece, status);
  }
}

bool CopiedIo::Confirm(Piece* piece) {
  if (place().map->key().reader != CopiesReader::kConfirms) return EndRead(piece);
  // Those that were tried before did not answer: they are asked again.
  if (!std::exchange(piece->confirms, true)) piece->tried = {PartOf(*piece, 0)->leg.replica_host};
  return true;
}

bool CopiedIo::EndRead(Piece* piece) {
  const RepairWork repair = request().repair;
  if (repair == RepairWork::kNone && is_version()) return End(piece, absl::OkStatus()), false;
  if (repair == RepairWork::kNone) {
    // Data that was garbled in an answer may be damaged where it is stored.
    if (piece->damaged_reads > 0 || piece->garbled > 0) copies()->NoteDamaged(piece->range.first / kChunksPerMessage);
    return End(piece, absl::OkStatus()), false;
  }
  bool has_chunks = repair == RepairWork::kMend;
  const std::byte* const data = PartOf(*piece, 0)->call.in;
  for (uint64_t i = 0; repair == RepairWork::kCopy && i < piece->range.pages(); ++i) {
    ChunkMask* const found = request().found + (piece->range.first_page() + i - request().range.first_page());
    *found = piece->sealer == nullptr ? NonZero(data + i * kPageBytes, kAllChunks) : piece->sealer->masks[i];
    has_chunks = has_chunks || *found != 0;
  }
  if (!has_chunks) return End(piece, absl::OkStatus()), false;
  piece->change = CopiedChange(repair == RepairWork::kCopy ? CopiedChange::Kind::kCopy : CopiedChange::Kind::kData);
  piece->state = State::kNext;
  return true;
}

void CopiedIo::NoteBad(Piece* piece, uint16_t replica_host) {
  if (!absl::c_linear_search(piece->bad, replica_host)) piece->bad.push_back(replica_host);
}

bool CopiedIo::TryOnceMore(Piece* piece) {
  // A copy that has not answered its first change yet was not asked. After all changes it has.
  if (repairs() || is_version() || std::exchange(piece->waits_for_all, true)) return FailRead(piece, piece->error);
  piece->tried.clear();
  piece->damaged_reads = 0;
  LeaveGate(piece);
  return Enter(piece, GatePlace::Kind::kLook, {SpanOf(*piece) * kChunksPerSpan, kChunksPerSpan}, State::kRead);
}

bool CopiedIo::FailRead(Piece* piece, const absl::Status& why) {
  const bool is_one = piece->range.pages() == 1;
  if (seal() != nullptr) memset(PartOf(*piece, 0)->call.in, 0, piece->range.bytes());
  if (request().repair != RepairWork::kCopy || !is_one) return End(piece, why), false;
  CopyMap::Legs legs;
  bool unsettled = false;
  (void)copies()->LookForRead(piece->range, &legs, &unsettled, /*uses=*/false);
  const bool all_bad = absl::c_all_of(
      legs, [&](const CopyMap::Leg& leg) { return absl::c_linear_search(piece->bad, leg.replica_host); });
  // One that could not be asked may have it.
  if (!all_bad) return End(piece, absl::UnavailableError(why.message())), false;
  // The next owner of a region with a name would take it for a hole: there the copy does not join.
  if (place().map->key().named) return End(piece, why), false;
  copies()->NoteLostPage(piece->range.first_page());
  return End(piece, absl::OkStatus()), false;
}

// True: the data counts. Else the piece reads again, with a place in the gate if the pages are being changed.
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
  if (copies()->LookForRead(piece.range, &legs, &unsettled, /*uses=*/false) != CopyMap::ReadState::kPlaced) return true;
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
