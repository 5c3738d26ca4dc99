#ifndef NRAM_CLIENT_SEAL_SEAL_KEY_H_
#define NRAM_CLIENT_SEAL_SEAL_KEY_H_

// The key that pages are sealed with (adr/0016).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/seal/key_memory.h"

namespace nram {

// Thread-safe.
class SealKey {
 public:
  static constexpr size_t kBytes = 32;

  // A new one, that dies with this object. RESOURCE_EXHAUSTED: no memory may be locked (ulimit -l). UNAVAILABLE: there
  // is no randomness.
  static absl::StatusOr<std::unique_ptr<SealKey>> Random();
  // One for a purpose, from a secret that the user keeps: HKDF-SHA-256 (RFC 5869). The same secret, salt and purpose
  // give the same key. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SealKey>> Derive(absl::Span<const uint8_t> secret,
                                                         absl::Span<const uint8_t> salt,
                                                         absl::Span<const uint8_t> purpose);
  // The same, in memory that it shares with other keys: kBytes from `at` on are its own.
  static absl::StatusOr<std::unique_ptr<SealKey>> DeriveAt(std::shared_ptr<KeyMemory> memory, size_t at,
                                                           absl::Span<const uint8_t> secret,
                                                           absl::Span<const uint8_t> salt,
                                                           absl::Span<const uint8_t> purpose);
  SealKey(const SealKey&) = delete;

  // False in a child after fork: the key is zeros there, which would seal as well as any other.
  bool is_there() const { return memory_->is_there(); }
  const uint8_t* data() const { return key_; }

 private:
  SealKey(std::shared_ptr<KeyMemory> memory, size_t at) : memory_(std::move(memory)), key_(memory_->data() + at) {}

  const std::shared_ptr<KeyMemory> memory_;
  uint8_t* const key_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_SEAL_KEY_H_
