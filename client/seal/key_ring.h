#ifndef NRAM_CLIENT_SEAL_KEY_RING_H_
#define NRAM_CLIENT_SEAL_KEY_RING_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/seal/seal_key.h"
#include "client/seal/seal_manifest.h"
#include "client/seal/seal_secret.h"

namespace nram {

// The keys of all past and present owners of a named region. Does not change, so it is thread-safe. 32 bytes of locked
// memory for each.
class KeyRing {
 public:
  // FAILED_PRECONDITION: a child after fork. RESOURCE_EXHAUSTED: no memory may be locked.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Derive(const SealSecret& secret, const SealManifest& manifest);

  // Null: the ring knows no such owner. Derives nothing.
  const SealKey* Find(OwnerNumber owner) const;

 private:
  using Key = std::pair<OwnerNumber, std::unique_ptr<SealKey>>;

  explicit KeyRing(std::vector<Key> keys) : keys_(std::move(keys)) {}

  const std::vector<Key> keys_;  // in the order of their owners' numbers
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_KEY_RING_H_
