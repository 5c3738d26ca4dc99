#include "client/transport/call.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/sync.h"
#include "proto/version.h"

namespace nram {
namespace {

// Ends a call whose result is set.
void CompleteCall(Call* call) {
  // As soon as the state says kDone, a waiter may return. The call may then be gone, unless it has a `done`.
  void (*const done)(Call*) = call->done;
  if (call->state.exchange(Call::kDone, std::memory_order_acq_rel) == Call::kSleeping) FutexWakeAll(&call->state);
  if (done != nullptr) done(call);
}

}  // namespace

uint32_t RequestPayloadBytes(const Call& call) {
  if (call.request.op != Op::kWrite) return 0;
  const ChunkRange range = call.request.range();
  const uint64_t pages = range.pages();
  const uint64_t seal_bytes = call.seals != nullptr ? pages * sizeof(PageSeal) : 0;
  if (call.masks == nullptr) return static_cast<uint32_t>(seal_bytes + range.bytes());
  uint64_t chunks = 0;
  for (uint64_t i = 0; i < pages; ++i) chunks += std::popcount(call.masks[i]);
  return static_cast<uint32_t>(pages + seal_bytes + chunks * kChunkBytes);
}

void ChecksumPages(const Call& call, PageCrcs* page_crcs) {
  const uint64_t pages = call.request.range().pages();
  CHECK_LE(pages, kPagesPerMessage);
  std::fill_n(page_crcs->begin(), pages, 0);
  ForEachSentRun(call, [page_crcs](uint64_t page, const std::byte* data, size_t bytes) {
    (*page_crcs)[page] = Crc32c((*page_crcs)[page], data, bytes);
  });
}

uint32_t SentPayloadCrc(const Call& call, absl::Span<const uint32_t> page_crcs) {
  const size_t pages = page_crcs.size();
  uint32_t tables_crc = call.masks != nullptr ? Crc32c(0, call.masks, pages * sizeof(ChunkMask)) : 0;
  if (call.seals != nullptr) tables_crc = Crc32c(tables_crc, call.seals, pages * sizeof(PageSeal));
  return PayloadCrcAfterTables(tables_crc, page_crcs);
}

absl::Status LandReply(const Call& call, const MessageHeader& reply, const PayloadTables& tables, Landing* landing) {
  const MessageHeader& request = call.request;
  const ChunkRange range = request.range();
  if (reply.op != request.op || reply.region() != request.region() || !(reply.range() == range)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the reply to ", OpName(request.op), " ", reply.request_id, " does not match the request"));
  }
  if (reply.op != Op::kRead || reply.reason != Reason::kOk) return absl::OkStatus();
  if (reply.sealed() != (call.seals != nullptr)) {
    return absl::InvalidArgumentError(reply.sealed() ? "the reply is sealed, but the request is not"
                                                     : "the reply is not sealed, but the region is");
  }
  std::copy(tables.seals.begin(), tables.seals.end(), call.seals);
  const absl::Span<const ChunkMask> masks = tables.masks;
  if (!reply.sparse()) {
    landing->Add(call.in, range.bytes());
    return absl::OkStatus();
  }
  const uint64_t first_chunk = range.first;
  for (size_t i = 0; i < masks.size(); ++i) {
    const uint64_t page_chunk = (range.first_page() + i) * kChunksPerPage;
    const ChunkMask wanted = MaskOfPage(range, range.first_page() + i);
    // Offsets count from the page's beginning, which may lie before the buffer's.
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
  // is_done() comes first: a thread that sees that the call was begun again also sees where.
  return !call.is_done() && call.started_at.load(std::memory_order_relaxed) == transport;
}

void AnswerCall(Call* call, const MessageHeader& reply) {
  call->code = absl::StatusCode::kOk;
  call->reason = reply.reason;
  call->asks_back = (reply.flags & kFlagAsksBack) != 0;
  call->used_bytes = reply.is<WriteReply>() ? reply.as<WriteReply>().used_bytes : 0;
  call->stored_pages = 0;
  call->yielded = VersionNumber{};
  if (reply.is<WriteReply>()) {
    call->yielded = reply.as<WriteReply>().yielded;
    call->stored_pages =
        std::min(reply.as<WriteReply>().stored_pages, static_cast<uint32_t>(call->request.range().pages()));
  }
  call->kept_bytes = reply.is<TrimReply>() ? reply.as<TrimReply>().kept_bytes : 0;
  if (reply.is<SealReply>() || reply.is<DropVersionReply>()) call->answer = reply.body;
  CompleteCall(call);
}

void FailCall(Call* call, absl::StatusCode code) {
  call->code = code;
  call->reason = Reason::kOk;
  call->asks_back = false;
  call->used_bytes = call->kept_bytes = call->stored_pages = 0;
  call->yielded = VersionNumber{};
  call->answer = {};
  CompleteCall(call);
}

absl::StatusOr<HelloReply> CheckHello(const MessageHeader& hello, const MessageHeader& reply) {
  if (!reply.is<HelloReply>() || reply.request_id != hello.request_id) {
    return absl::UnavailableError("hello: the peer is not a memory server");
  }
  const auto said = reply.as<HelloReply>();
  switch (reply.reason) {
    case Reason::kOk:
      return said;
    case Reason::kLeaseEnded:
      return absl::FailedPreconditionError("hello: the server does not know the lease");
    case Reason::kFenced:
      return absl::AbortedError("hello: a newer connection exists");
    case Reason::kOtherVersion: {
      const uint32_t version = hello.as<HelloRequest>().version;
      return absl::FailedPreconditionError(absl::StrCat(
          "hello: ", NoCommonVersion("the server", {said.version_lowest, said.version_highest}, {version, version})));
    }
    default:
      return absl::UnavailableError("hello: refused");
  }
}

absl::Status CallStatus(const Call& call, absl::string_view who) {
  const auto text = [&](absl::string_view what) {
    return absl::StrCat(OpName(call.request.op), " of region ", FormatId(Raw(call.request.region())), " at ", who, ": ",
                        what);
  };
  if (call.code != absl::StatusCode::kOk) {
    const char* what = call.code == absl::StatusCode::kDeadlineExceeded ? "no answer in time"
                       : call.code == absl::StatusCode::kDataLoss       ? "the answer was corrupted"
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
      return absl::ResourceExhaustedError(text("the server accepts no new spans"));
    case Reason::kDamaged:
      return absl::DataLossError(text("a stored page is corrupted; only writing the whole page repairs it"));
    case Reason::kOtherGeneration:
      return absl::FailedPreconditionError(text("the server has another generation of the span"));
    case Reason::kNoSeals:
      return absl::UnimplementedError(
          text("the pages of the region are sealed and those of the request are not, or the reverse"));
    case Reason::kUnknownSnapshot:
      return absl::NotFoundError(text("the server has no such version of the region"));
    case Reason::kOtherVersion:
      return absl::FailedPreconditionError(text("the server does not speak this version of the wire"));
    case Reason::kOldVersion:
      return absl::AlreadyExistsError(text("the server has sealed this version, or a newer one, before"));
  }
  return absl::InternalError(text("unknown reason"));
}

}  // namespace nram
