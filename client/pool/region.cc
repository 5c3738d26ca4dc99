#include "client/pool/region.h"

#include <glog/logging.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/pool/pool.h"
#include "client/pool/server_link.h"
#include "client/transport/transport.h"

namespace nram {
namespace {

// Of a trim: more than these may be anywhere.
constexpr uint64_t kSpansLookedAt = 64;

}  // namespace

Region::Region(Pool* pool, RegionId id, Epoch epoch, const RegionOptions& options, bool read_only)
    : pool_(pool),
      id_(id),
      epoch_(epoch),
      gc_(options.gc),
      read_only_(read_only),
      policy_(options.placement),
      described_(options.name.empty() && options.size_bytes == 0 ? nullptr
                                                                 : new Described{options.name, options.size_bytes}) {}

Region::~Region() {
  GateLock lock(&mu_);
  for (Presence& presence : presences_) {
    ServerLink* const link = pool_->link(presence.server);
    presence.room.Close(link->room());
    link->NoteRoom();
  }
}

size_t Region::memory_bytes() const {
  GateLock lock(&mu_);
  const size_t heap = presences_.capacity() > 1 ? presences_.capacity() * sizeof(Presence) : 0;
  return sizeof *this + spans_.memory_bytes() + heap;
}

absl::Status Region::CheckRange(uint64_t offset, uint64_t length) const {
  if (offset % kChunkBytes != 0 || length % kChunkBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", offset, " and length ", length, " must be multiples of ", kChunkBytes));
  }
  if (offset > kRegionBytesMax || length > kRegionBytesMax - offset) {
    return absl::InvalidArgumentError(absl::StrCat("offset ", offset, " plus length ", length, " is beyond 2^62"));
  }
  GateLock lock(&mu_);
  if (destroyed_) return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id_)), " was destroyed"));
  return absl::OkStatus();
}

absl::StatusOr<Io::Request> Region::MakeRequest(Op op, uint64_t offset, uint64_t length,
                                                const IoOptions& options) const {
  NRAM_RETURN_IF_ERROR(CheckRange(offset, length));
  if (read_only_ && op != Op::kRead) {
    return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id_)), " was attached read-only"));
  }
  Io::Request request;
  request.op = op;
  request.first = request.chunk = offset / kChunkBytes;
  request.end = (offset + length) / kChunkBytes;
  request.deadline_ns = DeadlineAfterMs(options.timeout_ms > 0 ? options.timeout_ms : pool_->options().io_timeout_ms);
  request.io_class = options.io_class;
  request.start_may_block = options.start_may_block;
  return request;
}

absl::Status Region::Read(uint64_t offset, absl::Span<std::byte> to, const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(Io::Request request, MakeRequest(Op::kRead, offset, to.size(), options));
  request.in = to.data();
  return Io::RunOnStack(this, request);
}

absl::Status Region::Write(uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(Io::Request request, MakeRequest(Op::kWrite, offset, from.size(), options));
  request.out = from.data();
  return Io::RunOnStack(this, request);
}

