#include "memserver/session.h"

#include <errno.h>
#include <glog/logging.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {

namespace {

PageStore::IfAbsent AbsentPolicy(const MessageHeader& request) {
  if ((request.flags & kFlagCreate) == 0) return PageStore::IfAbsent::kRefuse;
  return (request.flags & kFlagGc) != 0 ? PageStore::IfAbsent::kCreateGc : PageStore::IfAbsent::kCreate;
}

}  // namespace

Session::~Session() {
  ReturnLanding();
  context_.store->FreeLater(std::move(doomed_));
  if (lease_ != nullptr) lease_->Unbind(connection_class_, this);
}

void Session::ReturnLanding() {
  if (landed_count_ > 0) context_.landing->Give(landed_.data(), landed_count_);
  landed_count_ = 0;
}

void Session::Replied() {
  if (std::exchange(displaced_, false)) context_.landing->Warm();
}

void Session::Fence() {
  // Said before it waits, so that the next step does not begin.
  fenced_ = true;
  MutexLock lock(&busy_mu_);
}

absl::Status Session::CheckMayExecute() {
  if (fenced_) return absl::AbortedError("a newer connection of the same client took this one's place");
  // Its requests may be from before the lease ended, when the region that they create had been there.
  if (lease_->live() && lease_->term() != term_) {
    return absl::AbortedError("its lease ended and was granted anew; it must say hello again");
  }
  return absl::OkStatus();
}

bool Session::StepLocked() {
  PageStore* const store = context_.store;
  MessageHeader& reply = pending_reply_;
  if (pending_.op == Op::kDestroy) {
    if (doomed_ == nullptr) {
      reply.reason = store->Unlink(lease_.get(), RegionId{pending_.subject}, pending_.epoch, &doomed_);
    }
    return store->FreeStep(&doomed_);
  }
  const bool promised = (pending_.flags & kFlagPromised) != 0;
  const auto frames = (pending_.flags & kFlagReserved) != 0 ? PageStore::Frames::kWhole : PageStore::Frames::kFitted;
  reply.reason = store->TrimStep(lease_.get(), RegionId{pending_.subject}, pending_.epoch, pending_.range,
                                 promised ? &lease_->promise : nullptr, &reply.aux, frames, &next_page_);
  return reply.reason != Reason::kOk || next_page_ * kChunksPerPage >= pending_.range.end();
}

absl::Status Session::Continue(ReplyBuffer* reply) {
  const int64_t until_ns = takes_turns_ ? MonotonicNs() + kTurnNs : 0;
  while (true) {
    {
      MutexLock lock(&busy_mu_);
      NRAM_RETURN_IF_ERROR(CheckMayExecute());
      if (StepLocked()) break;
    }
    if (context_.between_steps_for_test != nullptr) context_.between_steps_for_test();
    if (takes_turns_ && MonotonicNs() >= until_ns) return absl::OkStatus();
  }
  busy_ = false;
  EncodeHeader(pending_reply_, 0, reply->data + reply->used);
  reply->used += kMessageHeaderBytes;
  return absl::OkStatus();
}

absl::StatusOr<bool> Session::Begin(const MessageHeader& request, absl::Span<const ChunkMask> masks, size_t reply_room,
                                    Landing* landing) {
  if (busy_) return false;
  if (request.is_reply()) return absl::InvalidArgumentError("a reply where a request belongs");
  // Bytes that were lost, repeated or reordered on the way would execute out of order; nothing does.
  if (request.request_id != last_request_id_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("request ", request.request_id, " where ", last_request_id_ + 1, " was due"));
  }
  if ((request.op == Op::kHello) != (lease_ == nullptr)) {
    return absl::InvalidArgumentError(lease_ == nullptr ? absl::StrCat(OpName(request.op), " before hello")
                                                        : std::string("a second hello"));
  }
  const size_t reply_bytes =
      kMessageHeaderBytes + (request.op == Op::kRead ? request.range.pages() + request.range.bytes() : 0);
  if (reply_room < reply_bytes) return false;
  if (request.op == Op::kWrite) {
    const uint64_t pages = request.range.pages();
    // Bulk writes leave room for an urgent one, which must not wait for them.
    const size_t leave = urgent() ? 0 : kPagesPerMessage;
    if (!context_.landing->Take(pages, landed_.data(), leave)) return false;
    landed_count_ = pages;
    mask_count_ = masks.size();
    std::copy(masks.begin(), masks.end(), masks_.begin());
    for (uint64_t i = 0; i < pages; ++i) {
      const ChunkMask mask = masks.empty() ? MaskOfPage(request.range, request.range.first_page() + i) : masks[i];
      std::byte* page = context_.store->arena()->Data(landed_[i]);
      ForEachRun(mask, [&](size_t offset, size_t bytes) { landing->Add(page + offset, bytes); });
    }
  }
  ++last_request_id_;
  return true;
}

