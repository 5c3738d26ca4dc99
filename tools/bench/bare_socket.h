#ifndef NRAM_TOOLS_BENCH_BARE_SOCKET_H_
#define NRAM_TOOLS_BENCH_BARE_SOCKET_H_

// The reference: the same bytes over a bare socket, without headers to parse, checksums, index, locks or credit. A
// process of its own answers every request of a fixed size with a reply of a fixed size. It reads all bytes that have
// come and answers all whole requests with one send.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/subprocess.h"

namespace nram {

// Keeps the calling thread, and those it starts, on one processor; negative numbers count from the last. On one
// machine, a client and a server wake each other in 6 us if the scheduler puts them on one processor, otherwise in 90.
// Two machines never share a processor.
void PinToProcessor(int number);

// Starts the answering process, on the last processor, and connects to it over TCP loopback. Call it before there are
// threads: it forks.
class BareSocket {
 public:
  // The memory that the other end reads and writes.
  enum class Memory {
    kCached,  // one buffer, which stays in its processor's cache
    kStore,   // 256 MiB in turn, as for any server that holds more than a cache; one message at a time
  };
  static absl::StatusOr<BareSocket> Start(Memory memory);
  BareSocket(BareSocket&&) = default;
  ~BareSocket();

  struct Shape {
    uint32_t request_bytes = 64;  // at least 64
    uint32_t reply_bytes = 64;    // likewise
    bool spin = false;            // both ends poll instead of sleeping
  };

  // Returns the nanoseconds of each of `count` round trips, one at a time.
  std::vector<int64_t> PingPong(const Shape& shape, int count);
  // Returns the nanoseconds for `count` round trips with up to `depth` of them under way.
  int64_t Stream(const Shape& shape, int count, int depth);

 private:
  BareSocket() = default;

  UniqueFd fd_;
  Subprocess child_;
  std::vector<char> buffer_;
};

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_BARE_SOCKET_H_
