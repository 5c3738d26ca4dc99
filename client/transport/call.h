#ifndef NRAM_CLIENT_TRANSPORT_CALL_H_
#define NRAM_CLIENT_TRANSPORT_CALL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/message.h"
#include "proto/message_reader.h"

namespace nram {

// One request and its reply. The caller owns the call and its buffers; both must stay until the call is done. Then the
// call may be used again. Nothing in it allocates.
struct Call {
  // --- Set by the caller. ---

  // Made of the operation's body, as MessageHeader(ReadRequest{...}), with all flags but kFlagSparse, and kFlagSealed
  // of a write. The transport sets the rest.
  MessageHeader request;
  // write: range().bytes() bytes. `masks` selects the chunks that are sent, with one mask for each page of the range;
  // null: all chunks.
  const std::byte* out = nullptr;
  const ChunkMask* masks = nullptr;
  // Of a sealed region, for each page of the range. write: the pages' seals (zeros for a page that is not sent). read:
  // where they are put; zeros for a hole. Null: the region is plain.
  PageSeal* seals = nullptr;
  // read: range().bytes() bytes. Holes are filled with zeros. Unspecified unless the call succeeds.
  std::byte* in = nullptr;
  int64_t deadline_ns = 0;  // absolute, monotonic
  // Null: a thread will Wait for the call. Otherwise `done` runs exactly once, when the call is done, on any thread
  // that moves traffic, with no lock held. It must not block, and may Start calls. The transport does not touch the
  // call after that.
  void (*done)(Call* call) = nullptr;
  // If there is a `done`, a thread is still expected to Wait soon. The poller leaves the receiving to that thread, and
  // looks only every 20 ms. The call and its deadline must stay until `done` has run and Wait has returned.
  bool wait_expected = false;
  // If there is no `done`, another server may keep the thread from its Wait. Until then the poller looks every 20 ms,
  // so that neither end takes the other for dead.
  bool may_wait_late = false;
  void* context = nullptr;

  // --- Set by the transport. ---

  // kOk: the server answered; `reason` says what.
  // kDeadlineExceeded, kUnavailable: it did not answer. It may have executed the request; it does not execute it any
  // more after the connection's successor has said hello.
  // kDataLoss: the reply was garbled; the same holds for the request.
  absl::StatusCode code = absl::StatusCode::kOk;
  Reason reason = Reason::kOk;
  uint64_t used_bytes = 0;    // write: WriteReply::used_bytes
  uint32_t stored_pages = 0;  // write: WriteReply::stored_pages, at most those of the range
  VersionNumber yielded{};    // write: WriteReply::yielded
  uint64_t kept_bytes = 0;    // trim: TrimReply::kept_bytes
  BodyWords answer{};         // seal, drop of versions: FromWords<SealReply> or <DropVersionReply>
  bool asks_back = false;     // the server asks for memory; a renewal of the lease tells how much
  bool sent = false;          // some of the request may have been sent; else the server knows nothing of it

  bool is_done() const { return state.load(std::memory_order_acquire) == kDone; }

  // --- The transport's own. ---
  // kSleeping: pending, and its waiter must be woken. kLead: woken to take the receiving role.
  static constexpr uint32_t kIdle = 0, kPending = 1, kSleeping = 2, kLead = 3, kDone = 4;
  std::atomic<uint32_t> state{kIdle};
  std::atomic<const void*> started_at{nullptr};  // the last transport that has begun it
  Call* next = nullptr;
  uint32_t payload_crc = 0;
  uint32_t credit_bytes = 0;
};

// Calls visit(page, data, bytes) for each run of chunks that a write sends, in order. `page` counts from the first page
// of the range.
template <typename Visit>
void ForEachSentRun(const Call& call, Visit visit) {
  const ChunkRange range = call.request.range();
  for (uint64_t i = 0; i < range.pages(); ++i) {
    const ChunkMask mask = call.masks != nullptr ? call.masks[i] : MaskOfPage(range, range.first_page() + i);
    // `out` may begin behind the beginning of the first page.
    const int64_t page_offset = static_cast<int64_t>((range.first_page() + i) * kChunksPerPage - range.first) *
                                static_cast<int64_t>(kChunkBytes);
    ForEachRun(mask, [&](size_t offset, size_t bytes) {
      visit(i, call.out + (page_offset + static_cast<int64_t>(offset)), bytes);
    });
  }
}

// The checksums of a write's pages, as for PayloadCrc.
using PageCrcs = std::array<uint32_t, kPagesPerMessage>;
void ChecksumPages(const Call& call, PageCrcs* page_crcs);

// The checksum of the payload that a write sends. `page_crcs`: by ChecksumPages.
uint32_t SentPayloadCrc(const Call& call, absl::Span<const uint32_t> page_crcs);

// Payload bytes that the call sends, tables included.
uint32_t RequestPayloadBytes(const Call& call);

// Checks a reply's header against its call and says where the payload lands. Fills holes with zeros, and takes seals.
// INVALID_ARGUMENT: it is no reply to this call.
absl::Status LandReply(const Call& call, const MessageHeader& reply, const PayloadTables& tables, Landing* landing);

// Makes `call` a pending call of `transport`.
void BeginCall(Call* call, const void* transport);

// Whether a thread in Wait of `transport` still has to wait. (A `done` may have started the call again elsewhere.)
bool IsUnderWay(const Call& call, const void* transport);

// Both set the result, mark the call done, and wake its waiter or run `done`. AnswerCall has the server's reply, which
// LandReply has accepted. FailCall has none; `code` is not kOk.
void AnswerCall(Call* call, const MessageHeader& reply);
void FailCall(Call* call, absl::StatusCode code);

// The server's answer to a connection's hello. FAILED_PRECONDITION: it does not know the lease, or does not speak the
// version. ABORTED: a newer connection was there before. UNAVAILABLE: it refuses, or is no memory server.
absl::StatusOr<HelloReply> CheckHello(const MessageHeader& hello, const MessageHeader& reply);

// The Status of a finished call. `who` names the server ("10.0.0.7:7070").
absl::Status CallStatus(const Call& call, absl::string_view who);

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_CALL_H_