absl::Status Session::Execute(const MessageHeader& request, absl::Span<const uint32_t> page_crcs, ReplyBuffer* reply) {
  MessageHeader header;
  header.op = request.op;
  header.flags = kFlagReply;
  header.request_id = request.request_id;
  header.subject = request.subject;
  header.range = request.range;
  if (request.op == Op::kHello) {
    // Not under busy_mu_: binding fences the predecessor under the lease's lock, and nothing else runs here before it.
    NRAM_RETURN_IF_ERROR(Hello(request, &header));
    EncodeHeader(header, 0, reply->data + reply->used);
    reply->used += kMessageHeaderBytes;
    return absl::OkStatus();
  }
  if (request.op != Op::kPing && !lease_->used.load(std::memory_order_relaxed)) lease_->used = true;
  if (request.op == Op::kTrim || request.op == Op::kDestroy) {
    busy_ = true;
    pending_ = request;
    pending_reply_ = header;
    next_page_ = request.range.first_page();
    return Continue(reply);
  }
  MutexLock lock(&busy_mu_);
  if (absl::Status status = CheckMayExecute(); !status.ok()) {
    ReturnLanding();
    return status;
  }
  const RegionId region{request.subject};
  PageStore* const store = context_.store;
  ArenaPromise* const promise = (request.flags & kFlagPromised) != 0 ? &lease_->promise : nullptr;
  const auto frames = (request.flags & kFlagReserved) != 0 ? PageStore::Frames::kWhole : PageStore::Frames::kFitted;
  switch (request.op) {
    case Op::kRead:
      if (reply->direct_fd >= 0 && reply->used == 0 && request.range.bytes() >= kDirectBytes) {
        return ReadDirect(request, &header, reply);
      }
      ReadInto(request, &header, reply);
      return absl::OkStatus();
    case Op::kWrite:
      header.reason =
          !IsRegionId(request.subject)
              ? Reason::kUnknownRegion
              : store->Write(lease_.get(), promise, region, request.epoch, request.range, {masks_.data(), mask_count_},
                             page_crcs, AbsentPolicy(request), landed_.data(), &header.aux, frames, request.aux, term_);
      ReturnLanding();
      displaced_ = true;
      if (header.reason == Reason::kDamaged) {
        LOG_EVERY_N(ERROR, 100) << "memory of region " << FormatId(request.subject)
                                << " has changed since it was written: is this machine's RAM sound?";
      }
      break;
    case Op::kCreate:
      header.reason = !IsRegionId(request.subject) ? Reason::kUnknownRegion
                                                   : store->Create(lease_.get(), region, request.epoch,
                                                                   (request.flags & kFlagGc) != 0, &header.aux);
      break;
    case Op::kPing:
      // A sign of life as good as a renewal.
      if (!context_.leases->Renew(lease_->id).ok()) header.reason = Reason::kLeaseEnded;
      break;
    case Op::kHello:
    case Op::kTrim:
    case Op::kDestroy:
      break;  // see above
  }
  EncodeHeader(header, 0, reply->data + reply->used);
  reply->used += kMessageHeaderBytes;
  return absl::OkStatus();
}

