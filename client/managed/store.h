#ifndef NRAM_CLIENT_MANAGED_STORE_H_
#define NRAM_CLIENT_MANAGED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace nram {

// Stores the blocks that are not in local memory: the seam below the manager. Thread-safe. Offsets and lengths are
// multiples of unit_bytes().
class ManagedStore {
 public:
  // A read or write; one at a time. Used again when it has ended.
  class Op {
   public:
    virtual ~Op() = default;
    // The result. Blocks until the operation has ended; in its callback, and after it, it has.
    virtual absl::Status Wait() = 0;
  };
  // May run on any thread, also within the start; must not block; may start other operations. It is the last to touch
  // the operation.
  using Callback = void (*)(Op* op, void* context);

  virtual ~ManagedStore() = default;
  virtual uint64_t unit_bytes() const = 0;
  // Room for all that will be written to the range. Blocks. RESOURCE_EXHAUSTED: there is not that much.
  virtual absl::Status Reserve(uint64_t offset, uint64_t length) = 0;
  virtual std::unique_ptr<Op> NewOp() = 0;
  // Return at once. Operation and buffer must live until the callback has run or, with a null one, until Wait has
  // returned. Wait must be called if the callback is null: the waiting thread does the traffic.
  virtual void StartRead(Op* op, uint64_t offset, absl::Span<std::byte> to, Callback callback, void* context) = 0;
  virtual void StartWrite(Op* op, uint64_t offset, absl::Span<const std::byte> from, Callback callback,
                          void* context) = 0;
  // The program ends: the stored blocks may be freed now, for the store itself is not destroyed. Blocks for seconds at
  // most. Later requests, if there are any, fail.
  virtual void End() {}
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_STORE_H_
