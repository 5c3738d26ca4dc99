// Named regions when a server stops answering in the middle: they are created everywhere or nowhere. No half region
// remains that clients cannot use, create or explain.

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/byte_relay.h"
#include "tests/util/lying_server.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

bool Eventually(const std::function<bool()>& what) {
  const int64_t deadline_ns = DeadlineAfterMs(60'000);
  while (MonotonicNs() < deadline_ns) {
    if (what()) return true;
    poll(nullptr, 0, 10);
  }
  return false;
}

// Two servers; the second's control plane is behind a relay.
class HalfCreatedTest : public ::testing::TestWithParam<bool> {
 protected:
  HalfCreatedTest() : servers_(2), relay_(servers_.Options().servers[1].port) {
    PoolOptions options = servers_.Options();
    options.servers[1].port = relay_.port();
    options.io_timeout_ms = 1'000;
    pool_ = TestPool::Open(options);
  }
  ~HalfCreatedTest() override { relay_.HoldAnswers(false); }
  RegionOptions Named() const { return {.gc = GetParam(), .name = "x"}; }
  bool Has(int i) { return Raw(servers_.server(i).store().FindByName(0, "x")) != 0; }

  TestPool servers_;
  ByteRelay relay_;
  std::unique_ptr<Pool> pool_;
};

TEST_P(HalfCreatedTest, ACreateWhoseAnswerIsLostLeavesNothing) {
  relay_.HoldAnswers(true);
  const absl::Status failed = pool_->CreateRegion(Named()).status();
  EXPECT_TRUE(absl::IsUnavailable(failed) || absl::IsDeadlineExceeded(failed)) << failed;
  EXPECT_FALSE(Has(0)) << "a healthy server keeps what nobody wants";
  const absl::Status again = pool_->CreateRegion(Named()).status();
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("is still being undone at memory server"));
  const absl::Status attached = pool_->AttachRegion("x", AttachMode::kOwner).status();
  EXPECT_TRUE(absl::IsUnavailable(attached)) << attached;
  relay_.HoldAnswers(false);
  absl::StatusOr<std::unique_ptr<Region>> region = absl::UnknownError("not tried");
  ASSERT_TRUE(Eventually([&] { return (region = pool_->CreateRegion(Named())).ok(); })) << region.status();
  const std::string data = Pattern(4 * kMiB, 1);
  const absl::Status written = (*region)->Write(0, Bytes(data), {.timeout_ms = 60'000});
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_TRUE(Read(region->get(), 0, data.size()).value() == data);
  auto other = servers_.Open();
  EXPECT_TRUE(other->AttachRegion("x", AttachMode::kReadOnly).ok());
}

// The create reaches the server last: after the client has undone the region, although it does not know of the create.
TEST_P(HalfCreatedTest, ACreateThatComesLateIsNotExecuted) {
  CreateRegionArgs seen;
  {
    // The create stops at the grant of its lease: the server executes the grant while the relay holds the answer.
    relay_.HoldAnswers(true);
    ASSERT_FALSE(pool_->CreateRegion(Named()).ok());
    relay_.HoldAnswers(false);
    ASSERT_TRUE(Eventually([&] { return !Has(1) && pool_->session(1)->AwaitUndone("x", 0); }));
    // Acts as a client whose grant was answered and whose create was not.
    seen.lease = LeaseId{77};
    auto control = ControlClient::Create(servers_.Options().servers[1]);
    ASSERT_TRUE(control->GrantLease(seen.lease, "making", 0, DeadlineAfterMs(10'000)).ok());
    seen.region = RegionId{78};
    seen.epoch = Epoch{1};
    seen.name = "x";
    seen.gc = GetParam();
    pool_->session(1)->UndoCreate({"x", seen.region, seen.lease, pool_->session(1)->incarnation()});
    ASSERT_TRUE(Eventually([&] { return pool_->session(1)->AwaitUndone("x", DeadlineAfterMs(1'000)); }));
    EXPECT_FALSE(control->CreateRegion(seen, DeadlineAfterMs(10'000)).ok());
  }
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(pool_->CreateRegion(Named()).ok());
}

TEST_P(HalfCreatedTest, WhatIsNotWholeIsNotSaidToBeLost) {
  // Half a region as another client leaves it: on the first server, and not on the second.
  auto control = ControlClient::Create(servers_.Options().servers[0]);
  ASSERT_TRUE(control->GrantLease(LeaseId{77}, "making", 0, DeadlineAfterMs(10'000)).ok());
  CreateRegionArgs half{LeaseId{77}, RegionId{78}, Epoch{1}, GetParam(), "x", {}, 0};
  for (int i = 0; i < 2; ++i) half.incarnations.push_back(pool_->session(i)->incarnation());
  ASSERT_TRUE(control->CreateRegion(half, DeadlineAfterMs(10'000)).ok());
  const absl::Status attached = pool_->AttachRegion("x", AttachMode::kReadOnly).status();
  EXPECT_TRUE(absl::IsUnavailable(attached)) << attached;
  EXPECT_THAT(std::string(attached.message()), AllOf(HasSubstr("is incomplete"), Not(HasSubstr("restarted"))));
  EXPECT_TRUE(absl::IsAlreadyExists(pool_->CreateRegion(Named()).status()));
  EXPECT_TRUE(Has(0)) << "it is another client's";
  EXPECT_FALSE(Has(1));
}

INSTANTIATE_TEST_SUITE_P(Modes, HalfCreatedTest, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Gc" : "Kept"; });

TEST(NamedRegionTest, ANameThatIsNoTextIsRefused) {
  TestPool servers(1);
  auto pool = servers.Open();
  for (const char* name : {"a\nb", "\x1B[2J", "caf\xE9", "x\xE2\x80\xAEy", "\x7F"}) {
    const absl::Status status = pool->CreateRegion({.name = name}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("control characters"), HasSubstr("\\x")));
  }
  EXPECT_TRUE(pool->CreateRegion({.name = "caf\xC3\xA9 7/\xE6\xBC\xA2"}).ok());
}

// Three servers have the region and give the test's answers to a takeover.
class HalfTakenTest : public ::testing::Test {
 protected:
  using Answer = std::function<grpc::Status(int server, const v1::AttachRegionRequest&, v1::AttachRegionReply*)>;

  absl::Status Attach(AttachMode mode, Answer answer) {
    for (int i = 0; i < 3; ++i) {
      servers_[i].Set({.attach = [this, i, answer](const auto& request, v1::AttachRegionReply* reply) {
        const grpc::Status status = answer(i, request, reply);
        if (status.ok() && !request.read_only()) ++taken_[i];
        return status;
      }});
      taken_[i] = 0;
    }
    PoolOptions options;
    for (const LyingServer& server : servers_) options.servers.push_back(server.endpoint());
    options.open_timeout_ms = 60'000;
    options.io_timeout_ms = 1'500;
    const auto pool = TestPool::Open(options);
    return pool->AttachRegion("x", mode).status();
  }

  LyingServer servers_[3];
  std::atomic<int> taken_[3] = {0, 0, 0};
  const grpc::Status silent_{grpc::StatusCode::UNAVAILABLE, "silent"};
};

TEST_F(HalfTakenTest, AServerThatDoesNotAnswerAtOnceIsAskedAgain) {
  std::atomic<int> refusals{0};
  const absl::Status status = Attach(AttachMode::kTakeOver, [&](int i, const auto& request, auto*) {
    return i == 1 && !request.read_only() && ++refusals <= 3 ? silent_ : grpc::Status::OK;
  });
  EXPECT_TRUE(status.ok()) << status;
  for (const auto& taken : taken_) EXPECT_EQ(taken, 1);
}

TEST_F(HalfTakenTest, AnAttemptWhoseAnswerWasLostCounts) {
  std::atomic<int> tries{0};
  std::atomic<uint64_t> lease{0};
  const absl::Status status = Attach(AttachMode::kTakeOver, [&](int i, const auto& request, auto* reply) {
    if (i != 1) return grpc::Status::OK;
    if (!request.read_only()) {
      lease = request.lease_id();
      return ++tries == 1 ? silent_ : grpc::Status(grpc::StatusCode::ABORTED, "already at that epoch");
    }
    if (tries > 0) {
      reply->mutable_region()->set_epoch(2);
      reply->mutable_region()->set_lease_id(lease);
      reply->mutable_region()->set_orphan(false);
    }
    return grpc::Status::OK;
  });
  EXPECT_TRUE(status.ok()) << status;
}

// The code depends on whether the last attempt ran out of time first.
bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// NOT_FOUND means that no server has the region: a client that gets it makes another one.
TEST_F(HalfTakenTest, ALeaseThatHasEndedIsNoRegionThatIsGone) {
  const grpc::Status no_lease{grpc::StatusCode::NOT_FOUND, "no such live lease"};
  std::atomic<int> refusals{0};
  const absl::Status granted_anew = Attach(AttachMode::kTakeOver, [&](int, const auto& request, auto*) {
    return !request.read_only() && ++refusals <= 5 ? no_lease : grpc::Status::OK;
  });
  EXPECT_TRUE(granted_anew.ok()) << granted_anew;
  for (const AttachMode mode : {AttachMode::kOwner, AttachMode::kTakeOver}) {
    const absl::Status status = Attach(
        mode, [&](int, const auto& request, auto*) { return request.read_only() ? grpc::Status::OK : no_lease; });
    EXPECT_TRUE(IsUnanswered(status)) << status;
  }
}

// The region is there at the first look. Then one server after the other destroys it.
TEST_F(HalfTakenTest, ARegionThatGoesMeanwhileIsLookedForAgain) {
  const grpc::Status no_region{grpc::StatusCode::NOT_FOUND, "no region"};
  for (const int servers : {1, 3}) {
    std::atomic<bool> destroyed{false};
    const absl::Status status = Attach(AttachMode::kTakeOver, [&](int i, const auto& request, auto*) {
      if (!request.read_only()) destroyed = true;
      return destroyed && i < servers ? no_region : grpc::Status::OK;
    });
    EXPECT_EQ(absl::IsNotFound(status), servers == 3) << status;
  }
}

TEST_F(HalfTakenTest, TheOthersAreTakenOverAllTheSame) {
  const absl::Status status = Attach(AttachMode::kTakeOver, [&](int i, const auto& request, auto*) {
    return i == 1 && !request.read_only() ? silent_ : grpc::Status::OK;
  });
  EXPECT_TRUE(IsUnanswered(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("taken over on 2 other servers: attach it again"));
  EXPECT_EQ(taken_[0], 1);
  EXPECT_EQ(taken_[2], 1);
}

TEST_F(HalfTakenTest, NothingIsTakenWhileOneDoesNotAnswerTheLook) {
  const absl::Status status =
      Attach(AttachMode::kTakeOver, [&](int i, const auto&, auto*) { return i == 2 ? silent_ : grpc::Status::OK; });
  EXPECT_TRUE(IsUnanswered(status)) << status;
  for (const auto& taken : taken_) EXPECT_EQ(taken, 0);
}

TEST_F(HalfTakenTest, NothingIsTakenWhileItsOwnerLivesAnywhere) {
  const absl::Status status = Attach(AttachMode::kOwner, [&](int i, const auto&, auto* reply) {
    if (i == 2) {
      reply->mutable_region()->set_orphan(false);
      reply->mutable_region()->set_lease_id(4711);
    }
    return grpc::Status::OK;
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  for (const auto& taken : taken_) EXPECT_EQ(taken, 0);
}

TEST_F(HalfTakenTest, AnOwnerThatComesBackMeanwhileKeepsTheRest) {
  const absl::Status status = Attach(AttachMode::kOwner, [&](int i, const auto& request, auto*) {
    return i == 1 && !request.read_only() ? grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "in use")
                                          : grpc::Status::OK;
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(taken_[2], 0);
}

}  // namespace
}  // namespace nram
