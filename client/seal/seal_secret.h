#ifndef NRAM_CLIENT_SEAL_SEAL_SECRET_H_
#define NRAM_CLIENT_SEAL_SEAL_SECRET_H_

// A key file: it opens regions that outlive their process (adr/0016, "Regions with a name").

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

// The secret in a key file. Thread-safe. It is not shown: keys for purposes are derived from it.
class SealSecret {
 public:
  static constexpr size_t kBytesMin = 16;
  static constexpr size_t kBytesMax = 4096;

  // All of a file. Blocks as its file system does. Errors name the file and say how to mend it. PERMISSION_DENIED:
  // others may change or read it. INVALID_ARGUMENT: it is no regular file, too short or too long. FAILED_PRECONDITION:
  // it is being written. Else as open(2).
  //
  // The file's owner must be this user or root. No other user may write it. No other user may read it; but the group of
  // a file of root's may (mode 0440), and every user on a tmpfs, because Kubernetes mounts secrets so. Links are
  // followed, since a mounted secret is one. No other user may write the directory that the path names (unless it has
  // the sticky bit, as /tmp has).
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