absl::StatusOr<Io::Request> Region::MakeChunksRequest(uint64_t offset, absl::Span<const std::byte> from,
                                                      absl::Span<const ChunkMask> masks,
                                                      const IoOptions& options) const {
  NRAM_ASSIGN_OR_RETURN(Io::Request request, MakeRequest(Op::kWrite, offset, from.size(), options));
  const ChunkRange range{request.first, request.end - request.first};
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

absl::Status Region::WriteChunks(uint64_t offset, absl::Span<const std::byte> from, absl::Span<const ChunkMask> masks,
                                 const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(const Io::Request request, MakeChunksRequest(offset, from, masks, options));
  return Io::RunOnStack(this, request);
}

void Region::StartRead(Io* io, uint64_t offset, absl::Span<std::byte> to, const IoOptions& options,
                       void (*callback)(Io*, void*), void* context) {
  absl::StatusOr<Io::Request> request = MakeRequest(Op::kRead, offset, to.size(), options);
  if (request.ok()) request->in = to.data();
  io->BeginOrFail(this, request, callback, context);
}

void Region::StartWrite(Io* io, uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options,
                        void (*callback)(Io*, void*), void* context) {
  absl::StatusOr<Io::Request> request = MakeRequest(Op::kWrite, offset, from.size(), options);
  if (request.ok()) request->out = from.data();
  io->BeginOrFail(this, request, callback, context);
}

void Region::StartWriteChunks(Io* io, uint64_t offset, absl::Span<const std::byte> from,
                              absl::Span<const ChunkMask> masks, const IoOptions& options, void (*callback)(Io*, void*),
                              void* context) {
  io->BeginOrFail(this, MakeChunksRequest(offset, from, masks, options), callback, context);
}

Region::Target Region::TargetLocked(const SpanPlacement& placement) const {
  Target target;
  if (!placement.placed()) return target;
  target.link = pool_->link(placement.servers[0]);
  for (const Presence& presence : presences_) {
    if (presence.server != placement.servers[0]) continue;
    target.created = presence.incarnation != 0 && !presence.unsure;
    // Once the server has restarted, the write has not happened.
    target.unsure = presence.unsure && presence.incarnation == target.link->incarnation();
    target.created_incarnation = presence.incarnation;
    target.paid_for = presence.incarnation != 0 || presence.room.bytes() > 0;
  }
  return target;
}

absl::StatusOr<Region::Target> Region::FindTarget(uint64_t span) const {
  GateLock lock(&mu_);
  if (destroyed_) return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id_)), " was destroyed"));
  return TargetLocked(spans_.Find(span));
}

absl::StatusOr<Region::Target> Region::Place(uint64_t span, uint64_t room_bytes, int64_t deadline_ns, bool may_block,
                                             Room::Grant* room, ServerLink** waits_for) {
  std::string why = "no memory server can be used";
  std::vector<uint16_t> passed_over;  // full, or they do not answer
  ServerLink* silent = nullptr;
  absl::Status silence;
  for (size_t attempt = 0; attempt <= pool_->server_count(); ++attempt) {
    std::vector<PlacementCandidate> candidates = pool_->Candidates();
    Presences presences;
    {
      GateLock lock(&mu_);
      presences = presences_;
    }
    std::erase_if(candidates, [&](const PlacementCandidate& candidate) {
      if (absl::c_linear_search(passed_over, candidate.server)) return true;
      for (const Presence& presence : presences) {
        if (presence.server != candidate.server) continue;
        // Never again where a part of the region was lost.
        return presence.incarnation != 0 && !presence.unsure &&
               presence.incarnation != pool_->link(candidate.server)->incarnation();
      }
      // A named region only where it was created.
      return described_ != nullptr && !described_->name.empty();
    });
    const SpanPlacement placement = PlaceSpan(policy_, id_, span, 1, candidates);
    if (!placement.placed()) break;
    ServerLink* const link = pool_->link(placement.servers[0]);
    Room::Grant grant = link->TryTakeRoom(room_bytes);
    if (!grant) {
      if (!may_block) {
        *waits_for = link;
        return absl::UnavailableError("room must be reserved first");
      }
      absl::StatusOr<Room::Grant> taken = link->TakeRoom(room_bytes, deadline_ns);
      if (!taken.ok()) {
        passed_over.push_back(link->index());
        why = std::string(taken.status().message());
        if (!absl::IsResourceExhausted(taken.status())) {
          silent = link;
          silence = absl::UnavailableError(why);
        }
        continue;
      }
      grant = *std::move(taken);
    }
    GateLock lock(&mu_);
    const SpanPlacement present = spans_.Find(span);
    if (present.placed()) {
      link->room()->Unused(std::move(grant));
      return TargetLocked(present);
    }
    *room = std::move(grant);
    spans_.Set(span, placement);
    return TargetLocked(placement);
  }
  // Full is what servers say that answer. One that is just away may have room.
  if (silent != nullptr) {
    *waits_for = silent;
    return silence;
  }
  size_t hopeless = 0;
  for (size_t i = 0; i < pool_->server_count(); ++i) {
    ServerLink* const link = pool_->link(i);
    if (link->hopeless()) {
      ++hopeless;
    } else if (!link->up()) {
      *waits_for = link;
      return absl::UnavailableError(absl::StrCat("memory server ", link->name(), " does not answer"));
    }
  }
  if (hopeless == pool_->server_count()) return absl::UnavailableError("no memory server of the pool answers");
  return absl::ResourceExhaustedError(absl::StrCat("the pool is full: ", why));
}

