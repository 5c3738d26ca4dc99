#include <glog/logging.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "proto/message_reader.h"
#include "tests/fuzz/any_message.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

// The bytes of an input's messages. More would make it slow, and tell nothing new.
constexpr size_t kPayloadBytesPerInput = 12 * 1024;

const std::byte* Bytes(const std::string& text) { return reinterpret_cast<const std::byte*>(text.data()); }

// The outcome of a stream: its messages, and its end.
struct Message {
  MessageHeader header;
  std::string chunks;  // empty if they were dropped
  std::vector<uint32_t> page_crcs;
  friend bool operator==(const Message&, const Message&) = default;
};
struct Outcome {
  std::vector<Message> messages;
  bool corrupt = false;
  absl::StatusCode code = absl::StatusCode::kOk;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// The recorder drops every third message.
bool IsDropped(const MessageHeader& header) { return header.request_id % 3 == 2; }

// Tells whether all but the checksum is encoded as before.
bool EncodesToItself(const MessageHeader& header, const std::byte* encoded) {
  constexpr size_t kChecksumAt = 20;
  std::byte again[kMessageHeaderBytes];
  EncodeHeader(header, 0, again);
  memcpy(again + kChecksumAt, encoded + kChecksumAt, sizeof(uint32_t));
  return memcmp(again, encoded, kMessageHeaderBytes) == 0;
}

// Does the same as the reader, from a whole stream.
Outcome DecodeSimply(const std::string& stream) {
  Outcome outcome;
  size_t at = 0;
  while (stream.size() - at >= kMessageHeaderBytes) {
    Message message;
    const std::byte* const encoded = Bytes(stream) + at;
    outcome.code = DecodeHeader(encoded, &message.header).code();
    if (outcome.code != absl::StatusCode::kOk) break;
    CHECK(EncodesToItself(message.header, encoded)) << "a header that does not encode to itself";
    const size_t tables = message.header.table_bytes();
    const bool sparse = message.header.sparse();
    at += kMessageHeaderBytes;
    if (stream.size() - at < tables) break;
    const std::byte* const payload = Bytes(stream) + at;
    if (tables > 0) {
      outcome.code = CheckTables(message.header, {reinterpret_cast<const uint8_t*>(payload), tables}).code();
      if (outcome.code != absl::StatusCode::kOk) break;
    }
    if (stream.size() - at < message.header.payload_bytes) break;
    if (!MatchesChecksum(encoded, PayloadCrcOf(message.header, payload))) {
      outcome.corrupt = true;
      outcome.code = absl::StatusCode::kDataLoss;
      break;
    }
    if (!IsDropped(message.header)) message.chunks = stream.substr(at + tables, message.header.payload_bytes - tables);
    if (message.header.payload_bytes > 0) {
      const std::byte* chunks = payload + tables;
      const ChunkRange range = message.header.range();
      for (uint64_t i = 0; i < range.pages(); ++i) {
        const ChunkMask mask =
            sparse ? std::to_integer<ChunkMask>(payload[i]) : MaskOfPage(range, range.first_page() + i);
        const size_t bytes = std::popcount(mask) * kChunkBytes;
        message.page_crcs.push_back(Crc32c(0, chunks, bytes));
        chunks += bytes;
      }
    }
    at += message.header.payload_bytes;
    outcome.messages.push_back(std::move(message));
  }
  return outcome;
}

class Recorder : public MessageReader::Handler {
 public:
  // Says "not now" to each `pause_every`th header once; 0: to none.
  explicit Recorder(int pause_every) : pause_every_(pause_every) {}

  absl::StatusOr<bool> OnHeader(const MessageHeader& header, const PayloadTables& tables, Landing* landing) override {
    if (!paused_ && pause_every_ > 0 && ++headers_ % pause_every_ == 0) {
      paused_ = true;
      return false;
    }
    paused_ = false;
    const size_t bytes = header.payload_bytes - header.table_bytes();
    room_.assign(bytes + bytes / kChunkBytes, '\0');
    // Pieces that do not adjoin: a byte is left out behind each of up to 200; the last takes the rest.
    pieces_.clear();
    if (IsDropped(header) || bytes == 0) return true;
    const size_t step = std::max<size_t>(kChunkBytes, bytes / 200 / kChunkBytes * kChunkBytes);
    for (size_t at = 0, left = bytes; left > 0;) {
      const size_t piece = std::min(step, left);
      pieces_.emplace_back(at, piece);
      landing->Add(reinterpret_cast<std::byte*>(room_.data()) + at, piece);
      at += piece + 1;
      left -= piece;
    }
    return true;
  }

  absl::Status OnMessage(const MessageHeader& header, absl::Span<const uint32_t> page_crcs) override {
    Message message{header, "", {page_crcs.begin(), page_crcs.end()}};
    for (const auto& [at, bytes] : pieces_) {
      message.chunks.append(room_, at, bytes);
      if (at + bytes < room_.size()) CHECK_EQ(room_[at + bytes], '\0') << "landed beside its place";
    }
    outcome.messages.push_back(std::move(message));
    return absl::OkStatus();
  }

  void OnCorrupt(const MessageHeader&) override { outcome.corrupt = true; }

  Outcome outcome;

