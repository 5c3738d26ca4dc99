#ifndef NRAM_CLIENT_SEAL_SEAL_SECRET_H_
#define NRAM_CLIENT_SEAL_SEAL_SECRET_H_

// A key file: what opens regions that outlive their process (adr/0016, "Regions with a name").

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/seal/key_memory.h"
#include "client/seal/seal_key.h"

namespace nram {

// The secret in a key file. Thread-safe. Nobody else sees it: keys for purposes are derived.
class SealSecret {
 public:
  static constexpr size_t kBytesMin = 16;
  static constexpr size_t kBytesMax = 4096;

  // All of a file. Blocks as its file system does. Errors name the file and say how to mend it. FAILED_PRECONDITION: it
  // is no regular file, others may change or read it, or it is too short or too long. Else as open(2).
  //
  // Who may read and change it: it is this user's, or root's. Nobody else may write it. Nobody else may read it; of a
  // file of root's its group may (mode 0440), and on a tmpfs everybody, since so Kubernetes mounts secrets. Links are
  // followed, since a mounted secret is one. Nobody else may write the directory that the path names (unless it has the
  // sticky bit, as /tmp has).
  static absl::StatusOr<std::unique_ptr<SealSecret>> Read(const std::string& path);

  // See SealKey::DeriveAt. FAILED_PRECONDITION: this is a child after fork, which has no secret.
  absl::StatusOr<std::unique_ptr<SealKey>> DeriveAt(std::shared_ptr<KeyMemory> memory, size_t at,
                                                    absl::Span<const uint8_t> salt,
                                                    absl::Span<const uint8_t> purpose) const;

 private:
  SealSecret(std::shared_ptr<KeyMemory> memory, size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  const std::shared_ptr<KeyMemory> memory_;
  const size_t bytes_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_SEAL_SECRET_H_
