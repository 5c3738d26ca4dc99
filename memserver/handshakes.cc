#include "memserver/handshakes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <glog/logging.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/tls/records.h"

namespace nram {
namespace {

constexpr int kLookMs = 100;

// The part of an IPv6 address that a host does not choose; others as they are.
std::string NetworkOf(const std::string& source) {
  in6_addr address;
  if (inet_pton(AF_INET6, source.c_str(), &address) != 1 || IN6_IS_ADDR_V4MAPPED(&address)) return source;
  return {reinterpret_cast<const char*>(&address), 8};
}

constexpr std::byte kHandshakeRecord{22};

// Tells a client whose handshake has ended well that it may not connect. There is room for it: nothing else was sent.
void DenyAccess(int fd, const TlsSession& session) {
  constexpr uint8_t kFatal = 2;
  std::array<std::byte, 2> alert = {std::byte{kFatal}, std::byte{kAlertAccessDenied}};
  std::array<std::byte, sizeof alert + RecordSealer::kRoomBytes> out;
  RecordSealer sealer(session.to_send);
  const iovec piece{alert.data(), alert.size()};
  PieceCursor from({&piece, 1});
  const size_t bytes = sealer.Seal(RecordType::kAlert, &from, alert.size(), out.data());
  (void)!send(fd, out.data(), bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

Handshakes::Handshakes(std::shared_ptr<TlsContext> context, HandshakesOptions options)
    : context_(std::move(context)),
      options_(std::move(options)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PCHECK(epoll_.valid() && wake_.valid());
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-shake");
}

Handshakes::~Handshakes() { Stop(); }

void Handshakes::Stop() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(stopping_, true)) return;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
  thread_.join();
}

size_t Handshakes::under_way() const {
  MutexLock lock(&mu_);
  return entries_.size();
}

void Handshakes::Add(UniqueFd fd, Peer peer, Done done, absl::Status plain) {
  auto entry = std::make_shared<Entry>();
  entry->fd = std::move(fd);
  entry->peer = std::move(peer);
  entry->done = std::move(done);
  entry->plain = std::move(plain);
  entry->deadline_ns = DeadlineAfterMs(options_.limit_ms);
  entry->events = EPOLLIN;
  MutexLock lock(&mu_);
  if (stopping_) return;
  entry->number = ++arrived_;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = entry->number}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, entry->fd.get(), &event) != 0) {
    PLOG_EVERY_N(ERROR, 100) << "epoll_ctl";
    return;
  }
  entries_.emplace(entry->number, std::move(entry));
  if (entries_.size() > options_.most) MakeRoomLocked();
}

void Handshakes::SendAway(UniqueFd fd, Peer peer, absl::Status why) {
  Add(std::move(fd), std::move(peer), /*done=*/nullptr, std::move(why));
}

// A client that opens many connections displaces its own: one of the network that has most, by chance. Not the newest:
// a client that holds all places without a word would shut out its whole network, or all others if it has many
// networks.
void Handshakes::MakeRoomLocked() {
  absl::flat_hash_map<std::string, std::vector<uint64_t>> by_network;
  size_t most = 0;
  for (const auto& [number, entry] : entries_) {
    std::vector<uint64_t>& of = by_network[NetworkOf(entry->peer.source)];
    of.push_back(number);
    most = std::max(most, of.size());
  }
  std::vector<uint64_t> may_go;
  for (const auto& [network, of] : by_network) {
    if (of.size() == most) may_go.insert(may_go.end(), of.begin(), of.end());
  }
  entries_.erase(may_go[random_() % may_go.size()]);
  ++displaced_;
}

