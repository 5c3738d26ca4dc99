#include "base/tls/records.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr size_t kIvBytes = 12;
// Records of other types are short. A longer one is data, and goes where it belongs before its type is known.
constexpr size_t kOtherContentMax = 256;

uint8_t* Raw(std::byte* data) { return reinterpret_cast<uint8_t*>(data); }
const uint8_t* Raw(const std::byte* data) { return reinterpret_cast<const uint8_t*>(data); }

// HKDF-Expand-Label of RFC 8446, section 7.1, with an empty context.
void ExpandLabel(absl::Span<const uint8_t> secret, absl::string_view label, absl::Span<uint8_t> out) {
  const std::string full = absl::StrCat("tls13 ", label);
  std::string info = {static_cast<char>(out.size() >> 8), static_cast<char>(out.size()),
                      static_cast<char>(full.size())};
  absl::StrAppend(&info, full);
  info.push_back(0);
  EVP_PKEY_CTX* const kdf = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
  size_t bytes = out.size();
  CHECK(kdf != nullptr && EVP_PKEY_derive_init(kdf) > 0 &&
        EVP_PKEY_CTX_set_hkdf_mode(kdf, EVP_PKEY_HKDEF_MODE_EXPAND_ONLY) > 0 &&
        EVP_PKEY_CTX_set_hkdf_md(kdf, EVP_sha384()) > 0 &&
        EVP_PKEY_CTX_set1_hkdf_key(kdf, secret.data(), static_cast<int>(secret.size())) > 0 &&
        EVP_PKEY_CTX_add1_hkdf_info(kdf, reinterpret_cast<const uint8_t*>(info.data()), static_cast<int>(info.size())) >
            0 &&
        EVP_PKEY_derive(kdf, out.data(), &bytes) > 0 && bytes == out.size())
      << "OpenSSL cannot derive a key";
  EVP_PKEY_CTX_free(kdf);
}

}  // namespace

size_t PieceCursor::Left(size_t most) const {
  if (at_end()) return 0;
  size_t left = bytes();
  for (size_t i = piece_ + 1; i < pieces_.size() && left < most; ++i) left += pieces_[i].iov_len;
  return std::min(left, most);
}

// --- Keys.

void RecordKeys::FreeCipher::operator()(evp_cipher_ctx_st* cipher) const { EVP_CIPHER_CTX_free(cipher); }

RecordKeys::RecordKeys(const TrafficSecret& secret, Use use, uint64_t records_per_key)
    : records_per_key_(records_per_key), keys_(kKeys), cipher_(EVP_CIPHER_CTX_new()) {
  TrafficSecret of = secret;
  for (Key& key : keys_) {
    ExpandLabel(of.bytes, "key", absl::MakeSpan(key.key));
    ExpandLabel(of.bytes, "iv", absl::MakeSpan(key.iv));
    TrafficSecret next;
    ExpandLabel(of.bytes, "traffic upd", absl::MakeSpan(next.bytes));
    of = next;
  }
  CHECK(EVP_CipherInit_ex(cipher_.get(), EVP_aes_256_gcm(), nullptr, nullptr, nullptr, use == Use::kSeal ? 1 : 0) == 1);
  UseKey();
}

RecordKeys::~RecordKeys() { OPENSSL_cleanse(keys_.data(), keys_.size() * sizeof(Key)); }

void RecordKeys::UseKey() {
  CHECK(EVP_CipherInit_ex(cipher_.get(), nullptr, nullptr, keys_[key_].key.data(), nullptr, -1) == 1);
  OPENSSL_cleanse(keys_[key_].key.data(), keys_[key_].key.size());  // the cipher has it
  records_ = 0;
}

bool RecordKeys::NextKey() {
  if (key_ + 1 >= keys_.size()) return false;
  ++key_;
  UseKey();
  return true;
}

