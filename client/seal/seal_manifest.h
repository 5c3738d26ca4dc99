#ifndef NRAM_CLIENT_SEAL_SEAL_MANIFEST_H_
#define NRAM_CLIENT_SEAL_SEAL_MANIFEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "client/seal/seal_secret.h"

namespace nram {

// The salt of one owner's term, drawn at random when the term begins. The owner's key is derived with it, and its first
// bytes are the owner's number, which is in the seal of each page (OwnerOf).
using OwnerSalt = std::array<uint8_t, 16>;
using OwnerNumber = uint16_t;

inline OwnerNumber OwnerOf(const OwnerSalt& salt) { return static_cast<OwnerNumber>(salt[0] | salt[1] << 8); }
// By the counter that a page was sealed with.
inline OwnerNumber OwnerOf(uint64_t counter) { return static_cast<OwnerNumber>(counter >> 48); }
// Where the counters of that owner begin.
uint64_t FirstCounterOf(OwnerNumber owner);

// A statement about a sealed region with a name, by a bearer of the key file. Servers keep it, and cannot make or
// change one.
struct SealManifest {
  static constexpr size_t kOwnersMax = 1000;

  // With a proof (HMAC-SHA-256) that a key of the secret's makes. At most 16 KiB.
  absl::StatusOr<std::string> Write(const SealSecret& secret) const;
  // FAILED_PRECONDITION: it was not made with that secret.
  static absl::StatusOr<SealManifest> Read(const SealSecret& secret, absl::string_view bytes);

  // The region is the same, under any owner.
  bool IsOfSame(const SealManifest& other) const {
    return id == other.id && name == other.name && size_bytes == other.size_bytes && copies == other.copies;
  }
  // Takes in the owners that another server knows of. Lists may differ: an owner that has not reached all servers has
  // sealed nothing, but its salt stays on those that it has reached.
  void AddOwnersOf(const SealManifest& other);
  bool HasOwner(OwnerNumber owner) const;

  RegionId id{};
  std::string name;
  uint64_t size_bytes = 0;
  uint8_t copies = 1;
  std::vector<OwnerSalt> salts;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_SEAL_MANIFEST_H_