absl::Status Session::Hello(const MessageHeader& request, MessageHeader* reply) {
  reply->subject = context_.incarnation;
  std::shared_ptr<Lease> lease = context_.leases->Find(LeaseId{request.subject});
  const uint64_t term = lease == nullptr ? 0 : lease->term();
  // A sign of life as good as a renewal.
  if (lease == nullptr || !context_.leases->Renew(LeaseId{request.subject}).ok()) {
    reply->reason = Reason::kLeaseEnded;
    return absl::OkStatus();
  }
  connection_class_ = (request.flags & kFlagUrgent) != 0 ? 1 : 0;
  reply->flags |= request.flags & kFlagUrgent;
  if (!lease->Bind(connection_class_, request.aux, this)) {
    reply->reason = Reason::kFenced;
    return absl::OkStatus();
  }
  lease_ = std::move(lease);
  term_ = term;
  reply->aux = PackWindow(context_.window);
  return absl::OkStatus();
}

void Session::ReadInto(const MessageHeader& request, MessageHeader* header, ReplyBuffer* reply) {
  std::byte* const at = reply->data + reply->used;
  std::byte* const payload = at + kMessageHeaderBytes;
  const uint64_t pages = request.range.pages();
  std::array<ChunkMask, kPagesPerMessage> masks;
  std::array<uint32_t, kPagesPerMessage> page_crcs;
  size_t chunk_bytes = 0;
  header->reason = context_.store->Read(RegionId{request.subject}, request.epoch, request.range, masks.data(),
                                        page_crcs.data(), payload, &chunk_bytes);
  uint32_t crc = 0;
  if (header->reason == Reason::kOk) {
    header->payload_bytes = static_cast<uint32_t>(chunk_bytes);
    if (chunk_bytes < request.range.bytes()) {
      memmove(payload + pages, payload, chunk_bytes);
      memcpy(payload, masks.data(), pages);
      header->flags |= kFlagSparse;
      header->payload_bytes += static_cast<uint32_t>(pages);
    }
    crc = PayloadCrc({masks.data(), header->mask_bytes()}, {page_crcs.data(), pages});
  }
  EncodeHeader(*header, crc, at);
  reply->used += kMessageHeaderBytes + header->payload_bytes;
}

// Sends the chunks from their frames; what the socket does not take is copied behind, because frames may change when
// the store's lock is given up.
absl::Status Session::ReadDirect(const MessageHeader& request, MessageHeader* header, ReplyBuffer* reply) {
  int error = 0;
  const auto send = [&](const PageStore::Stored& stored) {
    std::array<iovec, 2 + kPagesPerMessage + 2 * kChunksPerPage> pieces;
    size_t chunk_bytes = 0;
    for (const iovec& piece : stored.chunks) chunk_bytes += piece.iov_len;
    size_t count = 1;
    if (chunk_bytes < request.range.bytes()) {
      header->flags |= kFlagSparse;
      pieces[count++] = {const_cast<ChunkMask*>(stored.masks.data()), stored.masks.size()};
    }
    std::copy(stored.chunks.begin(), stored.chunks.end(), pieces.begin() + count);
    count += stored.chunks.size();
    header->payload_bytes = static_cast<uint32_t>(chunk_bytes) + header->mask_bytes();
    std::byte encoded[kMessageHeaderBytes];
    EncodeHeader(*header, PayloadCrc(stored.masks.subspan(0, header->mask_bytes()), stored.page_crcs), encoded);
    pieces[0] = {encoded, sizeof encoded};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(reply->direct_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) error = errno;
    size_t sent = n > 0 ? static_cast<size_t>(n) : 0;
    for (size_t i = 0; i < count && error == 0; ++i) {
      const size_t skip = std::min(sent, pieces[i].iov_len);
      sent -= skip;
      const size_t left = pieces[i].iov_len - skip;
      memcpy(reply->data + reply->used, static_cast<std::byte*>(pieces[i].iov_base) + skip, left);
      reply->used += left;
    }
  };
  header->reason = context_.store->ReadInPlace(RegionId{request.subject}, request.epoch, request.range, send);
  if (error != 0) return absl::UnavailableError(absl::StrCat("send: ", strerror(error)));
  if (header->reason != Reason::kOk) {
    EncodeHeader(*header, 0, reply->data + reply->used);
    reply->used += kMessageHeaderBytes;
  }
  return absl::OkStatus();
}

}  // namespace nram
