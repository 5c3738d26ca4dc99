#include "memserver/session.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "proto/version.h"

namespace nram {

namespace {

PageStore::IfAbsent AbsentPolicy(const MessageHeader& request) {
  if ((request.flags & kFlagCreate) == 0) return PageStore::IfAbsent::kRefuse;
  return (request.flags & kFlagGc) != 0 ? PageStore::IfAbsent::kCreateGc : PageStore::IfAbsent::kCreate;
}

PageStore::Frames FramesOf(const MessageHeader& request) {
  return (request.flags & kFlagWholeFrames) != 0 ? PageStore::Frames::kWhole : PageStore::Frames::kFitted;
}

PageStore::ReadArgs ReadArgsOf(const ReadRequest& read, const Tenant& tenant) {
  return {.region = {read.region, tenant.number},
          .epoch = Raw(read.epoch),
          .range = read.range,
          .generation = read.span_generation,
          .version = read.version};
}

}  // namespace

Session::~Session() {
  ReturnLanding();
  context_.store->FreeLater(std::move(doomed_));
  if (lease_ != nullptr) lease_->Unbind(connection_class_, this);
}

void Session::ReturnLanding() {
  if (landed_count_ > 0) context_.landing->Give(landed_.data(), landed_count_, Taker());
  landed_count_ = 0;
}

void Session::Replied() {
  if (std::exchange(displaced_, false)) context_.landing->Warm();
}

void Session::Fence() {
  // Set before the wait, so that the next step does not begin.
  fenced_ = true;
  MutexLock lock(&busy_mu_);
}

absl::Status Session::CheckMayExecute() {
  if (fenced_) return absl::AbortedError("a newer connection of the same client has replaced this one");
  // A request may be from before the lease's end: a write of it could create a region again that has been collected.
  if (lease_->live() && lease_->term() != term_) {
    return absl::AbortedError("its lease ended and was granted anew; it must say hello again");
  }
  return absl::OkStatus();
}

template <MessageBody Reply>
MessageHeader Session::ReplyTo(const MessageHeader& request, const Reply& body, Reason reason) const {
  MessageHeader reply(body);
  if (!reply.is<HelloReply>() && context_.store->asks_back()) reply.flags |= kFlagAsksBack;
  reply.request_id = request.request_id;
  reply.reason = reason;
  return reply;
}

void Session::AppendReply(const MessageHeader& header, ReplyBuffer* reply) {
  EncodeHeader(header, 0, reply->data + reply->used);
  reply->used += kMessageHeaderBytes;
}

bool Session::DestroyStepLocked(MessageHeader* reply) {
  const auto destroy = pending_.as<DestroyRequest>();
  if (doomed_ == nullptr) {
    unlink_reason_ = context_.store->Unlink(lease_.get(), destroy.region, Raw(destroy.epoch), &doomed_);
  }
  if (!context_.store->FreeStep(&doomed_)) return false;
  *reply = ReplyTo(pending_, DestroyReply{.region = destroy.region}, unlink_reason_);
  return true;
}

bool Session::TrimStepLocked(MessageHeader* reply) {
  const auto trim = pending_.as<TrimRequest>();
  const bool keeps = (pending_.flags & kFlagReservation) != 0;
  const PageStore::TrimArgs args{.region = trim.region,
                                 .epoch = Raw(trim.epoch),
                                 .range = trim.range,
                                 .frames = FramesOf(pending_),
                                 .reservation = keeps ? &lease_->reservation : nullptr,
                                 .generation = trim.span_generation};
  const Reason reason = context_.store->TrimStep(lease_.get(), args, &next_page_, &kept_bytes_);
  if (reason == Reason::kOk && next_page_ * kChunksPerPage < trim.range.end()) return false;
  *reply = ReplyTo(pending_, TrimReply{.region = trim.region, .range = trim.range, .kept_bytes = kept_bytes_}, reason);
  return true;
}

bool Session::DropStepLocked(MessageHeader* reply) {
  const auto drop = pending_.as<DropVersionRequest>();
  const PageStore::VersionDrop args{.region = drop.region,
                                    .epoch = Raw(drop.epoch),
                                    .first = drop.first,
                                    .last = drop.last,
                                    .force = drop.force != 0};
  bool done = false;
  const Reason reason =
      context_.store->DropVersionsStep(lease_.get(), args, std::exchange(is_first_step_, false), &done, &dropped_);
  // The work goes on without it, and other requests of the connection wait for the answer.
  if (!done && ++drop_steps_ < kDropStepsMax) return false;
  dropped_.region = drop.region;
  *reply = ReplyTo(pending_, dropped_, reason);
  return true;
}

bool Session::StepLocked(MessageHeader* reply) {
  switch (pending_.op) {
    case Op::kDestroy:
      return DestroyStepLocked(reply);
    case Op::kDropVersion:
      return DropStepLocked(reply);
    default:
      return TrimStepLocked(reply);
  }
}

absl::Status Session::Continue(ReplyBuffer* reply) {
  const int64_t until_ns = takes_turns_ ? MonotonicNs() + kTurnNs : 0;
  MessageHeader header;
  while (true) {
    {
      MutexLock lock(&busy_mu_);
      NRAM_RETURN_IF_ERROR(CheckMayExecute());
      if (StepLocked(&header)) break;
    }
    if (context_.between_steps_for_test != nullptr) context_.between_steps_for_test();
    if (takes_turns_ && MonotonicNs() >= until_ns) return absl::OkStatus();
  }
  busy_ = false;
  AppendReply(header, reply);
  return absl::OkStatus();
}

absl::StatusOr<bool> Session::Begin(const MessageHeader& request, const PayloadTables& tables, size_t reply_room,
                                    Landing* landing) {
  if (busy_) return false;
  if (request.is_reply()) return absl::InvalidArgumentError("a reply instead of a request");
  // Requests are executed in the order of their ids. A gap shows that bytes were lost, repeated or reordered on the
  // way.
  if (request.request_id != last_request_id_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", request.request_id, " received, ", last_request_id_ + 1, " expected"));
  }
  if ((request.op == Op::kHello) != (lease_ == nullptr)) {
    return absl::InvalidArgumentError(lease_ == nullptr ? absl::StrCat(OpName(request.op), " before hello")
                                                        : std::string("a second hello"));
  }
  const ChunkRange range = request.range();
  // Whether the region is sealed is not known yet.
  const size_t read_bytes = range.pages() * kPayloadTableBytesPerPageMax + range.bytes();
  const size_t reply_bytes = kMessageHeaderBytes + (request.op == Op::kRead ? read_bytes : 0);
  if (reply_room < reply_bytes) return false;
  if (request.op == Op::kWrite) {
    const uint64_t pages = range.pages();
    if (!context_.landing->Take(pages, landed_.data(), Taker())) return false;
    landed_count_ = pages;
    const absl::Span<const ChunkMask> masks = tables.masks;
    mask_count_ = masks.size();
    std::copy(masks.begin(), masks.end(), masks_.begin());
    seal_count_ = tables.seals.size();
    std::copy(tables.seals.begin(), tables.seals.end(), seals_.begin());
    for (uint64_t i = 0; i < pages; ++i) {
      const ChunkMask mask = masks.empty() ? MaskOfPage(range, range.first_page() + i) : masks[i];
      std::byte* page = context_.store->arena()->Data(landed_[i]);
      ForEachRun(mask, [&](size_t offset, size_t bytes) { landing->Add(page + offset, bytes); });
    }
  }
  ++last_request_id_;
  return true;
}

absl::Status Session::Execute(const MessageHeader& request, absl::Span<const uint32_t> page_crcs, ReplyBuffer* reply) {
  if (request.op == Op::kHello) {
    // Not under busy_mu_: Bind fences the predecessor under the lease's lock. No request runs here before hello.
    AppendReply(Hello(request), reply);
    return absl::OkStatus();
  }
  if (request.op != Op::kPing && !lease_->used.load(std::memory_order_relaxed)) lease_->used = true;
  if (request.op == Op::kTrim || request.op == Op::kDestroy || request.op == Op::kDropVersion) {
    busy_ = true;
    pending_ = request;
    next_page_ = request.range().first_page();
    kept_bytes_ = 0;
    is_first_step_ = true;
    drop_steps_ = 0;
    dropped_ = {};
    return Continue(reply);
  }
  MutexLock lock(&busy_mu_);
  if (absl::Status status = CheckMayExecute(); !status.ok()) {
    ReturnLanding();
    return status;
  }
  switch (request.op) {
    case Op::kRead:
      if (reply->direct != nullptr && reply->used == 0 && request.range().bytes() >= kDirectBytes) {
        return ReadDirect(request, reply);
      }
      ReadInto(request, reply);
      break;
    case Op::kWrite:
      AppendReply(WriteLocked(request, page_crcs), reply);
      break;
    case Op::kCreate:
      AppendReply(CreateLocked(request), reply);
      break;
    case Op::kPing:
      // A ping renews the lease.
      AppendReply(
          ReplyTo(request, PingReply{},
                  context_.leases->Renew(*context_.tenant, lease_->id).ok() ? Reason::kOk : Reason::kLeaseEnded),
          reply);
      break;
    case Op::kSeal:
      AppendReply(SealLocked(request), reply);
      break;
    case Op::kHello:
    case Op::kTrim:
    case Op::kDestroy:
    case Op::kDropVersion:
      break;  // see above
  }
  return absl::OkStatus();
}

MessageHeader Session::WriteLocked(const MessageHeader& request, absl::Span<const uint32_t> page_crcs) {
  const auto write = request.as<WriteRequest>();
  Payment payment;
  if ((request.flags & kFlagReservation) != 0) payment = Payment(&lease_->reservation, write.grant_bytes);
  uint32_t stored_pages = 0;
  VersionNumber yielded{};
  Reason reason = Reason::kUnknownRegion;
  if (IsRegionId(Raw(write.region))) {
    const PageStore::WriteArgs args{.region = write.region,
                                    .epoch = Raw(write.epoch),
                                    .range = write.range,
                                    .masks = {masks_.data(), mask_count_},
                                    .page_crcs = page_crcs,
                                    .landed = landed_.data(),
                                    .absent = AbsentPolicy(request),
                                    .frames = FramesOf(request),
                                    .term = term_,
                                    .generation = write.span_generation,
                                    .seals = {seals_.data(), seal_count_}};
    reason = context_.store->Write(lease_.get(), args, &payment, &stored_pages, &yielded);
  }
  ReturnLanding();
  displaced_ = true;
  if (reason == Reason::kDamaged) {
    LOG_EVERY_N(ERROR, 100) << "memory of region " << FormatId(Raw(write.region))
                            << " has changed since it was written: is this machine's RAM sound?";
  }
  return ReplyTo(request,
                 WriteReply{.region = write.region,
                            .range = write.range,
                            .used_bytes = payment.paid_bytes(),
                            .stored_pages = stored_pages,
                            .yielded = yielded},
                 reason);
}

MessageHeader Session::CreateLocked(const MessageHeader& request) {
  const auto create = request.as<CreateRequest>();
  Reason reason = Reason::kUnknownRegion;
  if (IsRegionId(Raw(create.region))) {
    reason = context_.store->Create(lease_.get(), create.region, Raw(create.epoch), (request.flags & kFlagGc) != 0,
                                    request.sealed());
  }
  return ReplyTo(request, CreateReply{.region = create.region}, reason);
}

MessageHeader Session::SealLocked(const MessageHeader& request) {
  const auto seal = request.as<SealRequest>();
  SealReply sealed{.region = seal.region};
  const PageStore::VersionSeal args{.region = seal.region,
                                    .epoch = Raw(seal.epoch),
                                    .version = seal.version,
                                    .keep = static_cast<VersionKeep>(seal.keep)};
  const Reason reason = context_.store->SealVersion(lease_.get(), args, &sealed);
  return ReplyTo(request, sealed, reason);
}

MessageHeader Session::Hello(const MessageHeader& request) {
  const auto hello = request.as<HelloRequest>();
  HelloReply said{.incarnation = context_.incarnation};
  const auto answer = [&](Reason reason) {
    MessageHeader reply = ReplyTo(request, said, reason);
    reply.flags |= request.flags & kFlagUrgent;
    return reply;
  };
  if (!WireVersions().Has(hello.version)) return answer(Reason::kOtherVersion);
  std::shared_ptr<Lease> lease = context_.leases->Find(hello.lease);
  const uint64_t term = lease == nullptr ? 0 : lease->term();
  // Hello renews the lease. Another tenant's is none.
  if (lease == nullptr || !context_.leases->Renew(*context_.tenant, hello.lease).ok()) {
    return answer(Reason::kLeaseEnded);
  }
  connection_class_ = (request.flags & kFlagUrgent) != 0 ? 1 : 0;
  if (!lease->Bind(connection_class_, hello.generation, this)) return answer(Reason::kFenced);
  lease_ = std::move(lease);
  term_ = term;
  said.credit_requests = context_.credit.requests;
  said.credit_kib = context_.credit.kib;
  return answer(Reason::kOk);
}

void Session::ReadInto(const MessageHeader& request, ReplyBuffer* reply) {
  const auto read = request.as<ReadRequest>();
  MessageHeader header = ReplyTo(request, ReadReply{.region = read.region, .range = read.range});
  std::byte* const at = reply->data + reply->used;
  std::byte* const payload = at + kMessageHeaderBytes;
  const uint64_t pages = read.range.pages();
  std::array<ChunkMask, kPagesPerMessage> masks;
  std::array<uint32_t, kPagesPerMessage> page_crcs;
  std::array<PageSeal, kPagesPerMessage> seals;
  size_t chunk_bytes = 0;
  bool sealed = false;
  header.reason = context_.store->Read(ReadArgsOf(read, *context_.tenant), masks.data(), page_crcs.data(), payload,
                                       &chunk_bytes, seals.data(), &sealed);
  uint32_t crc = 0;
  if (header.reason == Reason::kOk) {
    if (chunk_bytes < read.range.bytes()) header.flags |= kFlagSparse;
    if (sealed) header.flags |= kFlagSealed;
    const size_t table_bytes = header.table_bytes();
    if (table_bytes > 0) {
      memmove(payload + table_bytes, payload, chunk_bytes);
      memcpy(payload, masks.data(), header.mask_bytes());
      memcpy(payload + header.mask_bytes(), seals.data(), header.seal_bytes());
    }
    header.payload_bytes = static_cast<uint32_t>(table_bytes + chunk_bytes);
    crc = PayloadCrc({reinterpret_cast<const uint8_t*>(payload), table_bytes}, {page_crcs.data(), pages});
  }
  EncodeHeader(header, crc, at);
  reply->used += kMessageHeaderBytes + header.payload_bytes;
}

// Sends the chunks from their frames. Chunks that the socket does not take are copied into `reply`, because frames may
// change after the store's lock is released.
absl::Status Session::ReadDirect(const MessageHeader& request, ReplyBuffer* reply) {
  const auto read = request.as<ReadRequest>();
  MessageHeader header = ReplyTo(request, ReadReply{.region = read.region, .range = read.range});
  absl::Status error;
  const auto send = [&](const PageStore::Stored& stored) {
    std::array<iovec, 3 + kPagesPerMessage + 2 * kChunksPerPage> pieces;
    size_t chunk_bytes = 0;
    for (const iovec& piece : stored.chunks) chunk_bytes += piece.iov_len;
    size_t count = 1;
    if (chunk_bytes < read.range.bytes()) {
      header.flags |= kFlagSparse;
      pieces[count++] = {const_cast<ChunkMask*>(stored.masks.data()), stored.masks.size()};
    }
    if (!stored.seals.empty()) {
      header.flags |= kFlagSealed;
      pieces[count++] = {const_cast<PageSeal*>(stored.seals.data()), header.seal_bytes()};
    }
    std::copy(stored.chunks.begin(), stored.chunks.end(), pieces.begin() + count);
    count += stored.chunks.size();
    header.payload_bytes = static_cast<uint32_t>(chunk_bytes) + header.table_bytes();
    uint32_t tables_crc = header.sparse() ? Crc32c(0, stored.masks.data(), header.mask_bytes()) : 0;
    if (header.sealed()) tables_crc = Crc32c(tables_crc, stored.seals.data(), header.seal_bytes());
    std::byte encoded[kMessageHeaderBytes];
    EncodeHeader(header, PayloadCrcAfterTables(tables_crc, stored.page_crcs), encoded);
    pieces[0] = {encoded, sizeof encoded};
    const absl::StatusOr<size_t> taken = reply->direct->Send({pieces.data(), count});
    error = taken.status();
    size_t sent = taken.value_or(0);
    for (size_t i = 0; i < count && error.ok(); ++i) {
      const size_t skip = std::min(sent, pieces[i].iov_len);
      sent -= skip;
      const size_t left = pieces[i].iov_len - skip;
      memcpy(reply->data + reply->used, static_cast<std::byte*>(pieces[i].iov_base) + skip, left);
      reply->used += left;
    }
  };
  header.reason = context_.store->ReadInPlace(ReadArgsOf(read, *context_.tenant), send);
  NRAM_RETURN_IF_ERROR(error);
  if (header.reason != Reason::kOk) AppendReply(header, reply);
  return absl::OkStatus();
}

}  // namespace nram