Region::Presence* Region::PresenceLocked(uint16_t server) {
  for (Presence& presence : presences_) {
    if (presence.server == server) return &presence;
  }
  presences_.push_back({server});
  return &presences_.back();
}

bool Region::NoteCreated(uint16_t server, uint64_t incarnation) {
  GateLock lock(&mu_);
  Presence* const presence = PresenceLocked(server);
  // The first one stands: if it is not the server's present life, what was stored then is lost, and stays so.
  if (presence->incarnation == 0 || presence->unsure) presence->incarnation = incarnation;
  presence->unsure = false;
  return presence->incarnation == incarnation;
}

void Region::NotePerhapsCreated(uint16_t server, uint64_t incarnation) {
  GateLock lock(&mu_);
  Presence* const presence = PresenceLocked(server);
  if (presence->incarnation != 0 && !presence->unsure) return;
  presence->incarnation = incarnation;
  presence->unsure = true;
}

Room::Grant Region::TakeReserved(uint16_t server, uint64_t least_bytes, uint64_t most_bytes) {
  GateLock lock(&mu_);
  for (Presence& presence : presences_) {
    if (presence.server == server) return presence.room.TryTake(pool_->link(server)->room(), least_bytes, most_bytes);
  }
  return {};
}

void Region::EndReserved(uint16_t server, Room::Grant grant, uint64_t used_bytes) {
  GateLock lock(&mu_);
  PresenceLocked(server)->room.Used(pool_->link(server)->room(), std::move(grant), used_bytes);
}

bool Region::MayHaveReserved(uint16_t server, uint64_t had_bytes) {
  GateLock lock(&mu_);
  for (const Presence& presence : presences_) {
    if (presence.server == server) return presence.room.MayHaveMore(had_bytes);
  }
  return false;
}

absl::Status Region::Reserve(uint64_t offset, uint64_t length, const IoOptions& options) {
  NRAM_ASSIGN_OR_RETURN(const Io::Request request, MakeRequest(Op::kWrite, offset, length, options));
  std::map<uint16_t, Room::Grant> taken;
  absl::Status status;
  for (uint64_t chunk = request.first; chunk < request.end && status.ok();) {
    const uint64_t end = std::min((chunk / kChunksPerSpan + 1) * kChunksPerSpan, request.end);
    const ChunkRange range{chunk, end - chunk};
    uint64_t room_bytes = range.pages() * Room::kBytesPerPage + Room::kBytesPerRegion;
    absl::StatusOr<Room::Grant> room = Room::Grant();
    ServerLink* waits_for = nullptr;
    absl::StatusOr<Target> target = FindTarget(chunk / kChunksPerSpan);
    const bool paid_for =
        target.ok() && target->link != nullptr && (target->paid_for || taken.contains(target->link->index()));
    if (paid_for) room_bytes -= Room::kBytesPerRegion;
    if (target.ok() && target->link == nullptr) {
      target = Place(chunk / kChunksPerSpan, room_bytes, request.deadline_ns, /*may_block=*/true, &*room, &waits_for);
    }
    status = target.status();
    if (status.ok() && !*room) {
      room = target->link->TakeRoom(room_bytes, request.deadline_ns);
      status = room.status();
    }
    if (status.ok()) taken[target->link->index()].Absorb(*std::move(room));
    chunk = end;
  }
  if (status.ok()) reserved_ = true;
  GateLock lock(&mu_);
  std::map<uint16_t, uint64_t> added;
  for (auto& [server, grant] : taken) {
    ServerLink* const link = pool_->link(server);
    const uint64_t bytes = grant.bytes();
    if (!status.ok()) {
      link->room()->Unused(std::move(grant));
      link->NoteRoom();
    } else if (PresenceLocked(server)->room.Add(link->room(), std::move(grant))) {
      added[server] = bytes;
    } else {
      status = absl::UnavailableError(
          absl::StrCat("memory server ", link->name(), " has restarted while room was reserved"));
    }
  }
  for (const auto& [server, bytes] : added) {
    if (status.ok()) break;
    PresenceLocked(server)->room.Release(pool_->link(server)->room(), bytes);
    pool_->link(server)->NoteRoom();
  }
  return status;
}

