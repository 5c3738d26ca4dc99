#include "base/tls/pump.h"

#include <errno.h>
#include <glog/logging.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/signals.h"
#include "base/status.h"

namespace nram {

bool Pump::Link::ended() const {
  MutexLock lock(&mu_);
  if (!outer.valid()) return true;
  pollfd end{outer.get(), POLLRDHUP, 0};
  return poll(&end, 1, 0) != 0;
}

void Pump::Link::Cut() const {
  MutexLock lock(&mu_);
  if (outer.valid()) shutdown(outer.get(), SHUT_RDWR);
}

Pump::Pump() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PCHECK(epoll_.valid() && wake_.valid());
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0);
  const SignalsBlocked quiet;  // they are for the program's threads
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-pump");
}

Pump::~Pump() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
  thread_.join();
}

std::shared_ptr<const Pump::Link> Pump::Add(UniqueFd outer, const TlsSession* session, UniqueFd inner, Watch watch) {
  std::shared_ptr<Link> link(new Link(std::move(outer), session, std::move(inner), std::move(watch)));
  MutexLock lock(&mu_);
  // Nothing may have come over the network since the handshake, and then the socket tells.
  link->outer_events = link->inner_events = EPOLLIN;
  for (const int fd : {link->outer.get(), link->inner.get()}) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = link.get()}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      PLOG_EVERY_N(ERROR, 100) << "epoll_ctl";
      MutexLock of_link(&link->mu_);
      for (UniqueFd* const end : {&link->outer, &link->inner}) {
        shutdown(end->get(), SHUT_RDWR);
        end->reset();
      }
      return link;
    }
  }
  links_.emplace(link.get(), link);
  return link;
}

size_t Pump::count() const {
  MutexLock lock(&mu_);
  return links_.size();
}

void Pump::Run() {
  constexpr int kEventsMax = 64;
  std::vector<Link*> again;
  while (true) {
    epoll_event events[kEventsMax];
    const int count = epoll_wait(epoll_.get(), events, kEventsMax, again.empty() ? -1 : 0);
    if (count < 0) PCHECK(errno == EINTR) << "epoll_wait";
    std::vector<std::shared_ptr<Link>> ready;
    bool stops = false;
    {
      MutexLock lock(&mu_);
      stops = stopping_;
      if (stops) {
        for (const auto& [link, held] : links_) ready.push_back(held);
      }
      const auto add = [&](Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        const auto it = links_.find(link);
        if (it != links_.end() && std::find(ready.begin(), ready.end(), it->second) == ready.end()) {
          ready.push_back(it->second);
        }
      };
      for (int i = 0; i < count; ++i) add(static_cast<Link*>(events[i].data.ptr));
      for (Link* const link : again) add(link);
    }
    again.clear();
    for (const std::shared_ptr<Link>& link : ready) {
      if (stops || !Move(link.get())) {
        End(link.get());
      } else if (link->to_inner.empty() && link->channel.has_input()) {
        again.push_back(link.get());
      }
    }
    if (stops) return;
  }
}

absl::StatusOr<bool> Pump::MoveOut(Link* link) {
  Link::Buffer& buffer = link->to_outer;
  bool moved = false;
  if (buffer.empty() && !buffer.ended) {
    const ssize_t n = recv(link->inner.get(), buffer.data.get(), Link::kBufferBytes, MSG_DONTWAIT);
    if (n > 0) {
      if (link->watch.meter.has_value()) link->watch.meter->NoteSent({buffer.data.get(), static_cast<size_t>(n)});
      buffer.begin = 0;
      buffer.end = n;
    }
    moved = n > 0;
    buffer.ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }
  if (!buffer.empty() || link->channel.has_output()) {
    const iovec piece{buffer.data.get() + buffer.begin, buffer.end - buffer.begin};
    NRAM_ASSIGN_OR_RETURN(const size_t taken, link->channel.Send({&piece, buffer.empty() ? 0u : 1u}));
    buffer.begin += taken;
    moved = moved || taken > 0;
  }
  return moved;
}

