#include "client/pool/io.h"

#include <glog/logging.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/pool/pool.h"
#include "client/pool/region.h"
#include "client/pool/server_link.h"
#include "client/transport/transport.h"

namespace nram {
Io::~Io() { CHECK_NE(state_.load(), kRunning) << "an Io went away while its operation was under way"; }

void Io::Reset(Region* region, const Request& request, bool waited_for) {
  CHECK(state_.load() != kRunning && state_.load() != kSleeping) << "an Io was used twice at a time";
  MutexLock lock(&mu_);
  region_ = region;
  request_ = request;
  waited_for_ = waited_for;
  io_class_ = request.io_class;
  callback_ = nullptr;
  busy_ = next_part_ = 0;
  pumping_ = false;
  status_ = absl::OkStatus();
  // Here and not where a part is claimed: a thread that waits for a call may look at it while another claims the part.
  for (size_t i = 0; i < part_count_; ++i) parts_[i].call.deadline_ns = request.deadline_ns;
  state_.store(kRunning, std::memory_order_relaxed);
}

absl::Status Io::RunOnStack(Region* region, const Request& request) {
  if (request.chunk / kChunksPerMessage == (request.end - 1) / kChunksPerMessage) {
    IoPart part;
    return Io(&part, 1).Run(region, request);
  }
  IoPart parts[kPartsMax];
  return Io(parts, kPartsMax).Run(region, request);
}

absl::Status Io::Run(Region* region, const Request& request) {
  Reset(region, request, /*waited_for=*/true);
  size_t oldest = 0;
  while (true) {
    Pump(/*may_block=*/true);
    {
      MutexLock lock(&mu_);
      if (busy_ == 0) break;
    }
    // Parts were started in turn, so the oldest is the next busy one. One that was started again has its turn after
    // the others, which may hold what it waits for.
    while (!parts_[oldest].busy) oldest = (oldest + 1) % part_count_;
    IoPart* part = &parts_[oldest];
    part->transport->Wait(&part->call);
    Settle(part, Judge(part), /*may_block=*/true);
    oldest = (oldest + 1) % part_count_;
  }
  MutexLock lock(&mu_);
  state_.store(kIdle, std::memory_order_relaxed);
  return status_;
}

void Io::Begin(Region* region, const Request& request, void (*callback)(Io*, void*), void* context) {
  Reset(region, request, /*waited_for=*/false);
  callback_ = callback;
  callback_context_ = context;
  Pump(request.start_may_block);
}

void Io::BeginOrFail(Region* region, const absl::StatusOr<Request>& request, void (*callback)(Io*, void*),
                     void* context) {
  if (request.ok()) {
    Begin(region, *request, callback, context);
    return;
  }
  Reset(region, Request(), /*waited_for=*/false);
  callback_ = callback;
  callback_context_ = context;
  {
    MutexLock lock(&mu_);
    status_ = request.status();
  }
  Pump(/*may_block=*/false);
}

absl::Status Io::Wait() {
  CHECK_NE(state_.load(), kIdle) << "nothing was started on this Io";
  size_t looked_at = 0;
  while (!done()) {
    // Receive for a part that is under way; that ends it, and starts what comes next, on this thread.
    Transport* transport = nullptr;
    Call* call = nullptr;
    {
      MutexLock lock(&mu_);
      for (size_t i = 0; i < part_count_ && transport == nullptr; ++i) {
        IoPart& part = parts_[(looked_at + i) % part_count_];
        if (!part.busy || !part.started || part.call.is_done()) continue;
        transport = part.transport;
        call = &part.call;
        looked_at = (looked_at + i) % part_count_;
      }
    }
    if (transport != nullptr) {
      transport->Wait(call);
    } else {
      // Another thread is ending one, or a link is going to try one again. Each ends by its deadline.
      uint32_t expected = kRunning;
      if (state_.compare_exchange_strong(expected, kSleeping)) FutexWaitUntil(&state_, kSleeping, DeadlineAfterMs(1));
      expected = kSleeping;
      state_.compare_exchange_strong(expected, kRunning);
    }
  }
  MutexLock lock(&mu_);
  return status_;
}

IoPart* Io::ClaimLocked() {
  if (!status_.ok() || request_.chunk >= request_.end || parts_[next_part_].busy) return nullptr;
  IoPart* part = &parts_[next_part_];
  next_part_ = (next_part_ + 1) % part_count_;
  // Up to the next multiple of 64 pages: within one message and one span.
  const uint64_t boundary = (request_.chunk / kChunksPerMessage + 1) * kChunksPerMessage;
  const ChunkRange range{request_.chunk, std::min(boundary, request_.end) - request_.chunk};
  const uint64_t offset = (range.first - request_.first) * kChunkBytes;
  part->io = this;
  part->busy = true;
  part->garbled = 0;
  Call& call = part->call;
  if (request_.op == Op::kWrite) {
    call.request = MessageHeader(WriteRequest{.region = region_->id_, .range = range, .epoch = region_->epoch_});
  } else {
    call.request = MessageHeader(ReadRequest{.region = region_->id_, .range = range, .epoch = region_->epoch_});
  }
  call.in = request_.in != nullptr ? request_.in + offset : nullptr;
  call.out = request_.out != nullptr ? request_.out + offset : nullptr;
  call.masks =
      request_.masks != nullptr ? request_.masks + (range.first_page() - request_.first / kChunksPerPage) : nullptr;
  call.done = waited_for_ ? nullptr : &OnCallDone;
  call.wait_expected = callback_ == nullptr;
  call.may_wait_late = waited_for_ && part_count_ > 1;
  call.context = part;
  request_.chunk = range.end();
  ++busy_;
  return part;
}

void Io::Pump(bool may_block) {
  {
    MutexLock lock(&mu_);
    pumping_ = true;
  }
  PumpLoop(may_block);
}

void Io::PumpLoop(bool may_block) {
  while (true) {
    IoPart* part = nullptr;
    void (*callback)(Io*, void*) = nullptr;
    void* context = nullptr;
    {
      MutexLock lock(&mu_);
      part = ClaimLocked();
      if (part == nullptr) {
        // Whether to leave and whether all is done is decided in one go: once pumping_ is false and the lock is free,
        // another thread may finish the operation, and the Io may be gone.
        pumping_ = false;
        if (waited_for_ || busy_ > 0) return;
        callback = callback_;
        context = callback_context_;
        if (state_.exchange(kDone, std::memory_order_acq_rel) == kSleeping) FutexWakeAll(&state_);
      }
    }
    if (part == nullptr) {
      if (callback != nullptr) callback(this, context);
      return;
    }
    Launch(part, may_block);
  }
}

void Io::Launch(IoPart* part, bool may_block) {
  const absl::StatusOr<bool> started = TryLaunch(part, may_block);
  if (!started.ok()) {
    Settle(part, started.status(), may_block);
  } else if (!*started) {
    EndPart(part, absl::OkStatus());
  }
}

absl::StatusOr<bool> Io::TryLaunch(IoPart* part, bool may_block) {
  Call& call = part->call;
  const ChunkRange range = call.request.range();
  const bool writes = call.request.op == Op::kWrite;
  // What it may cost, the region's own bookkeeping on a server that has not seen it included.
  uint64_t wanted_room = writes ? range.pages() * Room::kBytesPerPage + Room::kBytesPerRegion : 0;
  part->waits_for_room = false;
  part->link = nullptr;
  {
    MutexLock lock(&mu_);
    part->started = false;
  }
  NRAM_ASSIGN_OR_RETURN(Region::Target target, region_->FindTarget(range.first / kChunksPerSpan));
  if (target.link == nullptr && writes) {
    NRAM_ASSIGN_OR_RETURN(target, region_->Place(range.first / kChunksPerSpan, wanted_room, call.deadline_ns, may_block,
                                                 &part->room, &part->link));
  }
  part->unsure = target.unsure;
  if (!writes && (target.link == nullptr || !(target.created || target.unsure))) {
    memset(call.in, 0, range.bytes());
    return false;
  }
  ServerLink* const link = part->link = target.link;
  part->incarnation = link->incarnation();
  if (target.created && target.created_incarnation != part->incarnation) {
    EndRoom(part, 0);
    return absl::DataLossError(absl::StrCat("memory server ", link->name(), " has restarted and lost what region ",
                                            FormatId(Raw(region_->id())), " stored there"));
  }
  if (writes && !part->room) {
    if (target.created) wanted_room -= Room::kBytesPerRegion;
    part->room = region_->TakeReserved(link->index(), wanted_room, wanted_room);
    if (!part->room) part->room = link->TryTakeRoom(wanted_room);
    if (!part->room && !link->refused()) {
      if (!may_block) return absl::UnavailableError("room must be reserved first");
      absl::StatusOr<Room::Grant> room = link->TakeRoom(wanted_room, call.deadline_ns);
      if (room.ok()) {
        part->room = *std::move(room);
      } else if (!absl::IsResourceExhausted(room.status())) {
        return absl::UnavailableError(room.status().message());
      }
    }
    // Without room it may still overwrite what is there, and what is not may be reserved; the server knows.
    if (!part->room) part->room = region_->TakeReserved(link->index(), 1, wanted_room);
  }
  if (writes && link->incarnation() != part->incarnation) {
    EndRoom(part, 0);
    return absl::UnavailableError(absl::StrCat("memory server ", link->name(), " has restarted"));
  }
  call.request.flags = 0;
  if (writes && !target.created) call.request.flags = kFlagCreate | (region_->gc_ ? kFlagGc : 0);
  if (part->room) call.request.flags |= kFlagPromised;
  if (writes) {
    auto write = call.request.as<WriteRequest>();
    write.promise_bytes = part->room.bytes();
    call.request.set(write);
  }
  part->wanted_room_bytes = wanted_room;
  if (writes && region_->reserved_) call.request.flags |= kFlagReserved;
  if (writes && !link->MayChange()) {
    link->Suspect();
    EndRoom(part, 0);
    return absl::UnavailableError(absl::StrCat("memory server ", link->name(), ": a connection is down"));
  }
  Transport* const transport = link->transport(io_class_);
  {
    MutexLock lock(&mu_);
    part->transport = transport;
    part->started = true;
  }
  transport->Start(&call);  // there is one: the link had an incarnation when the span was placed
  return true;
}

void Io::EndRoom(IoPart* part, uint64_t used_bytes) {
  if (!part->room) {
    // Without room the server knows what paid; it says what that was.
    if (used_bytes > 0) part->link->room()->Charge(used_bytes);
  } else if (part->room.is_regions()) {
    region_->EndReserved(part->link->index(), std::move(part->room), used_bytes);
  } else {
    part->link->room()->Used(std::move(part->room), used_bytes);
    part->link->NoteRoom();
  }
}

absl::Status Io::Judge(IoPart* part) {
  const Call& call = part->call;
  ServerLink* const link = part->link;
  const bool creates = (call.request.flags & kFlagCreate) != 0;
  const bool failed = call.code != absl::StatusCode::kOk || call.reason != Reason::kOk;
  // One that was refused may have stored its first pages.
  if (creates && failed && call.sent) region_->NotePerhapsCreated(link->index(), part->incarnation);
  if (call.code == absl::StatusCode::kOk) {
    const uint64_t had_bytes = part->room.is_regions() ? part->room.bytes() : 0;
    const bool had_enough = part->room.bytes() >= part->wanted_room_bytes;
    if (call.request.op == Op::kWrite) EndRoom(part, call.used_bytes);
    const bool refused = call.reason == Reason::kFull || call.reason == Reason::kDraining;
    if (refused && !had_enough && region_->reserved_ && region_->MayHaveReserved(link->index(), had_bytes)) {
      part->waits_for_room = true;
      return absl::UnavailableError("the room that was reserved is with another write");
    }
    if (call.reason == Reason::kUnknownRegion && part->unsure && call.request.op == Op::kRead) {
      memset(call.in, 0, call.request.range().bytes());
      return absl::OkStatus();
    }
    if (call.reason == Reason::kOk) {
      if (creates && !region_->NoteCreated(link->index(), part->incarnation)) {
        // It went to a former life of the server, and that was not noticed in time to be remembered.
        return absl::UnavailableError(absl::StrCat("memory server ", link->name(), " has restarted"));
      }
      return absl::OkStatus();
    }
    const absl::Status status = CallStatus(call, link->name());
    if (call.reason == Reason::kUnknownRegion) return absl::DataLossError(status.message());
    if (call.reason == Reason::kLeaseEnded) {
      link->NoteLeaseEnded();
      return absl::UnavailableError(status.message());
    }
    return status;
  }
  // What was used is unknown. A renewal tells what all of it was, but not whose: what is a region's stays so.
  if (call.request.op == Op::kWrite) EndRoom(part, call.sent && !part->room.is_regions() ? part->room.bytes() : 0);
  link->Suspect();
  if (call.code == absl::StatusCode::kDeadlineExceeded) link->NoteSilence();
  const absl::Status status = CallStatus(call, link->name());
  if (status.code() != absl::StatusCode::kDataLoss) return status;
  // The reply to a write carries nothing that a donor's memory could have spoiled.
  if (call.request.op != Op::kRead || ++part->garbled < kGarbledMax) return absl::UnavailableError(status.message());
  return absl::DataLossError(
      absl::StrCat(status.message(), ", ", kGarbledMax, " times (is that machine's memory sound?)"));
}

void Io::Settle(IoPart* part, const absl::Status& status, bool may_block) {
  absl::Status last = status;
  while (true) {
    if (last.code() != absl::StatusCode::kUnavailable || part->link == nullptr) {
      EndPart(part, last);
      return;
    }
    if (!waited_for_) {
      if (part->link->hopeless()) {
        EndPart(part, last);
      } else {
        part->link->RetryLater(part);
      }
      return;
    }
    const int64_t deadline_ns = part->call.deadline_ns;
    const absl::Status usable = part->link->AwaitUsable(deadline_ns);
    if (!usable.ok() || MonotonicNs() >= deadline_ns) {
      if (!usable.ok()) last = absl::UnavailableError(usable.message());
      EndPart(part, MonotonicNs() >= deadline_ns ? absl::DeadlineExceededError(last.message()) : last);
      return;
    }
    // The link's thread may not have noticed yet.
    poll(nullptr, 0, 1);
    if (MonotonicNs() >= deadline_ns) continue;  // a call that is late from the start would cost others the connection
    const absl::StatusOr<bool> started = TryLaunch(part, may_block);
    if (started.ok()) {
      if (!*started) EndPart(part, absl::OkStatus());
      return;
    }
    last = started.status();
  }
}

void Io::OnCallDone(Call* call) {
  auto* part = static_cast<IoPart*>(call->context);
  part->io->Settle(part, part->io->Judge(part), /*may_block=*/false);
}

void Io::Restart(IoPart* part, bool give_up) {
  if (MonotonicNs() >= part->call.deadline_ns) {
    EndPart(part,
            absl::DeadlineExceededError(absl::StrCat("memory server ", part->link->name(), ": no answer in time")));
  } else if (give_up) {
    EndPart(part, absl::UnavailableError(absl::StrCat("memory server ", part->link->name(), " cannot be used")));
  } else {
    Launch(part, /*may_block=*/true);
  }
}

void Io::EndPart(IoPart* part, const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    part->busy = false;
    --busy_;
    if (status_.ok() && !status.ok()) status_ = status;
    if (waited_for_) return;
    // Whoever pumps looks again before he leaves.
    if (pumping_) return;
    pumping_ = true;
  }
  PumpLoop(/*may_block=*/false);
}

}  // namespace nram
