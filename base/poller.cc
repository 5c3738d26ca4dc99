#include "base/poller.h"

#include <errno.h>
#include <glog/logging.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "base/clock.h"

namespace nram {
namespace {

thread_local const Poller* driven_here = nullptr;

// False: the kernel has no more to give. Anything else is a bug.
bool SetWatch(int epoll, int operation, int fd, epoll_event event) {
  if (epoll_ctl(epoll, operation, fd, &event) == 0) return true;
  PCHECK(errno == ENOSPC || errno == ENOMEM) << "epoll_ctl";
  return false;
}

}  // namespace

Poller::Poller(SpinOptions spin)
    : spin_(spin), epoll_(epoll_create1(EPOLL_CLOEXEC)), stop_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PCHECK(epoll_.valid() && stop_event_.valid());
  running_.reserve(kEventsMax);  // the poller allocates nothing while it works
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
  while (std::find(running_.begin(), running_.end(), client) != running_.end()) {
    idle_.WaitUntil(&mu_, DeadlineAfterMs(kTickMs));
  }
}

bool Poller::Arm(Client* client, int fd, bool armed, bool for_output) {
  return SetWatch(epoll_.get(), armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd,
                  {.events = EPOLLIN | (for_output ? uint32_t{EPOLLOUT} : 0), .data = {.ptr = client}});
}

void Poller::Disarm(int fd) { PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0); }

bool Poller::Watch(int fd) {
  CHECK_EQ(watched_fd_.exchange(fd), -1) << "another thread watches already";
  if (SetWatch(epoll_.get(), EPOLL_CTL_ADD, fd, {.events = EPOLLIN, .data = {.ptr = this}})) return true;
  watched_fd_ = -1;
  return false;
}

void Poller::Unwatch() {
  StopDriving();
  const int fd = watched_fd_.load();
  CHECK_NE(fd, -1);
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0);
  watched_fd_ = -1;
}

bool Poller::Drive(int timeout_ms) {
  driven_here = this;
  Flush();
  bool stopped = false;
  bool watched = false;
  Poll(timeout_ms, /*spins=*/true, &stopped, &watched);
  return watched;
}

bool Poller::Defer(Client* client) {
  if (driven_here != this || watched_fd_ == -1) return false;
  for (size_t i = 0; i < deferred_count_; ++i) {
    if (deferred_[i] == client) return true;
  }
  if (deferred_count_ == deferred_.size()) return false;
  deferred_[deferred_count_++] = client;
  return true;
}

void Poller::StopDriving() {
  if (driven_here != this) return;
  Flush();
  driven_here = nullptr;
}

template <typename Callback>
void Poller::Call(Client* client, const Callback& callback) {
  {
    MutexLock lock(&mu_);
    if (std::find(clients_.begin(), clients_.end(), client) == clients_.end()) return;
    running_.push_back(client);
  }
  callback();
  MutexLock lock(&mu_);
  running_.erase(std::find(running_.begin(), running_.end(), client));
  idle_.SignalAll();
}

void Poller::Flush() {
  while (deferred_count_ > 0) {
    Client* const client = deferred_[--deferred_count_];
    Call(client, [client] { client->OnFlush(); });
  }
}

int Poller::SpinAndWait(epoll_event* events, int timeout_ms) {
  const int64_t budget_ns = spin_.NextBudgetNs();
  const int64_t began_ns = spin_.enabled() ? MonotonicNs() : 0;
  int count = 0;
  while (count == 0 && budget_ns > 0 && MonotonicNs() < began_ns + budget_ns) {
    count = epoll_wait(epoll_.get(), events, kEventsMax, 0);
    if (count == 0) SpinPause();
  }
  if (count == 0) count = epoll_wait(epoll_.get(), events, kEventsMax, timeout_ms);
  if (spin_.enabled()) spin_.Report(MonotonicNs() - began_ns);
  return count;
}

void Poller::Poll(int timeout_ms, bool spins, bool* stopped, bool* watched) {
  epoll_event events[kEventsMax];
  const int count = spins ? SpinAndWait(events, timeout_ms) : epoll_wait(epoll_.get(), events, kEventsMax, timeout_ms);
  if (count < 0) PCHECK(errno == EINTR) << "epoll_wait";
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == nullptr) {
      *stopped = true;
    } else if (events[i].data.ptr == this) {
      *watched = true;
    } else {
      auto* const client = static_cast<Client*>(events[i].data.ptr);
      Call(client, [client] { client->OnReady(); });
    }
  }
}

void Poller::Run() {
  int64_t next_tick_ns = 0;
  bool stopped = false;
  bool watched = false;
  std::vector<Client*> ticking;
  while (!stopped) {
    if (watched_fd_ == -1) {
      Poll(kTickMs, /*spins=*/false, &stopped, &watched);
    } else {
      pollfd waiting{stop_event_.get(), POLLIN, 0};
      poll(&waiting, 1, kTickMs);
      Poll(0, /*spins=*/false, &stopped, &watched);
    }
    const int64_t now_ns = MonotonicNs();
    if (now_ns < next_tick_ns) continue;
    next_tick_ns = now_ns + kTickMs * kNsPerMs;
    {
      MutexLock lock(&mu_);
      ticking = clients_;
    }
    for (Client* client : ticking) Call(client, [=] { client->OnTick(now_ns); });
  }
}

}  // namespace nram
