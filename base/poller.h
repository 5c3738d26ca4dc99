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

// Waits for its clients' descriptors and calls the clients when these are ready. The clients are a pool's connections,
// while asynchronous calls are under way. The poller has a thread of its own; or a program's threads do its work beside
// their own waits (Watch, Drive), which saves waking another thread for each reply.
class Poller {
 public:
  // Its methods are called on the poller's thread, or on a thread that drives the poller.
  class Client {
   public:
    virtual ~Client() = default;
    // The descriptor of Arm is ready. Called again and again while it is.
    virtual void OnReady() = 0;
    // Now and then, so that deadlines pass.
    virtual void OnTick(int64_t now_ns) = 0;
    // Sends the messages that Defer put off; on the thread that drives. Must not block.
    virtual void OnFlush() {}
  };

  explicit Poller(SpinOptions spin = {.limit_us = 0});
  ~Poller();  // all clients must be removed before

  void Add(Client* client);
  // Returns when no callback of `client` runs or will run. Must not be called from a callback.
  void Remove(Client* client);
  // Watches `fd` for input (and for output, if `for_output`) until Disarm. The client keeps the descriptor. `armed`:
  // the descriptor is watched already, for something else. May be called from any thread, and from callbacks. False,
  // and nothing changes: the kernel watches nothing more for this user (fs.epoll.max_user_watches), or has no memory.
  [[nodiscard]] bool Arm(Client* client, int fd, bool armed, bool for_output);
  // Must be called before `fd` is closed. One more OnReady may still follow.
  void Disarm(int fd);

  // From now on the caller's threads do the work: except for short gaps, one of them is in Drive, which waits for `fd`
  // too. The caller keeps `fd` open until Unwatch. Nothing hangs if no thread is in Drive: the poller's own thread
  // looks after its clients every 20 ms. False, and nothing changes: as Arm.
  [[nodiscard]] bool Watch(int fd);
  // Drives until something is ready, `timeout_ms` have passed, or a signal comes. True if the watched descriptor is
  // readable or broken.
  bool Drive(int timeout_ms);
  // Lets a thread group its messages between two calls of Drive. True: client->OnFlush() is called
  // before this thread waits or stops driving. False: the calling thread does not drive, or 16 other clients wait for
  // it already; the client must send at once. Takes no lock, so the caller may hold its own.
  bool Defer(Client* client);
  // Ends the calling thread's driving, after a flush, so that another thread may drive. Does nothing on a thread that
  // does not drive.
  void StopDriving();
  // The poller's own thread does the work again. No thread may be in Drive.
  void Unwatch();

 private:
  static constexpr int kTickMs = 20;
  static constexpr int kEventsMax = 16;

  void Run();
  // epoll_wait(2), after polling for as long as that seems worth it.
  int SpinAndWait(epoll_event* events, int timeout_ms);
  void Flush();
  // Waits once and calls the clients that are ready. Sets *stopped or *watched if those descriptors were.
  void Poll(int timeout_ms, bool spins, bool* stopped, bool* watched);
  template <typename Callback>
  void Call(Client* client, const Callback& callback);

  // The next three are the driving thread's.
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
