#ifndef NRAM_CLIENT_SEAL_PAGE_CIPHER_H_
#define NRAM_CLIENT_SEAL_PAGE_CIPHER_H_

// AES-256-GCM over whole pages (adr/0016; NIST SP 800-38D).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/units.h"
#include "client/seal/seal_key.h"
#include "proto/wire.h"

struct evp_cipher_ctx_st;

namespace nram {

// The counter that the page was sealed with; 0: there is no page.
inline uint64_t CounterOf(const PageSeal& seal) { return std::bit_cast<uint64_t>(seal.counter); }

// Where a page belongs. A page that was sealed for one place does not open at another.
struct SealPlace {
  uint32_t number = 0;  // the region's, which its key has seen once: half of the nonce
  RegionId region{};
  uint64_t page = 0;
};

// Seals and opens. Not thread-safe: each thread, or each lane, has one. Allocates at construction alone.
//
// OpenSSL keeps round keys in ordinary memory. So a cipher has its key only between Begin and End, for one message.
class PageCipher {
 public:
  PageCipher();
  ~PageCipher();
  PageCipher(const PageCipher&) = delete;

  // False: there is no key any more (this is a child after fork), or OpenSSL fails.
  bool BeginSealing(const SealKey& key) { return Begin(sealing_.get(), key); }
  bool BeginOpening(const SealKey& key) { return Begin(opening_.get(), key); }
  // Ends a begun sealing or opening, if any.
  void End();

  // Between Begin... and End. `counter` must never come twice with the same number: the two pages' difference would be
  // plain, and forged tags possible. `page` and `sealed`: kPageBytes each; they may be the same. False: OpenSSL fails.
  bool Seal(const SealPlace& place, uint64_t counter, const std::byte* page, std::byte* sealed, PageSeal* seal);
  // Opens kPageBytes in place. False: the bytes were not sealed for this place with this counter; they are zeros then.
  bool Open(const SealPlace& place, const PageSeal& seal, std::byte* page);

 private:
  struct FreeContext {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  bool Begin(evp_cipher_ctx_st* context, const SealKey& key);
  bool Start(evp_cipher_ctx_st* context, const SealPlace& place, uint64_t counter) const;

  std::unique_ptr<evp_cipher_ctx_st, FreeContext> sealing_;
  std::unique_ptr<evp_cipher_ctx_st, FreeContext> opening_;
  evp_cipher_ctx_st* begun_ = nullptr;  // has the key
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_PAGE_CIPHER_H_
