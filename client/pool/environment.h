#ifndef NRAM_CLIENT_POOL_ENVIRONMENT_H_
#define NRAM_CLIENT_POOL_ENVIRONMENT_H_

// The things that the pool client asks of the machine. A simulation hands in another machine, in which time is virtual
// and chance comes from a seed.

#include <cstdint>

namespace nram {

// Thread-safe. Nothing blocks.
class Environment {
 public:
  virtual ~Environment() = default;
  // Nanoseconds on a clock that never goes back. All deadlines of the pool client are such absolute times.
  virtual int64_t NowNs() const = 0;
  // Never 0, and never the same twice, in no process.
  virtual uint64_t RandomId() = 0;
  // This machine's; lives for ever.
  static Environment* Real();
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_ENVIRONMENT_H_
