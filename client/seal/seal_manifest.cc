#include "client/seal/seal_manifest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <bit>
#include <cstring>
#include <memory>

#include "absl/algorithm/container.h"
#include "base/status.h"
#include "client/seal/page_versions.h"

namespace nram {
namespace {

static_assert(std::endian::native == std::endian::little, "manifests are little-endian");

constexpr absl::string_view kFormat = "nramseal";  // another one is another format
constexpr absl::string_view kPurpose = "nram manifest";
constexpr size_t kProofBytes = 32;

absl::Span<const uint8_t> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The proof of `bytes`.
absl::StatusOr<std::string> Prove(const SealSecret& secret, absl::string_view bytes) {
  NRAM_ASSIGN_OR_RETURN(std::shared_ptr<KeyMemory> memory, KeyMemory::Make(SealKey::kBytes));
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<SealKey> key,
                        secret.DeriveAt(std::move(memory), 0, BytesOf(kPurpose), BytesOf(kPurpose)));
  std::string proof(kProofBytes, '\0');
  unsigned size = 0;
  const bool proved = HMAC(EVP_sha256(), key->data(), static_cast<int>(SealKey::kBytes), BytesOf(bytes).data(),
                           bytes.size(), reinterpret_cast<uint8_t*>(proof.data()), &size) != nullptr;
  if (!proved || size != kProofBytes || !key->is_there()) return absl::InternalError("OpenSSL makes no HMAC");
  return proof;
}

template <typename Number>
void Append(Number number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Takes values from the front of the remaining bytes. After a missing one, all are zeros.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : left_(bytes) {}

  absl::string_view Take(size_t bytes) {
    if (bytes > left_.size()) {
      fits_ = false;
      left_ = {};
      return {};
    }
    const absl::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  template <typename Number>
  Number Take() {
    const absl::string_view bytes = Take(sizeof(Number));
    Number number{};
    if (!bytes.empty()) memcpy(&number, bytes.data(), sizeof number);
    return number;
  }
  // All was there, and nothing else.
  bool fits() const { return fits_ && left_.empty(); }

 private:
  absl::string_view left_;
  bool fits_ = true;
};

}  // namespace

uint64_t FirstCounterOf(OwnerNumber owner) { return uint64_t{owner} << 48 | kFirstVersion; }

absl::StatusOr<std::string> SealManifest::Write(const SealSecret& secret) const {
  std::string bytes(kFormat);
  Append(Raw(id), &bytes);
  Append(size_bytes, &bytes);
  Append(copies, &bytes);
  Append(static_cast<uint16_t>(name.size()), &bytes);
  bytes.append(name);
  Append(static_cast<uint16_t>(salts.size()), &bytes);
  for (const OwnerSalt& salt : salts) Append(salt, &bytes);
  NRAM_ASSIGN_OR_RETURN(const std::string proof, Prove(secret, bytes));
  return bytes + proof;
}

absl::StatusOr<SealManifest> SealManifest::Read(const SealSecret& secret, absl::string_view bytes) {
  const auto refusal = absl::FailedPreconditionError(
      "the key file is not the one that the region was made with, or a server has changed the region's manifest");
  if (bytes.size() < kFormat.size() + kProofBytes) return refusal;
  const absl::string_view text = bytes.substr(0, bytes.size() - kProofBytes);
  const absl::string_view proof = bytes.substr(text.size());
  // Before anything of it is believed.
  NRAM_ASSIGN_OR_RETURN(const std::string expected, Prove(secret, text));
  if (CRYPTO_memcmp(proof.data(), expected.data(), kProofBytes) != 0) return refusal;
  Reader reader(text);
  if (reader.Take(kFormat.size()) != kFormat) {
    return absl::FailedPreconditionError("the region was made by another release of nram: install the same release");
  }
  SealManifest manifest;
  manifest.id = RegionId{reader.Take<uint64_t>()};
  manifest.size_bytes = reader.Take<uint64_t>();
  manifest.copies = reader.Take<uint8_t>();
  manifest.name = std::string(reader.Take(reader.Take<uint16_t>()));
  manifest.salts.resize(reader.Take<uint16_t>());
  for (OwnerSalt& salt : manifest.salts) salt = reader.Take<OwnerSalt>();
  if (!reader.fits()) return refusal;
  return manifest;
}

void SealManifest::AddOwnersOf(const SealManifest& other) {
  for (const OwnerSalt& salt : other.salts) {
    if (!absl::c_linear_search(salts, salt)) salts.push_back(salt);
  }
}

bool SealManifest::HasOwner(OwnerNumber owner) const {
  return absl::c_any_of(salts, [owner](const OwnerSalt& salt) { return OwnerOf(salt) == owner; });
}

}  // namespace nram
