// Lookups of hosts with a resolver that may never answer.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/endpoint.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

// Answers when the test permits it.
class HangingResolver {
 public:
  ~HangingResolver() {
    LetGo();
    EXPECT_TRUE(PollUntil(DeadlineAfterMs(30'000), 1, [&] { return shared_->inside == 0; }));
  }
  HostLookup lookup() {
    return [shared = shared_](const char*, const char* port, const addrinfo* hints, addrinfo** found) {
      ++shared->inside;
      {
        MutexLock lock(&shared->mu);
        while (!shared->free) shared->changed.WaitUntil(&shared->mu, DeadlineAfterMs(1'000));
      }
      const int error = getaddrinfo("127.0.0.1", port, hints, found);
      --shared->inside;
      return error;
    };
  }
  void LetGo() {
    MutexLock lock(&shared_->mu);
    shared_->free = true;
    shared_->changed.SignalAll();
  }
  int inside() const { return shared_->inside; }

 private:
  struct Shared {
    Mutex mu;
    CondVar changed;
    bool free ABSL_GUARDED_BY(mu) = false;
    std::atomic<int> inside{0};
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

const Endpoint kNamed{"some-host.example", 7070, ""};

TEST(ResolveTest, AResolverThatHangsEndsWithTheDeadline) {
  HangingResolver resolver;
  const int64_t patience_ns = DeadlineAfterMs(30'000);
  const auto address = ResolveEndpoint(kNamed, DeadlineAfterMs(50), resolver.lookup());
  EXPECT_TRUE(absl::IsDeadlineExceeded(address.status())) << address.status();
  EXPECT_THAT(std::string(address.status().message()), HasSubstr("some-host.example"));
  EXPECT_LT(MonotonicNs(), patience_ns);
}

TEST(ResolveTest, OnlySoManyHangAtOnce) {
  HangingResolver resolver;
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(ResolveEndpoint(kNamed, DeadlineAfterMs(5), resolver.lookup()).status())) << i;
  }
  const int64_t patience_ns = DeadlineAfterMs(300'000);
  const auto refused = ResolveEndpoint(kNamed, DeadlineAfterMs(600'000), resolver.lookup());
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("hang already"));
  EXPECT_LT(MonotonicNs(), patience_ns);
  EXPECT_LE(resolver.inside(), 16);
  // Numeric addresses need no resolver.
  EXPECT_TRUE(ResolveEndpoint({"127.0.0.1", 7070, ""}, DeadlineAfterMs(1'000), resolver.lookup()).ok());
  // When the resolver answers again, names are looked up again.
  resolver.LetGo();
  absl::StatusOr<SocketAddress> address = absl::UnknownError("");
  PollUntil(patience_ns, 1, [&] {
    address = ResolveEndpoint(kNamed, DeadlineAfterMs(5'000), resolver.lookup());
    return address.ok();
  });
  EXPECT_TRUE(address.ok()) << address.status();
}

TEST(ResolveTest, AddressesInDigitsAreNotLookedUp) {
  const HostLookup never = [](const char* host, const char*, const addrinfo*, addrinfo**) {
    ADD_FAILURE() << "looked up " << host;
    return EAI_FAIL;
  };
  EXPECT_EQ(ResolveEndpoint({"127.0.0.1", 1, ""}, 0, never)->storage.ss_family, AF_INET);
  EXPECT_EQ(ResolveEndpoint({"::1", 1, ""}, 0, never)->storage.ss_family, AF_INET6);
  EXPECT_EQ(ResolveEndpoint({"", 0, "/a/b"}, 0, never)->storage.ss_family, AF_UNIX);
  EXPECT_FALSE(ResolveEndpoint({"", 0, "/" + std::string(200, 'x')}, 0, never).ok());
  EXPECT_FALSE(ResolveEndpoint({"", 0, std::string("/a\0b", 4)}, 0, never).ok());
}

TEST(ResolveTest, WhatIsNotKnownIsSaid) {
  const HostLookup unknown = [](const char*, const char*, const addrinfo*, addrinfo**) { return EAI_NONAME; };
  EXPECT_TRUE(absl::IsUnavailable(ResolveEndpoint(kNamed, DeadlineAfterMs(10'000), unknown).status()));
  EXPECT_TRUE(ResolveEndpoint({"localhost", 1, ""}, DeadlineAfterMs(10'000)).ok());
}

}  // namespace
}  // namespace nram
