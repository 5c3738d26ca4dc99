#include "tests/util/faulty_relay.h"

#include <glog/logging.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "proto/message.h"

namespace nram {

// One direction: bytes read, a message that waits to be overtaken, bytes to be sent. These are queued: an end that does
// not read must not keep the relay from reading. Credit bounds them.
struct FaultyRelay::Direction {
  UniqueFd* from;
  UniqueFd* to;
  std::string bytes;
  std::string overtaken;
  std::string out;
  bool cut = false;  // ends when `out` is sent
  uint64_t messages = 0;

  void LetGo() {
    out += overtaken;
    overtaken.clear();
  }
};

struct FaultyRelay::Link {
  UniqueFd client;
  UniqueFd server;
  std::mt19937_64 random;
  Direction directions[2];
  std::thread thread;
};

FaultyRelay::FaultyRelay(const Endpoint& target, uint64_t seed)
    : target_(target), seed_(seed), evil_(seed), lie_random_(seed) {
  char name[] = "/tmp/nram-relay-XXXXXX";
  PCHECK(mkdtemp(name) != nullptr);
  directory_ = name;
  socket_path_ = directory_ + "/socket";
  stop_event_.reset(eventfd(0, EFD_CLOEXEC));
  listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  PCHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  PCHECK(listen(listener_.get(), 64) == 0);
  acceptor_ = std::thread([this] { AcceptLoop(); });
}

FaultyRelay::~FaultyRelay() {
  stopping_ = true;
  const uint64_t one = 1;
  PCHECK(write(stop_event_.get(), &one, sizeof one) == sizeof one);
  acceptor_.join();
  for (auto& link : links_) link->thread.join();
  unlink(socket_path_.c_str());
  rmdir(directory_.c_str());
}

void FaultyRelay::SetPlan(const FaultPlan& plan) {
  MutexLock lock(&mu_);
  plan_ = plan;
}

FaultPlan FaultyRelay::plan() const {
  MutexLock lock(&mu_);
  return plan_;
}

void FaultyRelay::SetDown(bool down) { down_ = down; }

void FaultyRelay::AcceptLoop() {
  const SocketAddress target = ResolveEndpoint(target_).value();
  uint64_t number = 0;
  while (true) {
    pollfd fds[] = {{stop_event_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    poll(fds, 2, -1);
    if (stopping_) return;
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid() || down_) continue;
    auto server = ConnectSocket(target, DeadlineAfterMs(1000));
    if (!server.ok()) continue;
    auto link = std::make_unique<Link>();
    link->client = std::move(client);
    link->server = *std::move(server);
    link->random.seed(seed_ + number++);
    link->directions[0].from = link->directions[1].to = &link->client;
    link->directions[0].to = link->directions[1].from = &link->server;
    Link* raw = link.get();
    link->thread = std::thread([this, raw] { RelayLoop(raw); });
    MutexLock lock(&mu_);
    links_.push_back(std::move(link));
  }
}

uint64_t FaultyRelay::lies() const {
  MutexLock lock(&mu_);
  return evil_.lies();
}

void FaultyRelay::Lie(bool to_server, const FaultPlan& plan, std::string* message) {
  MessageHeader header;
  const auto* const at = reinterpret_cast<const std::byte*>(message->data());
  if (!DecodeHeader(at, &header).ok()) return;
  MutexLock lock(&mu_);
  if (!to_server) {
    const double chance = header.is<ReadReply>() ? plan.lie : plan.lie_of_changes;
    if (chance == 0 || std::uniform_real_distribution<>()(lie_random_) >= chance) return;
    const char* const lie = header.is<ReadReply>() ? evil_.Twist(message, 1) : evil_.TwistChange(message);
    if (lie != nullptr) ++faults_;
    return;
  }
  if (!header.sealed()) return;
  if (!header.is<WriteRequest>()) return;
  const auto* const tables = reinterpret_cast<const uint8_t*>(at + kMessageHeaderBytes);
  const absl::Span<const ChunkMask> masks(tables, header.mask_bytes());
  const absl::Span<const PageSeal> seals(reinterpret_cast<const PageSeal*>(tables + masks.size()),
                                         header.range().pages());
  evil_.NoteWrite(header.region(), header.range().first_page(), {masks, seals},
                  {at + kMessageHeaderBytes + header.table_bytes(), header.payload_bytes - header.table_bytes()});
}

void FaultyRelay::RelayMessage(Link* link, Direction* direction, std::string message) {
  if (direction->messages++ == 0) {
    direction->out += message;
    return;
  }
  const FaultPlan plan = this->plan();
  Lie(/*to_server=*/direction == &link->directions[0], plan, &message);
  const auto happens = [&](double probability) {
    const bool yes = probability > 0 && std::uniform_real_distribution<>()(link->random) < probability;
    if (yes) ++faults_;
    return yes;
  };
  if (happens(plan.delay)) usleep(link->random() % (plan.delay_us_max + 1));
  if (happens(plan.drop)) return;
  if (direction == &link->directions[1] && happens(plan.drop_reply)) return;
  if (happens(plan.corrupt)) message[link->random() % message.size()] ^= static_cast<char>(1 << link->random() % 8);
  if (happens(plan.cut)) {
    direction->out.append(message, 0, link->random() % message.size());
    direction->cut = true;
    return;
  }
  if (direction->overtaken.empty() && happens(plan.reorder)) {
    direction->overtaken = std::move(message);
    return;
  }
  direction->out += message;
  if (happens(plan.repeat)) direction->out += message;
  direction->LetGo();
}

bool FaultyRelay::SendAndReceive(Link* link, Direction* direction, bool readable, std::string* chunk) {
  if (!direction->out.empty()) {
    const ssize_t n =
        send(direction->to->get(), direction->out.data(), direction->out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) direction->out.erase(0, n);
    if (n < 0 && errno != EAGAIN) return false;
  }
  if (direction->cut) return !direction->out.empty();
  if (!readable) return true;
  const ssize_t n = recv(direction->from->get(), chunk->data(), chunk->size(), MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
  if (n > 0) direction->bytes.append(chunk->data(), n);
  size_t taken = 0;
  while (direction->bytes.size() - taken >= kMessageHeaderBytes) {
    MessageHeader header;
    const auto* at = reinterpret_cast<const std::byte*>(direction->bytes.data() + taken);
    CHECK(DecodeHeader(at, &header).ok());  // the ends' messages are well formed
    const size_t whole = kMessageHeaderBytes + header.payload_bytes;
    if (direction->bytes.size() - taken < whole) break;
    RelayMessage(link, direction, direction->bytes.substr(taken, whole));
    taken += whole;
  }
  direction->bytes.erase(0, taken);
  return true;
}

void FaultyRelay::RelayLoop(Link* link) {
  std::string chunk(256 * 1024, '\0');
  bool alive = true;
  while (alive && !stopping_ && !down_) {
    const auto events = [](const Direction& direction) {
      return static_cast<int16_t>(direction.out.empty() ? POLLIN : POLLIN | POLLOUT);
    };
    pollfd fds[] = {{link->client.get(), events(link->directions[1]), 0},
                    {link->server.get(), events(link->directions[0]), 0}};
    // A message that waits to be overtaken is sent after a while, when no other one arrives.
    const int ready = poll(fds, 2, 5);
    if (held_) {
      SleepMs(5);  // held bytes remain readable
      continue;
    }
    for (int i = 0; i < 2 && alive; ++i) {
      if (ready == 0) link->directions[i].LetGo();
      const bool readable = (fds[i].revents & ~POLLOUT) != 0;
      alive = SendAndReceive(link, &link->directions[i], readable, &chunk);
    }
  }
  shutdown(link->client.get(), SHUT_RDWR);
  shutdown(link->server.get(), SHUT_RDWR);
}

}  // namespace nram
