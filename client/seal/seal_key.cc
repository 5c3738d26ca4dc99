#include "client/seal/seal_key.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <sys/random.h>

#include "base/status.h"

namespace nram {

absl::StatusOr<std::unique_ptr<SealKey>> SealKey::Random() {
  NRAM_ASSIGN_OR_RETURN(std::shared_ptr<KeyMemory> memory, KeyMemory::Make(kBytes));
  std::unique_ptr<SealKey> key(new SealKey(std::move(memory), 0));
  for (size_t had = 0; had < kBytes;) {
    const ssize_t n = getrandom(key->key_ + had, kBytes - had, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the kernel provides no random bytes for a key");
    had += static_cast<size_t>(n);
  }
  return key;
}

absl::StatusOr<std::unique_ptr<SealKey>> SealKey::Derive(absl::Span<const uint8_t> secret,
                                                         absl::Span<const uint8_t> salt,
                                                         absl::Span<const uint8_t> purpose) {
  NRAM_ASSIGN_OR_RETURN(std::shared_ptr<KeyMemory> memory, KeyMemory::Make(kBytes));
  return DeriveAt(std::move(memory), 0, secret, salt, purpose);
}

absl::StatusOr<std::unique_ptr<SealKey>> SealKey::DeriveAt(std::shared_ptr<KeyMemory> memory, size_t at,
                                                           absl::Span<const uint8_t> secret,
                                                           absl::Span<const uint8_t> salt,
                                                           absl::Span<const uint8_t> purpose) {
  std::unique_ptr<SealKey> key(new SealKey(std::move(memory), at));
  size_t bytes = kBytes;
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> hkdf(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr),
                                                                         &EVP_PKEY_CTX_free);
  const bool derived = hkdf != nullptr && EVP_PKEY_derive_init(hkdf.get()) == 1 &&
                       EVP_PKEY_CTX_set_hkdf_md(hkdf.get(), EVP_sha256()) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_key(hkdf.get(), secret.data(), static_cast<int>(secret.size())) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_salt(hkdf.get(), salt.data(), static_cast<int>(salt.size())) == 1 &&
                       EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), purpose.data(), static_cast<int>(purpose.size())) == 1 &&
                       EVP_PKEY_derive(hkdf.get(), key->key_, &bytes) == 1 && bytes == kBytes;
  if (!derived) return absl::InvalidArgumentError("OpenSSL derives no key from this secret");
  return key;
}

}  // namespace nram
