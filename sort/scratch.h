#ifndef NRAM_SORT_SCRATCH_H_
#define NRAM_SORT_SCRATCH_H_

// Holds sorted runs until they are merged: an array of bytes that is written, read ahead and given back piece by piece.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/pool/options.h"

namespace nram {

// Thread-safe, except that one thread at a time uses a Transfer. Offsets and lengths are multiples of kBlockBytes.
class Scratch {
 public:
  static constexpr uint64_t kBlockBytes = 4096;

  // A read or write that is under way, one at a time. It must be waited for before its buffer is freed.
  class Transfer {
   public:
    virtual ~Transfer() = default;
    virtual void StartRead(uint64_t offset, absl::Span<char> to) = 0;
    virtual void StartWrite(uint64_t offset, absl::Span<const char> from) = 0;
    // Blocks until the transfer is done; OK at once if none was started.
    virtual absl::Status Wait() = 0;
  };

  virtual ~Scratch() = default;
  // Sets room aside for the first `bytes`. RESOURCE_EXHAUSTED: there is less room; the message says how much.
  virtual absl::Status Reserve(uint64_t bytes) = 0;
  virtual std::unique_ptr<Transfer> NewTransfer() = 0;
  // Frees the range. With kKeep its room stays this scratch's own, for later writes, where that can be done.
  enum class Room { kFree, kKeep };
  virtual absl::Status Discard(uint64_t offset, uint64_t bytes, Room room) = 0;
};

// A region of the pool, used through the client library: no filesystem, no page cache. The servers free it if this
// process dies. Each page has `copies` copies, 1 to 4, on servers of different hosts, and takes as much room in each.
// Errors: Pool::Open's, CheckHosts', and INVALID_ARGUMENT for another number of copies.
absl::StatusOr<std::unique_ptr<Scratch>> OpenPoolScratch(PoolOptions options, int copies = 1);

// A file without a name in `directory`, on the mount or anywhere else.
absl::StatusOr<std::unique_ptr<Scratch>> OpenFileScratch(const std::string& directory);

}  // namespace nram

#endif  // NRAM_SORT_SCRATCH_H_
