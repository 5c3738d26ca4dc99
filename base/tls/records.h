#ifndef NRAM_BASE_TLS_RECORDS_H_
#define NRAM_BASE_TLS_RECORDS_H_

// The record layer of TLS 1.3 (RFC 8446, section 5), after OpenSSL has made the handshake. OpenSSL's own copies each
// byte once more, allocates for each record, and one SSL must not be used by two threads. Here, each direction is an
// object of its own, nothing is allocated after construction, and plain text is read in place.

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tls/secret.h"

struct evp_cipher_ctx_st;

namespace nram {

inline constexpr size_t kRecordHeaderBytes = 5;
inline constexpr size_t kRecordTagBytes = 16;
inline constexpr size_t kRecordContentMax = 16 * 1024;
// A record's bytes beside its content: header, the byte that says its type, tag.
inline constexpr size_t kRecordOverhead = kRecordHeaderBytes + 1 + kRecordTagBytes;
inline constexpr size_t kRecordBytesMax = kRecordContentMax + kRecordOverhead;

enum class RecordType : uint8_t { kChangeCipherSpec = 20, kAlert = 21, kHandshake = 22, kData = 23 };

// Moves along pieces of memory that are taken or filled in order.
class PieceCursor {
 public:
  explicit PieceCursor(absl::Span<const iovec> pieces) : pieces_(pieces) { Skip(); }

  bool at_end() const { return piece_ == pieces_.size(); }
  // The rest of the piece where the cursor stands. Not at the end.
  std::byte* data() const { return static_cast<std::byte*>(pieces_[piece_].iov_base) + offset_; }
  size_t bytes() const { return pieces_[piece_].iov_len - offset_; }
  // Within bytes().
  void Advance(size_t bytes) {
    offset_ += bytes;
    Skip();
  }
  // Of all that is left, `most` at most.
  size_t Left(size_t most) const;

 private:
  void Skip() {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].iov_len) {
      ++piece_;
      offset_ = 0;
    }
  }

  absl::Span<const iovec> pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;
};

// The keys of one direction, one after the other: a KeyUpdate makes the next. All are derived at construction.
class RecordKeys {
 public:
  // How many records one key is used for. RFC 8446 allows 2^24.5 of the longest.
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 24;
  // How often it is renewed. Afterwards the connection must be made anew: that is 8 TiB of long records, or 500 million
  // short ones.
  static constexpr int kKeys = 32;

  enum class Use { kSeal, kOpen };
  // `secret`: client_ or server_application_traffic_secret_0 of TLS_AES_256_GCM_SHA384.
  RecordKeys(const TrafficSecret& secret, Use use, uint64_t records_per_key);
  ~RecordKeys();

 protected:
  // Begins a record with the key's next nonce, and its header as associated data. False: OpenSSL refuses.
  bool Begin(const std::byte* header);
  // False: there is none left.
  bool NextKey();
  evp_cipher_ctx_st* cipher() const { return cipher_.get(); }
  // The next record must say that the key is renewed.
  bool is_used_up() const { return records_ + 1 >= records_per_key_; }

 private:
  struct Key {
    std::array<uint8_t, 32> key;
    std::array<uint8_t, 12> iv;
  };
  struct FreeCipher {
    void operator()(evp_cipher_ctx_st* cipher) const;
  };
  void UseKey();

  const uint64_t records_per_key_;
  std::vector<Key> keys_;  // wiped at the end
  size_t key_ = 0;
  uint64_t records_ = 0;  // of this key
  std::unique_ptr<evp_cipher_ctx_st, FreeCipher> cipher_;
};

// Not thread-safe.
class RecordSealer : private RecordKeys {
 public:
  explicit RecordSealer(const TrafficSecret& secret, uint64_t records_per_key = kRecordsPerKey)
      : RecordKeys(secret, Use::kSeal, records_per_key) {}

  // Appends a record with the next `content_bytes` (at most kRecordContentMax) of `from` to `out`, which has room for
  // kRoomBytes more than these. Returns the bytes that were appended; 0: the keys are used up, or OpenSSL fails.
  static constexpr size_t kRoomBytes = 2 * kRecordOverhead + 5;  // a KeyUpdate may come first
  size_t Seal(RecordType type, PieceCursor* from, size_t content_bytes, std::byte* out);

 private:
  size_t SealOne(RecordType type, PieceCursor* from, size_t content_bytes, std::byte* out);
};

// Not thread-safe.
class RecordOpener : private RecordKeys {
 public:
  explicit RecordOpener(const TrafficSecret& secret) : RecordKeys(secret, Use::kOpen, kRecordsPerKey) {}

  // The length of the record that begins with `header` (kRecordHeaderBytes), header included. INVALID_ARGUMENT: that is
  // no record of this stream.
  static absl::Status ReadHeader(const std::byte* header, size_t* record_bytes);

  // Opens a whole record. Puts its data into `to`, as far as there is room, and the rest, *rest_bytes of it, into
  // `rest` (kRecordContentMax). Returns the bytes put into `to`; after an error these are garbage:
  //   UNAVAILABLE, UNAUTHENTICATED, PERMISSION_DENIED  the peer ends the stream, or refuses it: its alert's text
  //   DATA_LOSS    the record is not as it was sent
  //   others       the peer breaks the protocol
  absl::StatusOr<size_t> Open(absl::Span<const std::byte> record, PieceCursor* to, std::byte* rest, size_t* rest_bytes);

 private:
  // A record that is no data.
  absl::Status TakeOther(RecordType type, absl::Span<const std::byte> content);
};

// The alert for a certificate that holds, but has no right here.
inline constexpr uint8_t kAlertAccessDenied = 49;
// The meaning of an alert (RFC 8446, section 6).
const char* AlertText(uint8_t description);

}  // namespace nram

#endif  // NRAM_BASE_TLS_RECORDS_H_
