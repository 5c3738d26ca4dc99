#include "client/seal/seal_key.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr uint64_t kMagic = 0x6c61657365670000;

}  // namespace

absl::StatusOr<std::unique_ptr<SealKey>> SealKey::Make() {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  NRAM_ASSIGN_OR_RETURN(Mapping memory, Mapping::Anonymous(bytes));
  // Before anything is there. A child's fork must find the advice, so its failure counts.
  if (madvise(memory.data(), bytes, MADV_DONTDUMP) != 0 || madvise(memory.data(), bytes, MADV_WIPEONFORK) != 0) {
    return ErrnoStatus(errno, "keep a key out of core dumps and of children");
  }
  // Not mlock, which sanitizers leave out.
  if (syscall(SYS_mlock2, memory.data(), bytes, 0) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a key cannot be kept from swap: ", strerror(errno),
                                                     "; raise the limit of locked memory (ulimit -l, RLIMIT_MEMLOCK)"));
  }
  std::unique_ptr<SealKey> key(new SealKey(std::move(memory)));
  key->page()->magic = kMagic;
  return key;
}

absl::StatusOr<std::unique_ptr<SealKey>> SealKey::Random() {
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<SealKey> key, Make());
  uint8_t* const bytes = key->page()->key.data();
  for (size_t had = 0; had < kBytes;) {
    const ssize_t n = getrandom(bytes + had, kBytes - had, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the kernel gives no random bytes for a key");
    had += static_cast<size_t>(n);
  }
  return key;
}

absl::StatusOr<std::unique_ptr<SealKey>> SealKey::Derive(absl::Span<const uint8_t> secret,
                                                         absl::Span<const uint8_t> salt,
                                                         absl::Span<const uint8_t> purpose) {
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<SealKey> key, Make());
  size_t bytes = kBytes;
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> hkdf(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr),
                                                                         &EVP_PKEY_CTX_free);
  const bool derived = hkdf != nullptr && EVP_PKEY_derive_init(hkdf.get()) == 1 &&
                       EVP_PKEY_CTX_set_hkdf_md(hkdf.get(), EVP_sha256()) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_key(hkdf.get(), secret.data(), static_cast<int>(secret.size())) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_salt(hkdf.get(), salt.data(), static_cast<int>(salt.size())) == 1 &&
                       EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), purpose.data(), static_cast<int>(purpose.size())) == 1 &&
                       EVP_PKEY_derive(hkdf.get(), key->page()->key.data(), &bytes) == 1 && bytes == kBytes;
  if (!derived) return absl::InvalidArgumentError("OpenSSL derives no key from this secret");
  return key;
}

SealKey::~SealKey() { OPENSSL_cleanse(page(), sizeof(Page)); }

bool SealKey::is_there() const { return page()->magic == kMagic; }

}  // namespace nram
