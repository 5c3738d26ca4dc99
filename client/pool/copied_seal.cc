// Sealed pages (adr/0016): an operation seals the data that it sends, opens the data that it has read, and notes which
// versions servers must have from then on.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plant.h"
#include "client/pool/copied_io.h"

namespace nram {
absl::Status CopiedIo::SealError() const {
  return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(place().map->key().id)),
                                                    " is sealed, and this process has no key for it ",
                                                    "(a child after fork needs its own pool), or no memory"));
}

absl::Status CopiedIo::BadSealError(const IoPart& part) const {
  return absl::DataLossError(absl::StrCat("memory server ", part.session->name(), " has returned pages of region ",
                                          FormatId(Raw(place().map->key().id)),
                                          " that are not the last written ones: it changed them, or replays old ones"));
}

bool CopiedIo::TakeSealer(Piece* piece) {
  if (piece->sealer == nullptr) piece->sealer = seal()->sealers()->Take();
  return piece->sealer != nullptr;
}

void CopiedIo::GiveSealer(Piece* piece) {
  if (piece->sealer != nullptr) seal()->sealers()->Give(std::exchange(piece->sealer, nullptr));
}

bool CopiedIo::Seal(Piece* piece) {
  if (piece->is_sealed || repairs()) return true;
  if (!TakeSealer(piece)) return false;
  const size_t pages = piece->range.pages();
  const uint64_t first = (piece->range.first - request().range.first) / kChunksPerPage;
  const absl::Span<const std::byte> data(request().out + first * kPageBytes, pages * kPageBytes);
  absl::Span<const ChunkMask> selected;
  if (request().masks != nullptr) selected = {request().masks + first, pages};
  // A page with room of its own keeps its frame, and a hole has none.
  const bool zeros_are_holes = !place().map->has_reserved();
  piece->is_sealed =
      piece->sealer->Seal(seal(), place().map->key().id, piece->range.first_page(), data, selected, zeros_are_holes);
  return piece->is_sealed;
}

void CopiedIo::SetSealed(const Piece& piece, Call* call) const {
  call->seals = piece.sealer->seals.data();
  call->masks = piece.sealer->masks.data();
  if (!repairs()) call->out = piece.sealer->sealed.data();
}

bool CopiedIo::Open(Piece* piece) {
  if (seal() == nullptr) return true;
  const IoPart& part = *PartOf(*piece, 0);
  Sealer* const sealer = piece->sealer;
  const size_t bytes = piece->range.bytes();
  std::byte* data = part.call.in;
  if (repairs()) {
    // The bytes that came are written elsewhere as they are.
    memcpy(sealer->sealed.data(), data, bytes);
    data = sealer->sealed.data();
  }
  bool lost = false;
  const size_t bad = sealer->Open(seal(), place().map->key().id, piece->range.first_page(), {data, bytes},
                                  /*settles=*/piece->in_gate, &lost);
  const bool passes = NRAM_PLANTED(mend_unverified) && repairs();
  if (bad == Sealer::kAllFit || passes) {
    // A copy that catches up is empty; one that is mended may have a page where there should be none.
    if (repairs()) {
      sealer->SelectSealed(piece->range.pages(), request().repair == RepairWork::kMend && !place().map->has_reserved());
    }
    return true;
  }
  // A page that is lost already needs no copy; but the next owner of a region with a name would take it for a hole.
  const bool needs_none = repairs() && piece->range.pages() == 1 && !place().map->key().named;
  if (lost) return End(piece, needs_none ? absl::OkStatus() : LostError()), false;
  if (!piece->in_gate && !is_reader()) {
    // It may have been changed while it was read. In the gate there is no such excuse.
    piece->tried.clear();
    (void)Enter(piece, GatePlace::Kind::kLook, piece->range, State::kRead);
    return false;
  }
  const PageSeal& seal_there = sealer->seals[bad];
  if (is_reader() && !is_version() && CounterOf(seal_there) != 0 && seal()->KeyOf(seal_there) == nullptr) {
    // Its owner has come since, with a key of its own.
    return End(piece, ChangedError()), false;
  }
  piece->error = BadSealError(part);
  ++piece->damaged_reads;
  NoteBad(piece, part.leg.replica_host);
  return false;
}

void CopiedIo::NoteHole(uint64_t first_page, uint64_t pages, uint64_t mark) {
  if (seal() != nullptr) seal()->versions()->EndDoubts(first_page, first_page + pages, mark);
}

void CopiedIo::NoteUnplaced(const Piece& piece, uint64_t mark) {
  bool lost = false;
  if (seal() == nullptr || copies()->Look(piece.range, &lost) != CopyMap::SpanState::kHole) return;
  NoteHole(piece.range.first_page(), piece.range.pages(), mark);
}

void CopiedIo::NoteVersions(Piece* piece, bool is_stored) {
  if (seal() == nullptr || repairs()) return;
  PageVersions& versions = *seal()->versions();
  const uint64_t first_page = piece->range.first_page();
  const uint64_t end_page = first_page + piece->range.pages();
  if (request().op == Op::kTrim) {
    if (is_stored) return versions.Trimmed(first_page, end_page);
    if (piece->may_change && !NRAM_PLANTED(version_not_doubted)) versions.TrimDoubted(first_page, end_page);
    return;
  }
  if (!piece->is_sealed) return;
  const Sealer& sealer = *piece->sealer;
  if (is_stored) {
    versions.Stored(first_page, sealer.stored, sealer.first_counter);
    versions.Stored(first_page, sealer.holes, 0);
  } else if (piece->may_change && !NRAM_PLANTED(version_not_doubted)) {
    versions.Doubted(first_page, sealer.stored, sealer.first_counter);
    versions.Doubted(first_page, sealer.holes, 0);
  }
}

}  // namespace nram