bool RecordKeys::Begin(const std::byte* header) {
  std::array<uint8_t, kIvBytes> nonce = keys_[key_].iv;
  for (int i = 0; i < 8; ++i) nonce[kIvBytes - 1 - i] ^= static_cast<uint8_t>(records_ >> (8 * i));
  ++records_;
  int bytes = 0;
  return EVP_CipherInit_ex(cipher(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         EVP_CipherUpdate(cipher(), nullptr, &bytes, Raw(header), kRecordHeaderBytes) == 1;
}

// --- Sealing.

size_t RecordSealer::Seal(RecordType type, PieceCursor* from, size_t content_bytes, std::byte* out) {
  size_t had = 0;
  if (is_used_up()) {
    // KeyUpdate, update_not_requested: the last record of this key.
    std::byte update[] = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{0}};
    const iovec piece{update, sizeof update};
    PieceCursor cursor({&piece, 1});
    had = SealOne(RecordType::kHandshake, &cursor, sizeof update, out);
    if (had == 0 || !NextKey()) return 0;
  }
  const size_t bytes = SealOne(type, from, content_bytes, out + had);
  return bytes == 0 ? 0 : had + bytes;
}

size_t RecordSealer::SealOne(RecordType type, PieceCursor* from, size_t content_bytes, std::byte* out) {
  DCHECK_LE(content_bytes, kRecordContentMax);
  const size_t inner = content_bytes + 1 + kRecordTagBytes;
  out[0] = static_cast<std::byte>(RecordType::kData);
  out[1] = out[2] = std::byte{3};
  out[3] = static_cast<std::byte>(inner >> 8);
  out[4] = static_cast<std::byte>(inner);
  if (!Begin(out)) return 0;
  std::byte* at = out + kRecordHeaderBytes;
  int bytes = 0;
  for (size_t left = content_bytes; left > 0;) {
    const size_t step = std::min(left, from->bytes());
    if (EVP_EncryptUpdate(cipher(), Raw(at), &bytes, Raw(from->data()), static_cast<int>(step)) != 1) return 0;
    from->Advance(step);
    at += step;
    left -= step;
  }
  const auto inner_type = static_cast<uint8_t>(type);
  if (EVP_EncryptUpdate(cipher(), Raw(at), &bytes, &inner_type, 1) != 1) return 0;
  ++at;
  if (EVP_EncryptFinal_ex(cipher(), Raw(at), &bytes) != 1 ||
      EVP_CIPHER_CTX_ctrl(cipher(), EVP_CTRL_AEAD_GET_TAG, kRecordTagBytes, at) != 1) {
    return 0;
  }
  return static_cast<size_t>(at + kRecordTagBytes - out);
}

// --- Opening.

absl::Status RecordOpener::ReadHeader(const std::byte* header, size_t* record_bytes) {
  const size_t inner = std::to_integer<size_t>(header[3]) << 8 | std::to_integer<size_t>(header[4]);
  const bool is_record = header[0] == static_cast<std::byte>(RecordType::kData) && header[1] == std::byte{3} &&
                         header[2] == std::byte{3} && inner > kRecordTagBytes &&
                         inner <= kRecordContentMax + 1 + kRecordTagBytes;
  if (!is_record) return absl::InvalidArgumentError("the received data is not a TLS 1.3 record");
  *record_bytes = kRecordHeaderBytes + inner;
  return absl::OkStatus();
}

absl::StatusOr<size_t> RecordOpener::Open(absl::Span<const std::byte> record, PieceCursor* to, std::byte* rest,
                                          size_t* rest_bytes) {
  *rest_bytes = 0;
  // Made only where it is needed: a status with a text allocates.
  const auto failed = [] {
    return absl::DataLossError("a TLS record was changed or reordered on the way");
  };
  const size_t content_bytes = record.size() - kRecordOverhead;
  const std::byte* from = record.data() + kRecordHeaderBytes;
  auto* const tag = const_cast<std::byte*>(from + content_bytes + 1);
  if (!Begin(record.data()) || EVP_CIPHER_CTX_ctrl(cipher(), EVP_CTRL_AEAD_SET_TAG, kRecordTagBytes, tag) != 1) {
    return failed();
  }
  // A short record is opened aside, since its type must be known first.
  const bool may_be_other = content_bytes <= kOtherContentMax;
  PieceCursor land = *to;
  size_t landed = 0;
  int bytes = 0;
  while (!may_be_other && landed < content_bytes && !land.at_end()) {
    const size_t step = std::min(content_bytes - landed, land.bytes());
    if (EVP_DecryptUpdate(cipher(), Raw(land.data()), &bytes, Raw(from + landed), static_cast<int>(step)) != 1) {
      return failed();
    }
    land.Advance(step);
    landed += step;
  }
  const size_t left = content_bytes - landed;
  if (left > 0 && EVP_DecryptUpdate(cipher(), Raw(rest), &bytes, Raw(from + landed), static_cast<int>(left)) != 1) {
    return failed();
  }
  uint8_t type = 0;
  uint8_t none[kRecordTagBytes];
  if (EVP_DecryptUpdate(cipher(), &type, &bytes, Raw(from + content_bytes), 1) != 1 ||
      EVP_DecryptFinal_ex(cipher(), none, &bytes) != 1) {
    return failed();
  }
  if (type != static_cast<uint8_t>(RecordType::kData)) {
    if (!may_be_other) return absl::InvalidArgumentError("a long TLS record without data");
    NRAM_RETURN_IF_ERROR(TakeOther(static_cast<RecordType>(type), {rest, content_bytes}));
    return 0;
  }
  if (content_bytes == 0) return absl::InvalidArgumentError("an empty TLS record");
  while (may_be_other && landed < content_bytes && !land.at_end()) {
    const size_t step = std::min(content_bytes - landed, land.bytes());
    memcpy(land.data(), rest + landed, step);
    land.Advance(step);
    landed += step;
  }
  if (may_be_other && landed > 0) memmove(rest, rest + landed, content_bytes - landed);
  *rest_bytes = content_bytes - landed;
  *to = land;
  return landed;
}

absl::Status RecordOpener::TakeOther(RecordType type, absl::Span<const std::byte> content) {
  if (type == RecordType::kAlert && content.size() == 2) {
    const auto description = std::to_integer<uint8_t>(content[1]);
    const bool is_of_identity = (description >= 40 && description <= 49) || description == 116;
    if (description == kAlertAccessDenied) return absl::PermissionDeniedError(AlertText(description));
    return absl::Status(is_of_identity ? absl::StatusCode::kUnauthenticated : absl::StatusCode::kUnavailable,
                        AlertText(description));
  }
  constexpr std::array<std::byte, 5> kUpdate = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{0}};
  if (type == RecordType::kHandshake && content == absl::MakeConstSpan(kUpdate)) {
    if (NextKey()) return absl::OkStatus();
    return absl::UnavailableError("the keys of this TLS connection are used up");
  }
  return absl::InvalidArgumentError("an unexpected TLS record");
}

const char* AlertText(uint8_t description) {
  switch (description) {
    case 0:
      return "the peer closed the connection";
    case 20:
    case 51:
      return "the peer could not read the sent data: it was changed on the way";
    case 40:
      return "the peer does not support the same protocol (TLS 1.3 with AES-256-GCM)";
    case 42:
    case 43:
      return "the peer does not accept this side's certificate (is it valid already, and do the clocks agree?)";
    case 44:
      return "the peer says that this side's certificate was revoked";
    case 45:
      return "the peer says that this side's certificate has expired (or the clocks differ)";
    case 46:
      return "the peer does not accept this side's certificate (is it valid already, and do the clocks agree?)";
    case 48:
      return "the peer does not know the authority of this side's certificate";
    case kAlertAccessDenied:
      return "the peer's rules do not admit this side's certificate (its log names the identity)";
    case 70:
      return "the peer does not speak TLS 1.3";
    case 116:
      return "the peer requires a certificate, and this side has sent none";
    default:
      return "the peer ended the connection with a TLS alert";
  }
}

}  // namespace nram
