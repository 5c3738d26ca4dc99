// Holds of versions whose answers are lost: the server has executed the request, and the client does not know.

#include "client/pool/version_holds.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/sync.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/lying_server.h"

namespace nram {
namespace {

constexpr int64_t kPatienceMs = 60'000;
constexpr RegionId kRegion{7};

class VersionHoldsTest : public ::testing::Test {
 protected:
  // The fate of a request.
  enum class Fate { kAnswered, kAnswerLost, kLost, kReleaseLost };

  VersionHoldsTest() {
    server_.Set({.hold_version = [this](const v1::HoldVersionRequest& request, v1::HoldVersionReply*) {
      MutexLock lock(&mu_);
      ++asked_;
      if (fate_ == Fate::kReleaseLost && !request.release()) fate_ = Fate::kAnswered;
      if (fate_ < Fate::kLost) {
        if (request.release()) {
          held_.erase(request.version());
        } else {
          held_.insert(request.version());
        }
      }
      return fate_ == Fate::kAnswered ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer");
    }});
    PoolOptions options;
    options.servers = {server_.endpoint()};
    options.open_timeout_ms = options.io_timeout_ms = kPatienceMs;
    auto pool = Pool::Open(options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
  }

  void SetFate(Fate fate) {
    MutexLock lock(&mu_);
    fate_ = fate;
  }
  std::set<uint32_t> Held() {
    MutexLock lock(&mu_);
    return held_;
  }
  // The number of requests to the server since the last call.
  int TakeAsked() {
    MutexLock lock(&mu_);
    return std::exchange(asked_, 0);
  }
  absl::StatusOr<VersionHolds::Hold> Take(uint32_t version) {
    return holds_.Take(pool_->session(0), LyingServer::kIncarnation, kRegion, VersionNumber{version},
                       DeadlineAfterMs(kPatienceMs));
  }
  // Takes it, which succeeds.
  std::optional<VersionHolds::Hold> Hold(uint32_t version) {
    auto hold = Take(version);
    EXPECT_TRUE(hold.ok()) << hold.status();
    return hold.ok() ? std::optional<VersionHolds::Hold>(*std::move(hold)) : std::nullopt;
  }

 private:
  Mutex mu_;
  Fate fate_ ABSL_GUARDED_BY(mu_) = Fate::kAnswered;
  std::set<uint32_t> held_ ABSL_GUARDED_BY(mu_);
  int asked_ ABSL_GUARDED_BY(mu_) = 0;

 protected:
  LyingServer server_;
  std::unique_ptr<Pool> pool_;
  VersionHolds holds_{Environment::Real()};
};

TEST_F(VersionHoldsTest, AReleaseThatIsLostIsSentAgainAtTheNextHold) {
  auto first = Hold(1);
  SetFate(Fate::kLost);
  first.reset();
  EXPECT_EQ(Held(), (std::set<uint32_t>{1}));
  SetFate(Fate::kAnswered);
  const auto second = Hold(2);
  EXPECT_EQ(Held(), (std::set<uint32_t>{2}));
}

TEST_F(VersionHoldsTest, AReleaseThatIsLostIsSentAgainWhenAnotherHoldEnds) {
  auto first = Hold(1), second = Hold(2);
  SetFate(Fate::kLost);
  first.reset();
  SetFate(Fate::kAnswered);
  second.reset();
  EXPECT_EQ(Held(), std::set<uint32_t>{});
}

TEST_F(VersionHoldsTest, ATakeWhoseAnswerIsLostIsReleased) {
  SetFate(Fate::kAnswerLost);
  const absl::Status status = Take(1).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(Held(), (std::set<uint32_t>{1}));
  SetFate(Fate::kAnswered);
  const auto second = Hold(2);
  EXPECT_EQ(Held(), (std::set<uint32_t>{2}));
}

TEST_F(VersionHoldsTest, WhatIsHeldAgainIsNotReleased) {
  auto first = Hold(1);
  SetFate(Fate::kReleaseLost);
  first.reset();
  const auto again = Hold(1);  // an owed release is lost once more, then the hold is answered
  EXPECT_EQ(TakeAsked(), 4);
  auto other = Hold(2);
  other.reset();
  EXPECT_EQ(TakeAsked(), 2);
  EXPECT_EQ(Held(), (std::set<uint32_t>{1}));
}

// Otherwise each new hold waits for all of them.
TEST_F(VersionHoldsTest, OneUnansweredReleaseEndsTheTurn) {
  constexpr uint32_t kHolds = 20;
  std::vector<std::optional<VersionHolds::Hold>> holds;
  for (uint32_t version = 1; version <= kHolds; ++version) holds.push_back(Hold(version));
  SetFate(Fate::kLost);
  (void)TakeAsked();
  holds.clear();
  EXPECT_EQ(TakeAsked(), static_cast<int>(kHolds)) << "each its own release";
  EXPECT_FALSE(Take(kHolds + 1).ok());
  EXPECT_EQ(TakeAsked(), 2) << "one that is owed, and the hold";
  SetFate(Fate::kAnswered);
  const auto last = Hold(kHolds + 1);
  EXPECT_EQ(Held(), (std::set<uint32_t>{kHolds + 1}));
}

}  // namespace
}  // namespace nram