absl::StatusOr<bool> Pump::MoveIn(Link* link) {
  Link::Buffer& buffer = link->to_inner;
  bool moved = false;
  if (buffer.empty() && !buffer.ended) {
    const iovec piece{buffer.data.get(), Link::kBufferBytes};
    NRAM_ASSIGN_OR_RETURN(const Channel::Received received, link->channel.Receive({&piece, 1}));
    if (link->watch.meter.has_value()) {
      const absl::Status fits = link->watch.meter->Take({buffer.data.get(), received.bytes}, MonotonicNs());
      if (!fits.ok()) {
        if (link->watch.cut != nullptr) link->watch.cut(fits);
        return fits;
      }
    }
    buffer.begin = 0;
    buffer.end = received.bytes;
    buffer.ended = received.ended;
    moved = received.bytes > 0;
  }
  if (!buffer.empty()) {
    const ssize_t n = send(link->inner.get(), buffer.data.get() + buffer.begin, buffer.end - buffer.begin,
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return absl::CancelledError("the plain end was closed");
    if (n > 0) buffer.begin += n;
    moved = moved || n > 0;
  }
  return moved;
}

bool Pump::Move(Link* link) {
  for (int round = 0; round < kRoundsMax; ++round) {
    const absl::StatusOr<bool> out = MoveOut(link);
    const absl::StatusOr<bool> in = MoveIn(link);
    // The peer's last word goes before the failure to send to it.
    for (const absl::StatusOr<bool>* const moved : {&in, &out}) {
      if (moved->ok()) continue;
      if (absl::IsCancelled(moved->status())) return false;
      {
        MutexLock lock(&link->mu_);
        if (link->status_.ok()) link->status_ = moved->status();
      }
      // Nothing can be carried any more.
      link->to_inner.ended = true;
      shutdown(link->inner.get(), SHUT_RDWR);
      return false;
    }
    // The plain end is closed when its other end is closed: until then gRPC may be at work on the received bytes.
    if (link->to_outer.ended && link->to_outer.empty() && !link->channel.has_output()) return false;
    if (link->to_inner.ended && link->to_inner.empty() && !std::exchange(link->told_end, true)) {
      shutdown(link->inner.get(), SHUT_WR);
    }
    if (!*out && !*in) break;
  }
  return Register(link);
}

bool Pump::Register(Link* link) {
  // An end from which nothing is wanted is taken out of the set: the set tells of its end whether or not it is asked
  // to, again and again. The other end wakes the link then; there is always one that is wanted.
  const auto set = [&](int fd, uint32_t wanted, uint32_t* registered) {
    if (*registered == wanted) return true;
    epoll_event event{.events = wanted, .data = {.ptr = link}};
    const int operation = wanted == 0 ? EPOLL_CTL_DEL : *registered == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    *registered = wanted;
    return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  };
  const bool out_waits = !link->to_outer.empty() || link->channel.has_output();
  const bool in_waits = !link->to_inner.empty();
  const uint32_t outer = (in_waits || link->to_inner.ended ? 0u : EPOLLIN) | (out_waits ? EPOLLOUT : 0u);
  const uint32_t inner = (out_waits || link->to_outer.ended ? 0u : EPOLLIN) | (in_waits ? EPOLLOUT : 0u);
  return set(link->outer.get(), outer, &link->outer_events) && set(link->inner.get(), inner, &link->inner_events);
}

void Pump::End(Link* link) {
  std::shared_ptr<Link> ended;
  MutexLock lock(&mu_);
  const auto it = links_.find(link);
  if (it == links_.end()) return;
  ended = std::move(it->second);
  links_.erase(it);
  MutexLock of_link(&ended->mu_);
  // Also where a child of a fork has copies of them.
  for (const UniqueFd* const fd : {&ended->outer, &ended->inner}) shutdown(fd->get(), SHUT_RDWR);
  // The handle may live on for its status.
  for (UniqueFd* const fd : {&ended->outer, &ended->inner}) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd->get(), nullptr);
    fd->reset();
  }
}

}  // namespace nram
