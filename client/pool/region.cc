#include "client/pool/region.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {

Region::Region(const RegionHome* home, const RegionKey& key, const RegionOptions& options, bool read_only,
               std::unique_ptr<RegionSeal> seal, std::shared_ptr<const void> held)
    : home_(home),
      read_only_(read_only),
      described_(options.name.empty() && options.size_bytes == 0 && held == nullptr
                     ? nullptr
                     : new Described{options.name, options.size_bytes, std::move(held)}),
      map_(RegionMap::Make(key, std::move(seal))) {}

void Region::BeginRepair() {
  if (map_->copies() == nullptr || read_only_) return;
  is_repaired_ = true;
  home_->copied->Add(map_.get());
}

Region::~Region() {
  if (map_->copies() != nullptr && !read_only_) {
    if (is_repaired_) home_->copied->Remove(map_.get());
    if (map_->key().named) home_->keeper->Leave(place());
  }
  map_->CloseRooms([this](uint16_t server) { return home_->sessions->at(server)->room(); });
  for (const uint16_t server : map_->servers()) home_->sessions->at(server)->NoteRoom();
}

Region::Servers Region::ServersOf(uint64_t offset) const {
  const uint64_t span = offset / kSpanBytes;
  if (map_->copies() != nullptr) return map_->copies()->ChangedServersOf(span);
  RegionMap::Target target;
  (void)map_->Find(span, &target);  // of a destroyed region: nowhere
  return target.placed() ? Servers{target.server} : Servers{};
}

int64_t Region::DeadlineOf(const IoOptions& options) const {
  const int64_t timeout_ms = options.timeout_ms > 0 ? options.timeout_ms : home_->options->io_timeout_ms;
  return home_->environment->NowNs() + timeout_ms * kNsPerMs;
}

absl::Status Region::CheckRange(uint64_t offset, uint64_t length) const {
  if (offset % unit_bytes() != 0 || length % unit_bytes() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", offset, " and length ", length, " must be multiples of ", unit_bytes()));
  }
  if (offset > kRegionBytesMax || length > kRegionBytesMax - offset) {
    return absl::InvalidArgumentError(absl::StrCat("offset ", offset, " plus length ", length, " is beyond 2^62"));
  }
  return absl::OkStatus();
}

absl::StatusOr<IoRequest> Region::MakeRequest(Op op, uint64_t offset, uint64_t length, const IoOptions& options) const {
  NRAM_RETURN_IF_ERROR(CheckRange(offset, length));
  if (read_only_ && op != Op::kRead) {
    return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id())), " was attached read-only"));
  }
  if (length == 0 && op != Op::kDestroy) NRAM_RETURN_IF_ERROR(map_->CheckUsable());  // an operation would not look
  IoRequest request;
  request.op = op;
  request.range = {offset / kChunkBytes, length / kChunkBytes};
  request.deadline_ns = DeadlineOf(options);
  request.io_class = options.io_class;
  return request;
}

absl::StatusOr<IoRequest> Region::MakeChunksRequest(uint64_t offset, absl::Span<const std::byte> from,
                                                    absl::Span<const ChunkMask> masks, const IoOptions& options) const {
  NRAM_ASSIGN_OR_RETURN(IoRequest request, MakeRequest(Op::kWrite, offset, from.size(), options));
  const ChunkRange& range = request.range;
  if (masks.size() != range.pages()) {
    return absl::InvalidArgumentError(absl::StrCat(masks.size(), " masks for ", range.pages(), " pages"));
  }
  for (size_t i = 0; i < masks.size(); ++i) {
    if ((masks[i] & ~MaskOfPage(range, range.first_page() + i)) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("mask ", i, " selects chunks outside the range"));
    }
  }
  request.out = from.data();
  request.masks = masks.data();
  return request;
}

absl::Status Region::Read(uint64_t offset, absl::Span<std::byte> to, const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(IoRequest request, MakeRequest(Op::kRead, offset, to.size(), options));
  request.in = to.data();
  return Io::Run(place(), request);
}

absl::Status Region::Write(uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(IoRequest request, MakeRequest(Op::kWrite, offset, from.size(), options));
  request.out = from.data();
  return Io::Run(place(), request);
}

absl::Status Region::WriteChunks(uint64_t offset, absl::Span<const std::byte> from, absl::Span<const ChunkMask> masks,
                                 const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(const IoRequest request, MakeChunksRequest(offset, from, masks, options));
  return Io::Run(place(), request);
}

void Region::StartRead(Io* io, uint64_t offset, absl::Span<std::byte> to, const IoOptions& options,
                       void (*callback)(Io*, void*), void* context) {
  absl::StatusOr<IoRequest> request = MakeRequest(Op::kRead, offset, to.size(), options);
  if (request.ok()) request->in = to.data();
  io->Start(place(), request, callback, context);
}

void Region::StartWrite(Io* io, uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options,
                        void (*callback)(Io*, void*), void* context) {
  absl::StatusOr<IoRequest> request = MakeRequest(Op::kWrite, offset, from.size(), options);
  if (request.ok()) request->out = from.data();
  io->Start(place(), request, callback, context);
}

void Region::StartWriteChunks(Io* io, uint64_t offset, absl::Span<const std::byte> from,
                              absl::Span<const ChunkMask> masks, const IoOptions& options, void (*callback)(Io*, void*),
                              void* context) {
  io->Start(place(), MakeChunksRequest(offset, from, masks, options), callback, context);
}

void Region::StartReserve(Reservation* reservation, uint64_t offset, uint64_t length, const IoOptions& options,
                          Reservation::Callback callback, void* context) {
  absl::StatusOr<IoRequest> request = MakeRequest(Op::kWrite, offset, length, options);
  reservation->Start(place(), request, callback, context);
}