void Handshakes::Run() {
  constexpr int kEventsMax = 64;
  int64_t next_look_ns = 0;
  while (true) {
    epoll_event events[kEventsMax];
    const int count = epoll_wait(epoll_.get(), events, kEventsMax, kLookMs);
    if (count < 0) PCHECK(errno == EINTR) << "epoll_wait";
    std::vector<std::shared_ptr<Entry>> ready;
    {
      MutexLock lock(&mu_);
      if (stopping_) {
        entries_.clear();
        return;
      }
      for (int i = 0; i < count; ++i) {
        const uint64_t number = events[i].data.u64;  // where it stands, it is not aligned
        const auto it = entries_.find(number);
        if (it != entries_.end()) ready.push_back(it->second);
      }
      const int64_t now_ns = MonotonicNs();
      if (now_ns >= next_look_ns) {
        next_look_ns = now_ns + kLookMs * kNsPerMs;
        absl::erase_if(entries_, [&](const auto& entry) { return now_ns >= entry.second->deadline_ns; });
      }
    }
    for (const std::shared_ptr<Entry>& entry : ready) {
      if (Step(entry.get())) continue;
      MutexLock lock(&mu_);
      entries_.erase(entry->number);
    }
  }
}

bool Handshakes::Drain(const Entry& entry) {
  std::array<std::byte, 4096> dropped;
  const ssize_t n = recv(entry.fd.get(), dropped.data(), dropped.size(), MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

// The alert must not be lost to a reset, which a close with unread bytes is.
bool Handshakes::Refuse(Entry* entry, const absl::Status& why) {
  if (options_.refused != nullptr) options_.refused(entry->peer, why);
  entry->handshake.reset();
  entry->farewell.reset();
  entry->lingers = true;
  entry->deadline_ns = DeadlineAfterMs(options_.linger_ms);
  // Not for output, which there is always room for now.
  epoll_event event{.events = EPOLLIN, .data = {.u64 = entry->number}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, entry->fd.get(), &event) != 0) return false;
  return shutdown(entry->fd.get(), SHUT_WR) == 0;
}

bool Handshakes::Begin(Entry* entry) {
  std::byte first;
  const ssize_t n = recv(entry->fd.get(), &first, 1, MSG_DONTWAIT | MSG_PEEK);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;  // a look at the port, no more
  if (n < 0) return true;
  if (entry->done == nullptr || (first != kHandshakeRecord && !entry->plain.ok())) {
    entry->farewell = std::make_unique<Farewell>(entry->plain);
  } else {
    entry->handshake = std::make_unique<TlsHandshake>(context_.get(), entry->fd.get());
  }
  return true;
}

// All that is sent fits into the socket: some hundred bytes.
bool Handshakes::StepFarewell(Entry* entry) {
  std::array<std::byte, 4096> some;
  const ssize_t n = recv(entry->fd.get(), some.data(), some.size(), MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (n < 0) return true;
  std::string out;
  if (const absl::Status status = entry->farewell->Take({some.data(), static_cast<size_t>(n)}, &out); !status.ok()) {
    if (options_.refused != nullptr) options_.refused(entry->peer, status);
    return false;
  }
  const ssize_t sent = send(entry->fd.get(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(out.size())) return false;
  return !entry->farewell->is_told() || Refuse(entry, entry->plain);
}

bool Handshakes::Step(Entry* entry) {
  if (entry->lingers) return Drain(*entry);
  if (entry->handshake == nullptr && entry->farewell == nullptr && !Begin(entry)) return false;
  if (entry->farewell != nullptr) return StepFarewell(entry);
  if (entry->handshake == nullptr) return true;
  const absl::StatusOr<TlsHandshake::Step> step = entry->handshake->Go();
  if (!step.ok()) return Refuse(entry, step.status());
  if (*step == TlsHandshake::Step::kDone) {
    const TlsSession session = entry->handshake->Take();
    entry->handshake.reset();
    const absl::Status may = options_.admit == nullptr ? absl::OkStatus() : options_.admit(session.peer);
    if (!may.ok()) {
      DenyAccess(entry->fd.get(), session);
      return Refuse(entry, may);
    }
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->fd.get(), nullptr);
    entry->done(std::move(entry->fd), entry->peer, session);
    return false;
  }
  const uint32_t wanted = *step == TlsHandshake::Step::kWantsOutput ? EPOLLOUT : EPOLLIN;
  if (wanted == entry->events) return true;
  entry->events = wanted;
  epoll_event event{.events = wanted, .data = {.u64 = entry->number}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, entry->fd.get(), &event) == 0;
}

}  // namespace nram
