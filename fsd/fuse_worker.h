#ifndef NRAM_FSD_FUSE_WORKER_H_
#define NRAM_FSD_FUSE_WORKER_H_

#include <linux/fuse.h>

#include <cstddef>

#include "base/mapping.h"
#include "fsd/file_io.h"

namespace nram {

// The largest read and write that the kernel sends: 256 pages, its own limit unless root has raised it.
inline constexpr size_t kFuseIoBytesMax = 1 << 20;

// One thread that serves requests: its buffers, and the request that it has in hand. A callback runs on such a thread.
// Each thread uses only its own.
class FuseWorker {
 public:
  // The buffers' sizes: a request with its data; that and a reply.
  static constexpr size_t kRequestBytes = kFuseIoBytesMax + 4096;
  static constexpr size_t kMemoryBytes = 2 * kFuseIoBytesMax + 4096 + 8 * PaddedBytes::kPadBytes;

  FuseWorker();
  virtual ~FuseWorker() = default;
  // The calling thread's; null on other threads.
  static FuseWorker* Current();
  void MakeCurrent();
  // A callback says so before it may have to wait: for a memory server, for another request, or for the kernel to write
  // something back. Other threads then read requests meanwhile.
  virtual void BeforeWaiting() {}

  // The buffer for the next request, with pads.
  std::byte* request() { return memory_.data() + PaddedBytes::kPadBytes; }
  // The buffer for a reply.
  PaddedBytes reply() { return {memory_.data() + kRequestBytes + 3 * PaddedBytes::kPadBytes, kFuseIoBytesMax}; }
  // The request as the kernel sent it: libfuse 3.14 does not hand all of it on.
  const fuse_in_header& header() const {
    return *reinterpret_cast<const fuse_in_header*>(memory_.data() + PaddedBytes::kPadBytes);
  }
  template <typename Body>
  const Body& body() const {
    return *reinterpret_cast<const Body*>(&header() + 1);
  }

 private:
  Mapping memory_;
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_WORKER_H_
