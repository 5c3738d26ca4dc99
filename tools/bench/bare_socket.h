#ifndef NRAM_TOOLS_BENCH_BARE_SOCKET_H_
#define NRAM_TOOLS_BENCH_BARE_SOCKET_H_

// The reference: the same bytes over a bare socket, without headers to parse, checksums, index, locks or credit. A
// process of its own answers every request of so many bytes with so many bytes; it reads whatever has come and answers
// all whole requests with one send.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/subprocess.h"

namespace nram {

// Keeps the calling thread, and those it starts, on one processor; negative counts from the last. On one machine a
// client and a server that share a processor wake each other in 6 us and otherwise in 90, as the scheduler pleases; two
// machines never do.
void PinToProcessor(int number);

// Starts the answering process, on the last processor, and connects to it over TCP loopback. Fork it before there are
// threads.
class BareSocket {
 public:
  // Where the other end's bytes come from and go to.
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

  // Nanoseconds of each of `count` round trips, one at a time.
  std::vector<int64_t> PingPong(const Shape& shape, int count);
  // Nanoseconds for `count` round trips with up to `depth` of them under way.
  int64_t Stream(const Shape& shape, int count, int depth);

 private:
  BareSocket() = default;

  UniqueFd fd_;
  Subprocess child_;
  std::vector<char> buffer_;
};

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_BARE_SOCKET_H_
