#include "client/transport/poller.h"

#include <errno.h>
#include <glog/logging.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "base/clock.h"

namespace nram {

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), stop_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PCHECK(epoll_.valid() && stop_event_.valid());
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_event_.get(), &event) == 0);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-poller");
}

Poller::~Poller() {
  const uint64_t one = 1;
  (void)!write(stop_event_.get(), &one, sizeof one);
  thread_.join();
  MutexLock lock(&mu_);
  CHECK(clients_.empty());
}

void Poller::Add(Client* client) {
  MutexLock lock(&mu_);
  clients_.push_back(client);
}

void Poller::Remove(Client* client) {
  MutexLock lock(&mu_);
  std::erase(clients_, client);
  // A callback does not block, so this is short.
  while (running_ == client) idle_.WaitUntil(&mu_, DeadlineAfterMs(kTickMs));
}

void Poller::Arm(Client* client, int fd, bool registered, bool for_output) {
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT | (for_output ? uint32_t{EPOLLOUT} : 0), .data = {.ptr = client}};
  PCHECK(epoll_ctl(epoll_.get(), registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0);
}

void Poller::Run() {
  int64_t next_tick_ns = 0;
  std::vector<Client*> ticking;
  while (true) {
    epoll_event events[16];
    const int count = epoll_wait(epoll_.get(), events, 16, kTickMs);
    if (count < 0) PCHECK(errno == EINTR) << "epoll_wait";
    const auto run = [&](Client* client, auto callback) {
      {
        MutexLock lock(&mu_);
        if (std::find(clients_.begin(), clients_.end(), client) == clients_.end()) return;
        running_ = client;
      }
      callback();
      MutexLock lock(&mu_);
      running_ = nullptr;
      idle_.SignalAll();
    };
    for (int i = 0; i < count; ++i) {
      auto* client = static_cast<Client*>(events[i].data.ptr);
      if (client == nullptr) return;
      run(client, [&] { client->OnReady(); });
    }
    const int64_t now_ns = MonotonicNs();
    if (now_ns < next_tick_ns) continue;
    next_tick_ns = now_ns + kTickMs * kNsPerMs;
    {
      MutexLock lock(&mu_);
      ticking = clients_;
    }
    for (Client* client : ticking) run(client, [&] { client->OnTick(now_ns); });
  }
}

}  // namespace nram
