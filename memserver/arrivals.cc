#include "memserver/arrivals.h"

#include <glog/logging.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace nram {

Arrivals::Arrivals() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { PCHECK(event_.valid()); }

void Arrivals::Add(Arrival arrival) {
  {
    MutexLock lock(&mu_);
    if (arrivals_.size() == kMax) arrivals_.erase(arrivals_.begin());
    arrivals_.push_back(std::move(arrival));
  }
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof one);
}

std::vector<Arrivals::Arrival> Arrivals::Take() {
  uint64_t count;
  (void)!read(event_.get(), &count, sizeof count);
  std::vector<Arrival> taken;
  MutexLock lock(&mu_);
  taken.swap(arrivals_);
  return taken;
}

}  // namespace nram
