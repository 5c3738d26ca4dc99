#ifndef NRAM_CLIENT_TRANSPORT_POLLER_H_
#define NRAM_CLIENT_TRANSPORT_POLLER_H_

#include <cstdint>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/sync.h"

namespace nram {

// One thread that moves the traffic of connections on which calls are under way that nobody waits for. A pool has one.
class Poller {
 public:
  // What it serves. Called on the poller's thread.
  class Client {
   public:
    virtual ~Client() = default;
    // The descriptor given to Arm is ready (once for each Arm).
    virtual void OnReady() = 0;
    // Now and then, so that deadlines pass.
    virtual void OnTick(int64_t now_ns) = 0;
  };

  Poller();
  ~Poller();  // all clients must be removed before

  void Add(Client* client);
  // Returns when no callback of `client` runs or will run. Not from a callback.
  void Remove(Client* client);
  // Watches `fd` for reading (and writing, if `for_output`), until it is ready once. `registered` says whether this
  // descriptor has been armed before.
  void Arm(Client* client, int fd, bool registered, bool for_output);

 private:
  static constexpr int kTickMs = 20;
  void Run();

  UniqueFd epoll_;
  UniqueFd stop_event_;
  Mutex mu_;
  CondVar idle_;
  Client* running_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<Client*> clients_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_POLLER_H_
