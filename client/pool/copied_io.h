#ifndef NRAM_CLIENT_POOL_COPIED_IO_H_
#define NRAM_CLIENT_POOL_COPIED_IO_H_

// A read, a write or a trim of a region whose pages have several copies (adr/0014), or are sealed (adr/0016). A *piece*
// is the operation's part in one block of 64 pages (a trim: in one span). A piece of a write or trim has a *leg* for
// each copy; a piece of a read asks one copy after the other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "client/pool/change_gate.h"
#include "client/pool/copied_change.h"
#include "client/pool/copy_map.h"
#include "client/pool/io_engine.h"
#include "client/seal/sealers.h"

namespace nram {

class CopiedIo : public IoWay {
 public:
  // `engine` outlives it, and has kReplicasMax parts at least.
  explicit CopiedIo(IoEngine* engine) : engine_(engine) {}
  ~CopiedIo() override;

  // After the engine's Reset. The first operation that has several pieces under way allocates them, unless Prepare has.
  void Begin();
  void Prepare() {
    const size_t most = std::min(kPiecesMax, engine_->part_count());
    if (more_ == nullptr) more_ = std::make_unique<Piece[]>(most - 1);
  }

  void LaunchAll() override;
  void Judge(IoPart* part) override;
  void Resume(IoPart* part) override;
  bool Cancel(IoPart* part) override;
  bool is_busy() const override { return busy_ > 0; }

 private:
  // A leg misses when its server cannot be asked for this long while another copy in sync can be.
  static constexpr int64_t kMissNs = 250 * kNsPerMs;
  static constexpr size_t kPiecesMax = 16;
  // The most answers to one read with wrong checksums: beyond, the network is not the cause.
  static constexpr int kGarbledMax = 6;
  // How often a change may begin anew because all its copies have died.
  static constexpr int kDeathsMax = 256;

  struct Piece {
    enum class State : uint8_t {
      kFree,
      kEnter,    // a change: to enter the gate
      kBegin,    // it is in the gate
      kPlace,    // servers are asked for room for a new span
      kNext,     // no message is under way: chooses the next step
      kRoom,     // the legs take their room, one after the other
      kLegs,     // they are under way
      kRead,     // chooses the next copy to read
      kReading,  // a read is under way, or waits for its server
    };
    State state = State::kFree;
    size_t index = 0;
    ChunkRange range;
    CopyMap::WholePages whole;  // of a change
    GatePlace gate;
    bool in_gate = false;
    bool awaits_gate = false;
    bool waits_for_all = false;  // behind all changes of its span; it does so once
    bool gives_up = false;       // waiting does not help
    bool settles = false;        // a read that settles the span first
    bool raises_only = false;
    bool damaged = false;  // a copy's page is, of which a part was to be written
    CopiedChange change{CopiedChange::Kind::kData};
    CopyMap::Legs legs;    // of this step
    size_t legs_sent = 0;  // of these; a read that settles the span has one part for all
    size_t leg_count = 0;  // that have a part
    size_t next_leg = 0;   // kRoom
    size_t legs_left = 0;
    SpanPlacement chosen;  // kPlace
    Placing search;
    absl::InlinedVector<uint16_t, kReplicasMax> tried;  // replica hosts, of a read
    int garbled = 0;
    size_t damaged_reads = 0;                         // copies that have said so, since all were tried
    absl::InlinedVector<uint16_t, kReplicasMax> bad;  // replica hosts, of answers that were damaged or garbled
    bool unsettled = false;
    int deaths = 0;         // of all copies, during a change
    bool confirms = false;  // a reader has the data, and asks the other copies whether it counts
    // Of a sealed region (copied_seal.cc).
    Sealer* sealer = nullptr;
    bool is_sealed = false;   // a write: it is in `sealer`, and does not change however often it is sent
    bool may_change = false;  // some server may have executed it
    absl::Status error;       // of some message
  };
  using State = Piece::State;

  const IoPlace& place() const { return engine_->place(); }
  const IoRequest& request() const { return engine_->request(); }
  bool repairs() const { return request().repair != RepairWork::kNone; }
  // True for a region that another client owns. That client's changes are not seen here.
  bool is_reader() const { return place().map->key().reader != CopiesReader::kNo; }
  // True for a version (adr/0019). Its copies do not change: one copy's answer counts.
  bool is_version() const { return place().map->key().reader == CopiesReader::kVersion; }
  bool is_of_span() const {
    return repairs() && request().repair != RepairWork::kCopy && request().repair != RepairWork::kMend;
  }
  CopyMap* copies() const { return place().map->copies(); }
  Piece* PieceAt(size_t index) const { return index == 0 ? &first_ : &more_[index - 1]; }
  Piece* PieceOf(const IoPart& part) const { return PieceAt(part.index / parts_per_piece_); }
  IoPart* PartOf(const Piece& piece, size_t leg) const { return engine_->part(piece.index * parts_per_piece_ + leg); }
  RegionSeal* seal() const { return place().map->seal(); }
  // The range of requests without data.
  uint64_t LeastChunks() const { return seal() == nullptr ? 1 : kChunksPerPage; }
  ServerSession* SessionAt(uint16_t server) const { return place().sessions->at(server); }
  static uint64_t SpanOf(const Piece& piece) { return piece.range.first / kChunksPerSpan; }
  bool IsInTime() const { return engine_->NowNs() < request().deadline_ns; }

