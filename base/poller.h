#ifndef NRAM_BASE_POLLER_H_
#define NRAM_BASE_POLLER_H_

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/spin.h"
#include "base/sync.h"

namespace nram {

// Waits for its clients' descriptors and calls them when these are ready: a pool's connections, while calls are under
// way that nobody waits for. It has a thread for that; or a program's own threads do it beside what they wait for
// themselves (Watch, Drive), which saves it waking another one for each reply.
class Poller {
 public:
  // What it serves. Called on the poller's thread, or on one that drives it.
  class Client {
   public:
    virtual ~Client() = default;
    // The descriptor given to Arm is ready; again and again while it is.
    virtual void OnReady() = 0;
    // Now and then, so that deadlines pass.
    virtual void OnTick(int64_t now_ns) = 0;
    // What Defer was for; on the thread that drives. Must not block.
    virtual void OnFlush() {}
  };

  explicit Poller(SpinOptions spin = {.limit_us = 0});
  ~Poller();  // all clients must be removed before

  void Add(Client* client);
  // Returns when no callback of `client` runs or will run. Not from a callback.
  void Remove(Client* client);
  // Watches `fd`, which stays its client's, for reading (and writing, if `for_output`) until it is disarmed. `armed`:
  // it is watched already, for something else. From any thread, callbacks too.
  void Arm(Client* client, int fd, bool armed, bool for_output);
  // Before `fd` is closed. One more OnReady may come of what was seen before.
  void Disarm(int fd);

  // From now on the caller's threads do the work: one at a time, but for short gaps, is to be in Drive, which waits for
  // `fd` too (the caller's; open until Unwatch). Nothing hangs if none is: the poller's own thread looks after its
  // clients every 20 ms.
  void Watch(int fd);
  // Drives until something was ready or `timeout_ms` are over, or a signal came. True if the watched descriptor is
  // readable, or broken.
  bool Drive(int timeout_ms);
  // For what a thread has to send between one Drive and the next, so that it goes out in groups: if true,
  // client->OnFlush() is called before this thread waits, or ceases to drive. False if the calling thread does not
  // drive, or if 16 other clients wait for it already: send at once then. Takes no lock, so the caller may hold its
  // own.
  bool Defer(Client* client);
  // The calling thread drives no more; another one may. Flushes first; does nothing on a thread that does not drive.
  void StopDriving();
  // The poller's own thread does the work again. Nobody may be in Drive.
  void Unwatch();

 private:
  static constexpr int kTickMs = 20;
  static constexpr int kEventsMax = 16;

  void Run();
  // epoll_wait, after polling for as long as seems worth it.
  int SpinAndWait(epoll_event* events, int timeout_ms);
  void Flush();
  // One wait and the callbacks of what was ready. Sets *stopped or *watched if so.
  void Poll(int timeout_ms, bool spins, bool* stopped, bool* watched);
  template <typename Callback>
  void Call(Client* client, const Callback& callback);

  // The next three are for whoever drives.
  SpinPolicy spin_;
  std::array<Client*, kEventsMax> deferred_{};
  size_t deferred_count_ = 0;

  UniqueFd epoll_;
  UniqueFd stop_event_;
  std::atomic<int> watched_fd_{-1};
  Mutex mu_;
  CondVar idle_;
  std::vector<Client*> running_ ABSL_GUARDED_BY(mu_);  // one for each thread that is in a callback
  std::vector<Client*> clients_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_BASE_POLLER_H_
