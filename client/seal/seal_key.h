#ifndef NRAM_CLIENT_SEAL_SEAL_KEY_H_
#define NRAM_CLIENT_SEAL_SEAL_KEY_H_

// The key that pages are sealed with (adr/0016), in a page of memory of its own: locked, in no core dump, and wiped in
// a child after fork.

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapping.h"

namespace nram {

// Thread-safe.
class SealKey {
 public:
  static constexpr size_t kBytes = 32;

  // A new one, that dies with this object. RESOURCE_EXHAUSTED: no memory may be locked (ulimit -l). UNAVAILABLE: there
  // is no randomness.
  static absl::StatusOr<std::unique_ptr<SealKey>> Random();
  // One for a purpose, from a secret that somebody keeps: HKDF-SHA-256 (RFC 5869). The same secret, salt and purpose
  // give the same key. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SealKey>> Derive(absl::Span<const uint8_t> secret,
                                                         absl::Span<const uint8_t> salt,
                                                         absl::Span<const uint8_t> purpose);
  ~SealKey();
  SealKey(const SealKey&) = delete;

  // False in a child after fork: the key is zeros there, which would seal as well as any other.
  bool is_there() const;
  const uint8_t* data() const { return page()->key.data(); }

 private:
  struct Page {
    std::array<uint8_t, kBytes> key;
    uint64_t magic;  // beside the key, and wiped with it
  };
  static absl::StatusOr<std::unique_ptr<SealKey>> Make();
  explicit SealKey(Mapping memory) : memory_(std::move(memory)) {}
  Page* page() const { return reinterpret_cast<Page*>(memory_.data()); }

  const Mapping memory_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_SEAL_KEY_H_
