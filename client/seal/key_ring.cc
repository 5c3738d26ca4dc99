#include "client/seal/key_ring.h"

#include <algorithm>
#include <string>

#include "base/status.h"

namespace nram {
namespace {

std::string PurposeOf(const SealManifest& manifest) {
  std::string purpose = "nram region";
  const uint64_t id = Raw(manifest.id);
  for (int byte = 0; byte < 8; ++byte) purpose.push_back(static_cast<char>(id >> (8 * byte)));
  return purpose + manifest.name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Derive(const SealSecret& secret, const SealManifest& manifest) {
  const std::string purpose = PurposeOf(manifest);
  NRAM_ASSIGN_OR_RETURN(const std::shared_ptr<KeyMemory> memory,
                        KeyMemory::Make(manifest.salts.size() * SealKey::kBytes));
  std::vector<Key> keys;
  for (const OwnerSalt& salt : manifest.salts) {
    NRAM_ASSIGN_OR_RETURN(std::unique_ptr<SealKey> key,
                          secret.DeriveAt(memory, keys.size() * SealKey::kBytes, salt,
                                          {reinterpret_cast<const uint8_t*>(purpose.data()), purpose.size()}));
    keys.emplace_back(OwnerOf(salt), std::move(key));
  }
  std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.first < b.first; });
  return std::unique_ptr<KeyRing>(new KeyRing(std::move(keys)));
}

const SealKey* KeyRing::Find(OwnerNumber owner) const {
  const auto it = std::lower_bound(keys_.begin(), keys_.end(), owner,
                                   [](const Key& key, OwnerNumber number) { return key.first < number; });
  return it == keys_.end() || it->first != owner ? nullptr : it->second.get();
}

}  // namespace nram
