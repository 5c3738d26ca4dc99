#ifndef NRAM_PROTO_MESSAGE_READER_H_
#define NRAM_PROTO_MESSAGE_READER_H_

// Turns the bytes of a stream into messages, at both ends of a connection. Payloads land where the handler says. The
// part of a payload that was not read ahead comes straight from the socket. Nothing is allocated after construction.

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapping.h"
#include "base/tls/channel.h"
#include "proto/message.h"

namespace nram {

// Where a payload's chunks go, in order. Up to four runs a page.
class Landing {
 public:
  static constexpr size_t kPiecesMax = kPagesPerMessage * 4;

  void clear() { count_ = 0; }
  bool empty() const { return count_ == 0; }
  size_t bytes() const;
  // Appends a piece; adjoining pieces are merged.
  void Add(std::byte* data, size_t bytes);
  absl::Span<const iovec> pieces() const { return {pieces_.data(), count_}; }

 private:
  std::array<iovec, kPiecesMax> pieces_;
  size_t count_ = 0;
};

// Not thread-safe.
class MessageReader {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // A header has arrived that DecodeHeader accepted, with tables that CheckTables accepted. `tables` are the
    // payload's, valid during the call.
    //   True: the payload's chunks go to *landing, which has exactly room for them; if it is empty, they are dropped.
    //   False: not now. The reader pauses and asks again at the next call.
    //   An error ends the stream.
    virtual absl::StatusOr<bool> OnHeader(const MessageHeader& header, const PayloadTables& tables,
                                          Landing* landing) = 0;
    // The payload is complete and its checksum is right. `page_crcs`: as for PayloadCrc; empty without a payload. An
    // error ends the stream.
    virtual absl::Status OnMessage(const MessageHeader& header, absl::Span<const uint32_t> page_crcs) = 0;
    // The message's checksum is wrong: the landed bytes are garbage. The stream ends.
    virtual void OnCorrupt(const MessageHeader& header) = 0;
  };

  enum class Progress {
    kRead,        // bytes were read, and there may be more
    kDrained,     // bytes were read, and there are no more now
    kWouldBlock,  // nothing to read now
    kPaused,      // the handler said "not now"
    kEnd,         // the peer closed, between two messages
  };

  // The least that `buffer_bytes` can be: a header and its tables must be there together.
  static constexpr size_t kBufferBytesMin = kMessageHeaderBytes + kPayloadTableBytesMax;
  explicit MessageReader(size_t buffer_bytes = 64 * 1024);

  // Reads once from `channel` and handles every message that is then whole. UNAVAILABLE: the peer closed the connection
  // within a message, or the socket failed. INVALID_ARGUMENT: malformed bytes. DATA_LOSS: wrong checksum. Other errors
  // are the handler's, or those of TLS. After an error the stream is dead.
  absl::StatusOr<Progress> ReadFrom(Channel* channel, Handler* handler, Channel::Fill fill = Channel::Fill::kYes);

  // The same for bytes from memory. True: all were taken. False: the handler paused; *taken says how many were taken.
  absl::StatusOr<bool> Feed(absl::Span<const std::byte> bytes, size_t* taken, Handler* handler);

  // True between a message's first byte and its last.
  bool mid_message() const { return in_payload_ || end_ > begin_; }
  // The message whose payload is arriving; null outside a payload.
  const MessageHeader* current() const { return in_payload_ ? &header_ : nullptr; }
  // Drops the rest of the current payload instead of landing it.
  void DropPayload() {
    dropping_ = true;
    landing_.clear();
  }

 private:
  // Handles whole messages in the buffer. False if paused.
  absl::StatusOr<bool> Dispatch(Handler* handler);
  // Moves payload bytes from the buffer to where they land.
  void TakeFromBuffer();
  void AccountLanded(size_t bytes);
  // Adds the next bytes of the payload to the checksums.
  void Checksum(const std::byte* data, size_t bytes);
  absl::Status FinishMessage(Handler* handler);
  void MakeRoom();

  // A payload of at least this size is worth a read of its own: bytes that are read ahead are copied once more.
  static constexpr size_t kLargePayloadBytes = 16 * 1024;
  // A header and its masks. (Seals are read in a few more steps.)
  static constexpr size_t kSmallReadAheadBytes = kMessageHeaderBytes + kPagesPerMessage;

  const size_t buffer_bytes_;
  const Mapping buffer_;
  size_t begin_ = 0;  // unread bytes are [begin_, end_)
  size_t end_ = 0;

  bool in_payload_ = false;
  bool dropping_ = false;
  MessageHeader header_;
  std::array<std::byte, kMessageHeaderBytes> encoded_;
  std::array<ChunkMask, kPagesPerMessage> masks_;  // which chunks of each page the payload has
  std::array<uint32_t, kPagesPerMessage> page_crcs_;
  uint32_t tables_crc_ = 0;
  size_t page_ = 0;       // the page whose bytes come next
  size_t page_left_ = 0;  // bytes of it that are still to come
  size_t payload_left_ = 0;
  Landing landing_;
  size_t landing_piece_ = 0;   // the piece that is filled now
  size_t landing_offset_ = 0;  // bytes of it that are filled
};

}  // namespace nram

#endif  // NRAM_PROTO_MESSAGE_READER_H_
