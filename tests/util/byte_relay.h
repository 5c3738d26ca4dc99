#ifndef NRAM_TESTS_UTIL_BYTE_RELAY_H_
#define NRAM_TESTS_UTIL_BYTE_RELAY_H_

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "gtest/gtest.h"

namespace nram {

// Passes any bytes on between clients of port() and a port of this host. While it is held, received bytes remain where
// they are.
class ByteRelay {
 public:
  explicit ByteRelay(int target_port) : target_(Loopback(target_port)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~ByteRelay() {
    stopping_ = true;
    thread_.join();
  }
  int port() const { return port_; }
  void Hold(bool hold) { held_ = hold; }
  // Holds only the bytes from the port: requests arrive, and answers do not.
  void HoldAnswers(bool hold) { answers_held_ = hold; }
  // Called on the relay's thread with all bytes that pass from now on, which it may change. Empty: the connection is
  // cut.
  using Tamper = std::function<void(std::string* bytes)>;
  void SetTamper(Tamper tamper) {
    MutexLock lock(&mu_);
    tamper_ = std::move(tamper);
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  // False: one of the two is closed.
  bool Pass(int from, int to) {
    std::string bytes(16384, '\0');
    const ssize_t n = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    bytes.resize(static_cast<size_t>(n));
    {
      MutexLock lock(&mu_);
      if (tamper_ != nullptr) tamper_(&bytes);
    }
    return !bytes.empty() && send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  void Run() {
    while (!stopping_) {
      std::vector<pollfd> waiting;
      if (!held_) {
        waiting.push_back({listener_.get(), POLLIN, 0});
        for (const auto& [near, far] : pairs_) {
          waiting.push_back({near.get(), POLLIN, 0});
          waiting.push_back({far.get(), POLLIN, 0});
        }
      }
      poll(waiting.data(), waiting.size(), 10);
      if (held_ || waiting.empty()) continue;
      if (answers_held_) SleepMs(1);  // held bytes remain readable
      std::erase_if(pairs_, [this](const auto& pair) {
        return !Pass(pair.first.get(), pair.second.get()) ||
               (!answers_held_ && !Pass(pair.second.get(), pair.first.get()));
      });
      if ((waiting[0].revents & POLLIN) == 0) continue;
      UniqueFd near(accept(listener_.get(), nullptr, nullptr));
      UniqueFd far(socket(AF_INET, SOCK_STREAM, 0));
      if (connect(far.get(), reinterpret_cast<const sockaddr*>(&target_), sizeof target_) != 0) continue;
      pairs_.emplace_back(std::move(near), std::move(far));
    }
  }

  const sockaddr_in target_;
  const UniqueFd listener_;
  int port_ = 0;
  std::atomic<bool> held_{false};
  std::atomic<bool> answers_held_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::pair<UniqueFd, UniqueFd>> pairs_;  // the thread's
  Mutex mu_;
  Tamper tamper_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_BYTE_RELAY_H_