 private:
  const int pause_every_;
  int headers_ = 0;
  bool paused_ = false;
  std::string room_;
  std::vector<std::pair<size_t, size_t>> pieces_;
};

// Feeds the stream in pieces of `piece_bytes`.
Outcome ReadInPieces(const std::string& stream, size_t buffer_bytes, size_t piece_bytes, int pause_every) {
  MessageReader reader(buffer_bytes);
  Recorder recorder(pause_every);
  for (size_t at = 0; at < stream.size();) {
    size_t taken = 0;
    const auto all = reader.Feed({Bytes(stream) + at, std::min(piece_bytes, stream.size() - at)}, &taken, &recorder);
    at += taken;
    recorder.outcome.code = all.status().code();
    if (!all.ok()) return std::move(recorder.outcome);
  }
  // The bytes that a pause kept.
  size_t taken = 0;
  for (bool again = true; again;) {
    const auto all = reader.Feed({}, &taken, &recorder);
    recorder.outcome.code = all.status().code();
    again = all.ok() && !*all;
  }
  return std::move(recorder.outcome);
}

MessageHeader TakeHeader(FuzzInput* input, uint8_t how) {
  const auto op = static_cast<Op>(1 + input->Byte() % kOps);
  const uint8_t flags = input->Byte();
  const auto reason = (how & 4) != 0 ? static_cast<Reason>(input->Byte() % (kReasonMax + 2)) : Reason::kOk;
  const uint64_t request_id = input->SmallOrAny(16);
  AnyFields fields;
  fields.subject = input->AnyNumber();
  fields.range.first = (how & 8) != 0 ? input->AnyNumber() : input->Byte();
  fields.range.count = (how & 16) != 0 ? input->AnyNumber() : input->Byte() % 70;
  fields.epoch = input->AnyNumber();
  fields.last = input->AnyNumber();
  if ((flags & kFlagSealed) != 0) {
    // Whole pages, in most cases.
    fields.range.first -= (how & 8) != 0 ? 0 : fields.range.first % kChunksPerPage;
    fields.range.count -= (how & 16) != 0 ? 0 : fields.range.count % kChunksPerPage;
  }
  MessageHeader header = AnyMessage(op, flags, fields);
  header.reason = reason;
  header.request_id = request_id;
  return header;
}

// The payload that the header asks for, of at most *payload_left bytes of chunks; `how` may spoil its tables.
std::string MakePayload(const MessageHeader& header, uint8_t seed, uint8_t how, size_t* payload_left) {
  std::string payload;
  const ChunkRange range = header.range();
  size_t chunks = range.count;
  if (header.sparse()) {
    chunks = 0;
    for (uint64_t i = 0; i < range.pages(); ++i) {
      auto mask = static_cast<ChunkMask>(seed * (i + 1));
      if (header.sealed() && (how & 32) == 0) mask = mask % 3 != 0 ? kAllChunks : 0;
      if ((how & 32) == 0) mask &= MaskOfPage(range, range.first_page() + i);
      if ((chunks + kChunksPerPage) * kChunkBytes > *payload_left) mask = 0;
      payload.push_back(static_cast<char>(mask));
      chunks += std::popcount(mask);
    }
  }
  for (uint64_t i = 0; header.sealed() && i < range.pages(); ++i) {
    const bool there = !header.sparse() || payload[i] != 0 || (how & 32) != 0;
    payload.append(sizeof(PageSeal), there ? static_cast<char>(seed + i) : '\0');
  }
  chunks = std::min(chunks, *payload_left / kChunkBytes);
  for (size_t i = 0; i < chunks; ++i) payload.append(kChunkBytes, static_cast<char>(seed + i));
  *payload_left -= chunks * kChunkBytes;
  return payload;
}

// A whole message: lengths and checksum are right, except those that `how` spoils.
std::string TakeMessage(FuzzInput* input, uint8_t how, size_t* payload_left) {
  MessageHeader header = TakeHeader(input, how);
  std::string payload;
  const uint8_t seed = input->Byte();
  const ChunkRange range = header.range();
  const bool may_carry = range.count > 0 && range.first < kRegionChunksMax && range.count <= kChunksPerMessage &&
                         range.pages() <= kPagesPerMessage;
  if (header.op == (header.is_reply() ? Op::kRead : Op::kWrite) && header.reason == Reason::kOk && may_carry) {
    payload = MakePayload(header, seed, how, payload_left);
  }
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if ((how & 64) != 0) header.payload_bytes = static_cast<uint32_t>(input->AnyNumber());
  std::string message = EncodeAnyMessage(header, payload);
  if ((how & 128) != 0) {
    const size_t at = input->Number(2) % message.size();
    message[at] = static_cast<char>(message[at] ^ input->Byte());
  }
  return message;
}

}  // namespace

void FuzzMessages(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const uint8_t pieces = input.Byte();
  size_t payload_left = kPayloadBytesPerInput;
  std::string stream;
  while (!input.empty()) {
    const uint8_t how = input.Byte();
    if (how % 4 == 0) {
      stream += std::string(input.Take(input.Byte()));
    } else {
      stream += TakeMessage(&input, how, &payload_left);
    }
  }
  const Outcome expected = DecodeSimply(stream);
  const size_t buffer_bytes = pieces % 2 == 0 ? MessageReader::kBufferBytesMin : 4096;
  static constexpr size_t kPieces[] = {1u << 20, 7, 64, 600};
  const Outcome got = ReadInPieces(stream, buffer_bytes, kPieces[pieces / 2 % 4], pieces / 8 % 4);
  CHECK(got == expected) << got.messages.size() << " messages, " << expected.messages.size() << " expected; ended with "
                         << static_cast<int>(got.code) << ", not " << static_cast<int>(expected.code);
}

}  // namespace nram
