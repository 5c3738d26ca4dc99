#ifndef NRAM_MEMSERVER_ARRIVALS_H_
#define NRAM_MEMSERVER_ARRIVALS_H_

#include <cstddef>
#include <vector>

#include "base/fd.h"
#include "base/sync.h"
#include "base/tls/channel.h"
#include "memserver/listen.h"

namespace nram {

// Connections whose handshake has ended well, on their way to the acceptor. It may wait for others to give way
// meanwhile: beyond kMax, the oldest is closed, and its client connects again. Thread-safe.
class Arrivals {
 public:
  static constexpr size_t kMax = 64;
  struct Arrival {
    UniqueFd fd;
    Peer peer;
    TlsSession session;
  };

  Arrivals();
  // Readable once there is one.
  int event_fd() const { return event_.get(); }
  void Add(Arrival arrival);
  // All of them, the oldest first.
  std::vector<Arrival> Take();

 private:
  const UniqueFd event_;
  Mutex mu_;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_ARRIVALS_H_
