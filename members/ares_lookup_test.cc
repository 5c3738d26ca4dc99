// Lookups by c-ares at a DNS server inside this test.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "members/dns.h"

namespace nram {
namespace {

using ::testing::UnorderedElementsAre;

// Answers each question for an A record with the same addresses, by UDP (RFC 1035).
class FakeDns {
 public:
  FakeDns() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    setenv("NRAM_DNS_SERVERS_FOR_TEST", absl::StrCat("127.0.0.1:", ntohs(address.sin_port)).c_str(), 1);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeDns() {
    ends_ = true;
    thread_.join();
  }

  std::atomic<int> code{0};  // of the answers: 0 good, 3 no such name
  std::atomic<bool> silent{false};
  std::vector<std::string> addresses = {"10.0.0.1", "10.0.0.2"};

 private:
  void Serve() {
    while (!ends_) {
      pollfd wait{socket_.get(), POLLIN, 0};
      if (poll(&wait, 1, 20) <= 0) continue;
      char question[512];
      sockaddr_in from{};
      socklen_t length = sizeof from;
      const ssize_t bytes =
          recvfrom(socket_.get(), question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &length);
      if (bytes < 17 || silent) continue;
      const std::string answer = Answer(std::string(question, static_cast<size_t>(bytes)));
      (void)sendto(socket_.get(), answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from), length);
    }
  }
  std::string Answer(const std::string& question) const {
    const size_t name_end = question.find('\0', 12) + 1;
    const bool is_a = question[name_end] == 0 && question[name_end + 1] == 1;
    const size_t count = is_a && code == 0 ? addresses.size() : 0;
    std::string answer = question.substr(0, name_end + 4);
    answer[2] = '\x81';
    answer[3] = static_cast<char>(0x80 | code);
    answer[7] = static_cast<char>(count);
    answer[9] = answer[11] = 0;
    for (size_t i = 0; i < count; ++i) {
      in_addr address{};
      inet_pton(AF_INET, addresses[i].c_str(), &address);
      // The name by a pointer, type A, class IN, 7 seconds to live, 4 bytes.
      answer += std::string("\xc0\x0c\0\x01\0\x01\0\0\0\x07\0\x04", 12);
      answer += std::string(reinterpret_cast<const char*>(&address), 4);
    }
    return answer;
  }

  const UniqueFd socket_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

TEST(AresLookupTest, AllAddressesWithTheirTimeToLive) {
  FakeDns dns;
  const auto answer = LookUpByAres("nram.example.", DeadlineAfterMs(20'000));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->addresses, UnorderedElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_EQ(answer->ttl_s, 7);
}

TEST(AresLookupTest, ANameWithoutAddresses) {
  FakeDns dns;
  dns.code = 3;
  EXPECT_TRUE(absl::IsNotFound(LookUpByAres("nram.example.", DeadlineAfterMs(20'000)).status()));
}

TEST(AresLookupTest, SilenceEndsWithTheDeadline) {
  FakeDns dns;
  dns.silent = true;
  EXPECT_TRUE(absl::IsUnavailable(LookUpByAres("nram.example.", DeadlineAfterMs(300)).status()));
}

TEST(AresLookupTest, DigitsNeedNoServer) {
  const auto answer = LookUpByAres("127.0.0.1", DeadlineAfterMs(20'000));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->addresses, UnorderedElementsAre("127.0.0.1"));
}

}  // namespace
}  // namespace nram
