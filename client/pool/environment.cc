#include "client/pool/environment.h"

#include <errno.h>
#include <glog/logging.h>
#include <sys/random.h>

#include "base/clock.h"

namespace nram {
namespace {

class RealEnvironment : public Environment {
 public:
  int64_t NowNs() const override { return MonotonicNs(); }
  uint64_t RandomId() override {
    // From the kernel each time: a generator of ours would give parent and child the same numbers after a fork.
    uint64_t id = 0;
    while (id == 0) PCHECK(getrandom(&id, sizeof id, 0) == sizeof id || errno == EINTR);
    return id;
  }
};

}  // namespace

Environment* Environment::Real() {
  static auto* const real = new RealEnvironment;
  return real;
}

}  // namespace nram