  bool Claim(Piece* piece);
  // Goes on until the piece waits or is free.
  void Drive(Piece* piece);
  void End(Piece* piece, const absl::Status& status);

  // --- Steps. Each true: the piece goes on at once.
  bool Enter(Piece* piece, GatePlace::Kind kind, const ChunkRange& range, State then);
  void LeaveGate(Piece* piece);
  bool BeginChange(Piece* piece);
  bool Place(Piece* piece);
  bool FailToPlace(Piece* piece);
  bool Next(Piece* piece);
  bool EndChange(Piece* piece, CopiedChange::Step::Kind kind);
  bool TakeRooms(Piece* piece);
  bool Read(Piece* piece);
  bool SendRead(Piece* piece, IoPart* part);  // to the copy that is chosen
  bool Settle(Piece* piece);
  bool LookAtRead(Piece* piece);
  // A reader's last step: the data counts if all copies that it knows of still have the generation that it knows.
  bool Confirm(Piece* piece);
  // The data that was read counts: the end of a read.
  bool EndRead(Piece* piece);
  absl::Status LostError() const;
  absl::Status ChangedError() const;  // a reader's
  absl::Status GoneError() const;     // a version's
  // All copies that are known have said that the pages are damaged.
  bool TryOnceMore(Piece* piece);
  // No copy in sync has the pages.
  bool FailRead(Piece* piece, const absl::Status& why);
  void NoteBad(Piece* piece, uint16_t replica_host);
  bool BeginRepair(Piece* piece);

  // --- Sealed pages (copied_seal.cc).
  // The piece has a sealer. False: there is no memory.
  bool TakeSealer(Piece* piece);
  void GiveSealer(Piece* piece);
  // Seals the piece's data, once. False: it cannot be sealed.
  bool Seal(Piece* piece);
  // Gives a leg's call the data that was sealed here, or was read sealed.
  void SetSealed(const Piece& piece, Call* call) const;
  // Opens the data of a read, and compares its version with the expected one. False: they differ; the piece reads again
  // in the gate, or asks another copy, or has ended.
  bool Open(Piece* piece);
  // These pages were a hole on all servers after the mark of the versions was taken.
  void NoteHole(uint64_t first_page, uint64_t pages, uint64_t mark);
  // Likewise those of a piece, if its span has no place. A span that has a place, and no copy that has answered, may
  // hold the sent data.
  void NoteUnplaced(const Piece& piece, uint64_t mark);
  // A change has ended; it is in the gate still.
  void NoteVersions(Piece* piece, bool is_stored);
  absl::Status SealError() const;
  absl::Status BadSealError(const IoPart& part) const;

  // --- A change's legs.
  void AssignLegs(Piece* piece);
  void ReleaseRooms(Piece* piece);
  enum class Prepared { kReady, kWaits, kOver };
  Prepared PrepareLeg(IoPart* part);
  void SendLeg(IoPart* part);
  void JudgeLeg(IoPart* part);
  void JudgeUnansweredLeg(IoPart* part, const absl::Status& status);
  // `unused_bytes`: of the region's reserved room; without it, none is looked for.
  void JudgeNoRoom(IoPart* part, const absl::Status& status, std::optional<uint64_t> unused_bytes);
  void ResumeLeg(IoPart* part);
  void RetryLeg(IoPart* part, const absl::Status& why);
  // A copy in sync other than this one can be asked.
  bool IsAnotherUsable(const IoPart& part) const;
  void EndLeg(IoPart* part, CopiedChange::End end, const absl::Status& status, uint32_t stored_pages = 0);
  void EndTrim(IoPart* part);

  void ResumePlacing(Piece* piece, IoPart* part);
  void JudgeRead(Piece* piece, IoPart* part);
  void ResumeRead(Piece* piece, IoPart* part);
  bool IsReadable(const Piece& piece) const;

  IoEngine* const engine_;
  mutable Piece first_;
  std::unique_ptr<Piece[]> more_;
  size_t piece_count_ = 1;
  size_t parts_per_piece_ = 1;
  std::unique_ptr<std::byte[]> confirmed_;  // for reads that only test whether a copy answers; a chunk for each piece
  uint64_t next_chunk_ = 0;                 // to be started
  size_t busy_ = 0;
  size_t next_piece_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_COPIED_IO_H_
