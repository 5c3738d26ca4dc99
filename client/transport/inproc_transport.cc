#include "client/transport/inproc_transport.h"

#include <poll.h>

#include <cstring>

#include "base/clock.h"

namespace nram {
namespace {

// Copies a write's chunks to their landing.
void CopyOut(const Call& call, const Landing& landing) {
  // The pieces are the runs of the masks, in order. Merged or not, they hold the bytes in the same order.
  size_t piece = 0;
  size_t filled = 0;
  ForEachSentRun(call, [&](uint64_t, const std::byte* from, size_t bytes) {
    while (bytes > 0) {
      const iovec& to = landing.pieces()[piece];
      const size_t step = std::min(bytes, to.iov_len - filled);
      memcpy(static_cast<std::byte*>(to.iov_base) + filled, from, step);
      from += step;
      bytes -= step;
      filled += step;
      if (filled == to.iov_len) {
        ++piece;
        filled = 0;
      }
    }
  });
}

}  // namespace

absl::Status InprocTransport::Connect(int64_t deadline_ns) {
  MutexLock lock(&mu_);
  if (service_ != nullptr) return absl::OkStatus();
  if (reply_ == nullptr) reply_ = std::make_unique<std::byte[]>(kMessageBytesMax);
  service_ = connect_();
  Call hello;
  hello.request = MessageHeader(HelloRequest{.lease = lease_, .generation = static_cast<uint64_t>(MonotonicNs())},
                                urgent_ ? kFlagUrgent : 0);
  hello.deadline_ns = deadline_ns;
  next_request_id_ = 1;
  MessageHeader reply;
  absl::Status status;
  if (ExecuteLocked(&hello, &reply) != absl::StatusCode::kOk) {
    status = absl::UnavailableError("hello: refused");
  } else {
    status = CheckHello(hello.request, reply).status();
  }
  if (!status.ok()) service_.reset();
  return status;
}

bool InprocTransport::connected() const {
  MutexLock lock(&mu_);
  return service_ != nullptr;
}

absl::StatusCode InprocTransport::ExecuteLocked(Call* call, MessageHeader* reply_header) {
  MessageHeader& request = call->request;
  request.request_id = next_request_id_++;
  call->sent = true;
  request.payload_bytes = RequestPayloadBytes(*call);
  PayloadTables tables;
  if (call->masks != nullptr) {
    request.flags |= kFlagSparse;
    tables.masks = {call->masks, request.range().pages()};
  }
  if (call->seals != nullptr && request.op == Op::kWrite) {
    request.flags |= kFlagSealed;
    tables.seals = {call->seals, request.range().pages()};
  }
  landing_.clear();
  while (true) {
    const auto accepted = service_->Begin(request, tables, kMessageBytesMax, &landing_);
    if (!accepted.ok()) return absl::StatusCode::kUnavailable;
    if (*accepted) break;
    if (MonotonicNs() >= call->deadline_ns) return absl::StatusCode::kDeadlineExceeded;
    poll(nullptr, 0, 1);
  }
  PageCrcs page_crcs;
  if (request.op == Op::kWrite) {
    if (!landing_.empty()) CopyOut(*call, landing_);
    ChecksumPages(*call, &page_crcs);
  }
  ReplyBuffer reply{reply_.get(), kMessageBytesMax, 0};
  const size_t pages = request.op == Op::kWrite ? request.range().pages() : 0;
  if (!service_->Execute(request, {page_crcs.data(), pages}, &reply).ok()) return absl::StatusCode::kUnavailable;
  MessageHeader& header = *reply_header;
  if (!DecodeHeader(reply.data, &header).ok()) return absl::StatusCode::kDataLoss;
  const auto* payload = reply.data + kMessageHeaderBytes;
  if (!MatchesChecksum(reply.data, PayloadCrcOf(header, payload))) return absl::StatusCode::kDataLoss;
  landing_.clear();
  const PayloadTables told{
      {reinterpret_cast<const ChunkMask*>(payload), header.mask_bytes()},
      {reinterpret_cast<const PageSeal*>(payload + header.mask_bytes()), header.seal_bytes() / sizeof(PageSeal)}};
  if (header.op != Op::kHello && !LandReply(*call, header, told, &landing_).ok()) return absl::StatusCode::kDataLoss;
  payload += header.table_bytes();
  for (const iovec& piece : landing_.pieces()) {
    memcpy(piece.iov_base, payload, piece.iov_len);
    payload += piece.iov_len;
  }
  return absl::StatusCode::kOk;
}

void InprocTransport::Start(Call* call) {
  BeginCall(call, this);
  MessageHeader reply;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  {
    MutexLock lock(&mu_);
    if (service_ != nullptr) {
      code = ExecuteLocked(call, &reply);
      if (code != absl::StatusCode::kOk) service_.reset();
    }
  }
  if (code == absl::StatusCode::kOk) {
    AnswerCall(call, reply);
  } else {
    FailCall(call, code);
  }
}

void InprocTransport::Wait(Call* call) {
  // Start has executed the call already, unless another thread is still doing so.
  while (IsUnderWay(*call, this)) poll(nullptr, 0, 1);
}

void InprocTransport::Disconnect() {
  MutexLock lock(&mu_);
  service_.reset();
}

}  // namespace nram
