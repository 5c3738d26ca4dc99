#include "client/seal/page_cipher.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <bit>
#include <cstring>
#include <utility>

namespace nram {
namespace {

static_assert(std::endian::native == std::endian::little, "nonces and associated data are little-endian");

constexpr size_t kNonceBytes = 12;
constexpr int kTagBytes = static_cast<int>(sizeof(PageSeal::tag));
constexpr std::array<uint8_t, SealKey::kBytes> kNoKey{};

uint8_t* Raw(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
const uint8_t* Raw(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

}  // namespace

void PageCipher::FreeContext::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

PageCipher::PageCipher() : sealing_(EVP_CIPHER_CTX_new()), opening_(EVP_CIPHER_CTX_new()) {
  CHECK(sealing_ != nullptr && opening_ != nullptr);
  CHECK(EVP_EncryptInit_ex(sealing_.get(), EVP_aes_256_gcm(), nullptr, nullptr, nullptr) == 1);
  CHECK(EVP_DecryptInit_ex(opening_.get(), EVP_aes_256_gcm(), nullptr, nullptr, nullptr) == 1);
  for (evp_cipher_ctx_st* const context : {sealing_.get(), opening_.get()}) {
    begun_ = context;
    End();
  }
}

PageCipher::~PageCipher() { End(); }

bool PageCipher::Begin(evp_cipher_ctx_st* context, const SealKey& key) {
  End();
  begun_ = context;
  return key.is_there() && EVP_CipherInit_ex(context, nullptr, nullptr, key.data(), nullptr, -1) == 1 && key.is_there();
}

void PageCipher::End() {
  if (begun_ == nullptr) return;
  CHECK(EVP_CipherInit_ex(std::exchange(begun_, nullptr), nullptr, nullptr, kNoKey.data(), nullptr, -1) == 1);
}

bool PageCipher::Start(evp_cipher_ctx_st* context, const SealPlace& place, uint64_t counter) const {
  std::array<uint8_t, kNonceBytes> nonce;
  memcpy(nonce.data(), &place.number, sizeof place.number);
  memcpy(nonce.data() + sizeof place.number, &counter, sizeof counter);
  std::array<uint64_t, 2> bound = {nram::Raw(place.region), place.page};
  int bytes = 0;
  return EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         EVP_CipherUpdate(context, nullptr, &bytes, reinterpret_cast<const uint8_t*>(bound.data()),
                          static_cast<int>(sizeof bound)) == 1;
}

bool PageCipher::Seal(const SealPlace& place, uint64_t counter, const std::byte* page, std::byte* sealed,
                      PageSeal* seal) {
  int bytes = 0, rest = 0;
  seal->counter = std::bit_cast<std::array<uint8_t, 8>>(counter);
  return Start(sealing_.get(), place, counter) &&
         EVP_EncryptUpdate(sealing_.get(), Raw(sealed), &bytes, Raw(page), kPageBytes) == 1 &&
         bytes == static_cast<int>(kPageBytes) &&
         EVP_EncryptFinal_ex(sealing_.get(), Raw(sealed) + bytes, &rest) == 1 &&
         EVP_CIPHER_CTX_ctrl(sealing_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, seal->tag.data()) == 1;
}

bool PageCipher::Open(const SealPlace& place, const PageSeal& seal, std::byte* page) {
  int bytes = 0, rest = 0;
  std::array<uint8_t, 16> tag = seal.tag;
  const bool opened = Start(opening_.get(), place, CounterOf(seal)) &&
                      EVP_DecryptUpdate(opening_.get(), Raw(page), &bytes, Raw(page), kPageBytes) == 1 &&
                      bytes == static_cast<int>(kPageBytes) &&
                      EVP_CIPHER_CTX_ctrl(opening_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1 &&
                      EVP_DecryptFinal_ex(opening_.get(), Raw(page) + bytes, &rest) == 1;
  if (!opened) memset(page, 0, kPageBytes);
  return opened;
}

}  // namespace nram