absl::Status Region::Reserve(uint64_t offset, uint64_t length, const IoOptions& options) {
  Reservation reservation;
  StartReserve(&reservation, offset, length, options);
  return reservation.Wait();
}

void Region::Release(uint16_t server, uint64_t most_bytes) {
  ServerSession* const session = home_->sessions->at(server);
  map_->ReleaseReserved(server, session->room(), most_bytes);
  session->NoteRoom();
}

void Region::Unreserve(uint64_t offset, uint64_t length) {
  // Servers have the room for their own spans alone.
  std::map<uint16_t, uint64_t> pages_at;
  const uint64_t end_page = RoundUp(offset + length, kPageBytes) / kPageBytes;
  for (uint64_t page = offset / kPageBytes; page < end_page;) {
    const uint64_t until = std::min(end_page, RoundDown(page, kPagesPerSpan) + kPagesPerSpan);
    for (const uint16_t server : ServersOf(page * kPageBytes)) pages_at[server] += until - page;
    page = until;
  }
  for (const auto& [server, pages] : pages_at) Release(server, pages * Room::kBytesPerPage);
  if (map_->copies() != nullptr && !map_->holds_room()) map_->copies()->ClearReserved();
}

void Region::UnreserveAll() {
  for (const uint16_t server : map_->servers()) Release(server, UINT64_MAX);
  if (map_->copies() != nullptr && !map_->holds_room()) map_->copies()->ClearReserved();
}

void Region::StartTrim(Sweep* sweep, uint64_t offset, uint64_t length, const IoOptions& options, TrimRoom room,
                       Sweep::Callback callback, void* context) {
  absl::StatusOr<IoRequest> request = MakeRequest(Op::kTrim, offset, length, options);
  if (request.ok()) {
    if (absl::Status usable = map_->CheckUsable(); !usable.ok()) request = usable;
  }
  if (!request.ok()) return sweep->Fail(request.status(), callback, context);
  if (map_->copies() != nullptr) {
    request->keeps_room = room == TrimRoom::kKeep;
    return sweep->StartCopied(place(), *request, callback, context);
  }
  const uint8_t flags =
      (room == TrimRoom::kKeep ? kFlagReservation : 0) | (map_->has_reserved() ? kFlagWholeFrames : 0);
  if (length > 0) sweep->AddTrim(place(), flags, request->range, request->deadline_ns);
  sweep->Start(options.io_class, callback, context);
}

absl::Status Region::Trim(uint64_t offset, uint64_t length, const IoOptions& options, TrimRoom room) {
  Sweep sweep;
  StartTrim(&sweep, offset, length, options, room);
  return sweep.Wait();
}

absl::Status Region::CheckVersioned() const {
  const std::string region = FormatId(Raw(id()));
  if (read_only_) return absl::FailedPreconditionError(absl::StrCat("region ", region, " was attached read-only"));
  if (map_->copies() == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("region ", region, " was not created for versions"));
  }
  // Its servers may free it and create it anew with a later write, and then its former content is unknown.
  const RegionKey& key = map_->key();
  if (!key.named && (key.gc || home_->options->expendable)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "region ", region, " has no versions: it goes with its lease, and has no name by which it could be found"));
  }
  return map_->CheckUsable();
}

void Region::StartSeal(VersionSeal* seal, VersionKeep keep, const IoOptions& options, VersionSeal::Callback callback,
                       void* context) {
  if (absl::Status status = CheckVersioned(); !status.ok()) return seal->Fail(status, callback, context);
  seal->Start(place(), keep, options.io_class, DeadlineOf(options), callback, context);
}

absl::StatusOr<SealedVersion> Region::Snapshot(VersionKeep keep, const IoOptions& options) {
  VersionSeal seal;
  StartSeal(&seal, keep, options);
  return seal.Wait();
}

absl::StatusOr<DroppedVersions> Region::DropVersions(VersionNumber first, VersionNumber last, bool force,
                                                     const IoOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckVersioned());
  if (first == VersionNumber{} || last < first || last > kVersionNumberMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("versions ", Raw(first), " to ", Raw(last), " are none: numbers begin with 1"));
  }
  return DropVersionsOf(place(), first, last, force, options.io_class, DeadlineOf(options));
}

void Region::StartDestroy(Sweep* sweep, const IoOptions& options, Sweep::Callback callback, void* context) {
  absl::Status status = MakeRequest(Op::kDestroy, 0, 0, options).status();
  // Servers that have not heard of a new owner would execute it.
  if (status.ok() && (map_->is_fenced() || !map_->NoteDestroyed())) status = map_->CheckUsable();
  if (!status.ok()) return sweep->Fail(status, callback, context);
  sweep->AddDestroy(place(), DeadlineOf(options));
  sweep->Start(options.io_class, callback, context);
}

absl::Status Region::Destroy(const IoOptions& options) {
  Sweep sweep;
  StartDestroy(&sweep, options);
  const absl::Status status = sweep.Wait();
  const bool is_kept = map_->key().named && !map_->key().gc;
  if (status.ok() && is_kept) home_->keeper->NoteDestroyed(name(), id());
  return status;
}

absl::Status Region::DestroyAll(absl::Span<const std::unique_ptr<Region>> regions) {
  Sweep sweep;
  for (const auto& region : regions) {
    if (region->map_->NoteDestroyed()) sweep.AddDestroy(region->place(), region->DeadlineOf({}));
  }
  sweep.Start(IoClass::kBulk);
  return sweep.Wait();
}

}  // namespace nram
