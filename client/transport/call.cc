#include "client/transport/call.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/sync.h"

namespace nram {

uint32_t RequestPayloadBytes(const Call& call) {
  if (call.request.op != Op::kWrite) return 0;
  if (call.masks == nullptr) return static_cast<uint32_t>(call.request.range.bytes());
  const uint64_t pages = call.request.range.pages();
  uint64_t chunks = 0;
  for (uint64_t i = 0; i < pages; ++i) chunks += std::popcount(call.masks[i]);
  return static_cast<uint32_t>(pages + chunks * kChunkBytes);
}

void ChecksumPages(const Call& call, PageCrcs* page_crcs) {
  CHECK_LE(call.request.range.pages(), kPagesPerMessage);
  std::fill_n(page_crcs->begin(), call.request.range.pages(), 0);
  ForEachSentRun(call, [page_crcs](uint64_t page, const std::byte* data, size_t bytes) {
    (*page_crcs)[page] = Crc32c((*page_crcs)[page], data, bytes);
  });
}

absl::Status LandReply(const Call& call, const MessageHeader& reply, absl::Span<const ChunkMask> masks,
                       Landing* landing) {
  const MessageHeader& request = call.request;
  if (reply.op != request.op || reply.subject != request.subject || !(reply.range == request.range)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the reply to ", OpName(request.op), " ", reply.request_id, " is of something else"));
  }
  if (reply.op != Op::kRead || reply.reason != Reason::kOk) return absl::OkStatus();
  if (!reply.sparse()) {
    landing->Add(call.in, reply.range.bytes());
    return absl::OkStatus();
  }
  const uint64_t first_chunk = reply.range.first;
  for (size_t i = 0; i < masks.size(); ++i) {
    const uint64_t page_chunk = (reply.range.first_page() + i) * kChunksPerPage;
    const ChunkMask wanted = MaskOfPage(reply.range, reply.range.first_page() + i);
    // Offsets are from the page's start, which may lie before the buffer's.
    const int64_t page_offset =
        (static_cast<int64_t>(page_chunk) - static_cast<int64_t>(first_chunk)) * static_cast<int64_t>(kChunkBytes);
    ForEachRun(wanted & ~masks[i],
               [&](size_t offset, size_t bytes) { memset(call.in + (page_offset + int64_t(offset)), 0, bytes); });
    ForEachRun(masks[i],
               [&](size_t offset, size_t bytes) { landing->Add(call.in + (page_offset + int64_t(offset)), bytes); });
  }
  return absl::OkStatus();
}

void BeginCall(Call* call, const void* transport) {
  call->sent = false;
  call->started_at.store(transport, std::memory_order_relaxed);
  call->state.store(Call::kPending, std::memory_order_release);
}

bool IsUnderWay(const Call& call, const void* transport) {
  // In this order: who sees that it was begun again sees where.
  return !call.is_done() && call.started_at.load(std::memory_order_relaxed) == transport;
}

void CompleteCall(Call* call, absl::StatusCode code, Reason reason, uint64_t aux) {
  call->code = code;
  call->reason = reason;
  call->aux = aux;
  // A waiter may return as soon as the state says so, and the call be gone unless it has a `done`.
  void (*const done)(Call*) = call->done;
  if (call->state.exchange(Call::kDone, std::memory_order_acq_rel) == Call::kSleeping) FutexWakeAll(&call->state);
  if (done != nullptr) done(call);
}

absl::Status CallStatus(const Call& call, absl::string_view who) {
  const auto text = [&](absl::string_view what) {
    return absl::StrCat(OpName(call.request.op), " of region ", FormatId(call.request.subject), " at ", who, ": ",
                        what);
  };
  if (call.code != absl::StatusCode::kOk) {
    const char* what = call.code == absl::StatusCode::kDeadlineExceeded ? "no answer in time"
                       : call.code == absl::StatusCode::kDataLoss       ? "the answer was garbled"
                                                                        : "the connection is down";
    return absl::Status(call.code, text(what));
  }
  switch (call.reason) {
    case Reason::kOk:
      return absl::OkStatus();
    case Reason::kFull:
      return absl::ResourceExhaustedError(text("the server is full; add memory servers or delete data"));
    case Reason::kUnknownRegion:
      return absl::NotFoundError(text("the server does not hold this region"));
    case Reason::kRegionExists:
      return absl::AlreadyExistsError(text("the region exists"));
    case Reason::kStaleEpoch:
      return absl::FailedPreconditionError(text("another client has taken the region over"));
    case Reason::kNotOwner:
      return absl::PermissionDeniedError(text("the region belongs to another client"));
    case Reason::kLeaseEnded:
      return absl::FailedPreconditionError(text("this client's lease has ended there"));
    case Reason::kFenced:
      return absl::UnavailableError(text("the connection was replaced by a newer one"));
    case Reason::kDraining:
      return absl::ResourceExhaustedError(text("the donor takes no new pages"));
    case Reason::kDamaged:
      return absl::DataLossError(text("its memory of a page has changed; only writing that page whole mends it"));
  }
  return absl::InternalError(text("unknown reason"));
}

}  // namespace nram
