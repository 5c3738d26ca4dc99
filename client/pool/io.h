#ifndef NRAM_CLIENT_POOL_IO_H_
#define NRAM_CLIENT_POOL_IO_H_

// A read or a write of a region: its parts, one message each, several under way.

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/copied_io.h"
#include "client/pool/io_engine.h"
#include "client/pool/one_copy_io.h"

namespace nram {

// An operation's handle: give it to Region::StartRead or StartWrite, keep it and the buffer until it is done, then use
// it again if you like. One operation at a time.
class Io {
 public:
  // The most parts under way: 4 MiB.
  static constexpr size_t kPartsMax = 16;
  using Callback = void (*)(Io* io, void* context);

  // Allocates its parts, 1 to kPartsMax (and at least one for each copy that a page may have), once. With fewer, less
  // is under way.
  explicit Io(size_t part_count = kPartsMax);
  ~Io();
  Io(const Io&) = delete;
  Io& operator=(const Io&) = delete;

  // Blocks until the operation that was started is done (at its deadline at the latest) and returns its result.
  absl::Status Wait();
  bool done() const { return engine_.is_done(); }
  // Makes the allocations that the first long operation on a region of copies would make.
  void Prepare() { copied_.Prepare(); }

  // --- For Region.
  // Runs a whole operation on the calling thread.
  static absl::Status Run(const IoPlace& place, const IoRequest& request);
  // Begins an operation that completes by itself, or ends at once with the request's error. Does not block. The
  // callback is the last to touch the operation.
  void Start(const IoPlace& place, const absl::StatusOr<IoRequest>& request, Callback callback, void* context);

 private:
  static void OnFinished(void* context);

  const std::unique_ptr<IoPart[]> parts_;
  IoEngine engine_;
  OneCopyIo one_copy_;
  CopiedIo copied_;
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_IO_H_