void Region::Unreserve(uint64_t bytes) {
  uint64_t left = std::min<uint64_t>(bytes, kRegionBytesMax) / kPageBytes * Room::kBytesPerPage;
  GateLock lock(&mu_);
  for (Presence& presence : presences_) {
    ServerLink* const link = pool_->link(presence.server);
    left -= presence.room.Release(link->room(), left);
    link->NoteRoom();
  }
}

// A request without payload that goes to one server on a region's behalf.
struct Region::Errand {
  Call call;
  Region* region = nullptr;
  ServerLink* link = nullptr;
  Transport* transport = nullptr;
  uint64_t incarnation = 0;
  bool unsure = false;    // the server may never have heard of the region
  RegionRoom::Trim trim;  // if it keeps room
  bool sent = false;      // by some attempt

  void Start(IoClass io_class) {
    transport = link->MayChange() ? link->transport(io_class) : nullptr;
    if (transport == nullptr) {
      FailCall(&call, absl::StatusCode::kUnavailable);
    } else {
      transport->Start(&call);
    }
  }
};

void Region::AddErrands(Op op, uint8_t flags, const ChunkRange& range, int64_t deadline_ns,
                        std::deque<Errand>* errands) {
  GateLock lock(&mu_);
  const uint64_t first_span = range.first / kChunksPerSpan;
  const uint64_t end_span = (range.first + range.count + kChunksPerSpan - 1) / kChunksPerSpan;
  // A server that does not answer is not to keep up a trim of what is not there.
  const auto may_have_it = [&](const Presence& presence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (op != Op::kTrim || presence.unsure || end_span - first_span > kSpansLookedAt) return true;
    for (uint64_t span = first_span; span < end_span; ++span) {
      const SpanPlacement placement = spans_.Find(span);
      if (placement.placed() && placement.servers[0] == presence.server) return true;
    }
    return false;
  };
  for (Presence& presence : presences_) {
    if (presence.incarnation == 0 || !may_have_it(presence)) continue;
    Errand& errand = errands->emplace_back();
    if (op == Op::kTrim) {
      errand.call.request = MessageHeader(TrimRequest{.region = id_, .range = range, .epoch = epoch_}, flags);
    } else {
      errand.call.request = MessageHeader(DestroyRequest{.region = id_, .epoch = epoch_}, flags);
    }
    errand.call.deadline_ns = deadline_ns;
    errand.call.may_wait_late = true;
    errand.region = this;
    errand.link = pool_->link(presence.server);
    errand.incarnation = presence.incarnation;
    errand.unsure = presence.unsure;
    if ((flags & kFlagPromised) != 0) {
      errand.trim = presence.room.BeginTrim(errand.link->room());
    }
  }
}

absl::Status Region::RunErrands(std::deque<Errand>* errands, IoClass io_class) {
  absl::Status first_error;
  for (Errand& errand : *errands) {
    if (errand.link->incarnation() == errand.incarnation) errand.Start(io_class);
  }
  for (Errand& errand : *errands) {
    const Op op = errand.call.request.op;
    absl::Status status;
    while (true) {
      if (errand.link->incarnation() != errand.incarnation) {
        // It restarted: nothing is left there to free; but a trim must not hide that the rest is lost.
        if (op == Op::kTrim && !errand.unsure)
          status = absl::DataLossError(absl::StrCat("memory server ", errand.link->name(), " has restarted"));
        // Its former connection is about to end the call, if it was started.
        if (errand.transport != nullptr) errand.transport->Wait(&errand.call);
        break;
      }
      if (errand.transport == nullptr) errand.Start(io_class);
      if (errand.transport != nullptr) errand.transport->Wait(&errand.call);
      errand.sent = errand.sent || errand.call.sent;
      status = CallStatus(errand.call, errand.link->name());
      if (errand.call.code == absl::StatusCode::kOk && errand.call.reason == Reason::kUnknownRegion) {
        status = op == Op::kDestroy || errand.unsure ? absl::OkStatus() : absl::DataLossError(status.message());
      }
      const bool again = errand.call.code == absl::StatusCode::kUnavailable ||
                         errand.call.code == absl::StatusCode::kDataLoss ||
                         (errand.call.code == absl::StatusCode::kOk && errand.call.reason == Reason::kLeaseEnded);
      if (!again) break;
      if (errand.call.code == absl::StatusCode::kOk) {
        errand.link->NoteLeaseEnded();
      } else {
        errand.link->Suspect();
      }
      const absl::Status usable = errand.link->AwaitUsable(errand.call.deadline_ns);
      if (!usable.ok() || MonotonicNs() >= errand.call.deadline_ns) {
        status = absl::UnavailableError(usable.ok() ? status.message() : usable.message());
        break;
      }
      poll(nullptr, 0, 1);
      if (MonotonicNs() < errand.call.deadline_ns) errand.Start(io_class);
    }
    errand.link->NoteFreed();
    if (op == Op::kDestroy && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))) {
      errand.link->DestroyLater(errand.region->id_, errand.region->epoch_, errand.incarnation);
    }
    if ((errand.call.request.flags & kFlagPromised) != 0) errand.region->EndKeepingTrim(errand, status);
    if (first_error.ok()) first_error = status;
  }
  return first_error;
}

void Region::EndKeepingTrim(const Errand& errand, const absl::Status& status) {
  RegionRoom::TrimEnd end{errand.sent, errand.call.code == absl::StatusCode::kOk, std::nullopt};
  if (status.ok() && errand.call.is_done() && errand.call.reason == Reason::kOk) {
    end.kept_chunks = static_cast<uint32_t>(errand.call.kept_bytes / kChunkBytes);
  }
  GateLock lock(&mu_);
  PresenceLocked(errand.link->index())->room.EndTrim(errand.link->room(), errand.trim, end);
}

absl::Status Region::ForEachServer(Op op, uint8_t flags, const ChunkRange& range, const IoOptions& options) {
  std::deque<Errand> errands;
  AddErrands(op, flags, range,
             DeadlineAfterMs(options.timeout_ms > 0 ? options.timeout_ms : pool_->options().io_timeout_ms), &errands);
  return RunErrands(&errands, options.io_class);
}

absl::Status Region::DestroyAll(absl::Span<const std::unique_ptr<Region>> regions) {
  std::deque<Errand> errands;
  for (const auto& region : regions) {
    {
      GateLock lock(&region->mu_);
      if (std::exchange(region->destroyed_, true)) continue;
    }
    region->AddErrands(Op::kDestroy, 0, {}, DeadlineAfterMs(region->pool_->options().io_timeout_ms), &errands);
  }
  return RunErrands(&errands, IoClass::kBulk);
}

absl::Status Region::Trim(uint64_t offset, uint64_t length, const IoOptions& options, TrimRoom room) {
  NRAM_RETURN_IF_ERROR(MakeRequest(Op::kTrim, offset, length, options).status());
  if (length == 0) return absl::OkStatus();
  const uint8_t flags = (room == TrimRoom::kKeep ? kFlagPromised : 0) | (reserved_ ? kFlagReserved : 0);
  return ForEachServer(Op::kTrim, flags, {offset / kChunkBytes, length / kChunkBytes}, options);
}

absl::Status Region::Destroy(const IoOptions& options) {
  NRAM_RETURN_IF_ERROR(MakeRequest(Op::kDestroy, 0, 0, options).status());
  {
    GateLock lock(&mu_);
    destroyed_ = true;
  }
  return ForEachServer(Op::kDestroy, 0, {}, options);
}

}  // namespace nram
