// A pool of a thousand names, half of them dead: which sessions are awake. The servers are made up; no network.

#include "client/pool/live_members.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "client/pool/change_gate.h"
#include "client/pool/claims.h"
#include "client/pool/placing.h"
#include "client/pool/region_map.h"
#include "client/pool/waking.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Kind = SessionAction::Kind;

class FakeTransport : public Transport {
 public:
  absl::Status Connect(int64_t) override { return absl::OkStatus(); }
  bool connected() const override { return up_; }
  void Start(Call*) override {}
  void Wait(Call*) override {}
  void Disconnect() override { up_ = false; }

 private:
  std::atomic<bool> up_{true};
};

// Runs the session's actions until it wants none; each answer arrives at once.
class FakeDriver : public SessionDriver {
 public:
  FakeDriver(ServerSession* session, bool is_alive, uint64_t free_bytes) : session_(session) {
    session_->SetDriver(this);
    Run(is_alive, free_bytes);
  }
  void Run(bool is_alive, uint64_t free_bytes) {
    for (SessionAction action = session_->Next(); action.kind != Kind::kNone; action = session_->Next()) {
      SessionOutcome outcome;
      if (!is_alive) outcome.status = absl::UnavailableError("refused");
      const uint64_t incarnation = session_->index() + 1;
      outcome.hello.incarnation = outcome.lease.incarnation = incarnation;
      outcome.hello.lease_ttl_ms = outcome.lease.ttl_ms = 10'000;
      outcome.lease.capacity.free_bytes = free_bytes;
      if (is_alive && action.kind == Kind::kDial) {
        outcome.life = std::make_unique<ServerLife>();
        outcome.life->incarnation = incarnation;
        outcome.life->bulk = std::make_unique<FakeTransport>();
        outcome.life->urgent = std::make_unique<FakeTransport>();
      }
      session_->Done(std::move(action), std::move(outcome));
      if (!is_alive) break;
    }
  }
  ~FakeDriver() override {
    session_->BeginStop();
    for (SessionAction action = session_->Next(); action.kind != Kind::kFinished; action = session_->Next()) {
      session_->Done(std::move(action), {});
    }
  }
  void Wake() override {}
  void Join() override {}
  ControlClient* control() override { return nullptr; }

 private:
  ServerSession* const session_;
};

class LiveMembersTest : public ::testing::Test, private LiveMembers::Host {
 protected:
  static constexpr size_t kNames = 1'000;

  void Begin(uint64_t free_bytes, size_t names = kNames, std::shared_ptr<MemberSource> source = nullptr) {
    free_bytes_ = free_bytes;
    for (size_t i = 0; i < names; ++i) AddSession({absl::StrCat("node", i), 7070, ""});
    live_ = std::make_unique<LiveMembers>(&sessions_, std::move(source), Environment::Real(),
                                          static_cast<LiveMembers::Host*>(this));
    for (const auto& session : sessions_) session->SetWaker(live_.get(), nullptr);
    live_->Begin();
  }
  void TearDown() override {
    if (live_ != nullptr) live_->Stop();
    drivers_.clear();
  }

  bool Accepts(const Endpoint& server, std::string*) const override { return server.host != "stranger"; }
  ServerSession* AddSession(const Endpoint& server) override {
    const auto index = static_cast<uint16_t>(sessions_.size());
    sessions_.Add(std::make_unique<ServerSession>(index, server, LeaseId{index + 1u}, options_, Environment::Real()));
    return sessions_.at(index);
  }
  bool Drive(ServerSession* session) override {
    if (no_threads_ > 0) {
      --no_threads_;
      return false;
    }
    sessions_.NoteAwake();
    drivers_.push_back(std::make_unique<FakeDriver>(session, IsAlive(*session), free_bytes_));
    driven_ = drivers_.size();
    return true;
  }
  static bool IsAlive(const ServerSession& session) { return session.index() % 2 == 0; }
  size_t CountUp() const {
    size_t up = 0;
    for (const auto& session : sessions_) up += session->up() ? 1 : 0;
    return up;
  }
  template <typename Done>
  static bool Await(Done done) {
    return PollUntil(DeadlineAfterMs(30'000), 5, done);
  }

  const PoolOptions options_{};
  ChangeGate gate_;
  Sessions sessions_{&gate_, kNames};
  uint64_t free_bytes_ = 0;
  std::vector<std::unique_ptr<SessionDriver>> drivers_;
  std::atomic<size_t> driven_{0};
  std::atomic<int> no_threads_{0};  // the number of next sessions that cannot be driven
  std::unique_ptr<LiveMembers> live_;
};

TEST_F(LiveMembersTest, OnlyThoseThatAreUsedAreGreeted) {
  Begin(kGiB);
  ASSERT_TRUE(Await([&] { return CountUp() >= Waking::kEnough; }));
  // Half of them are dead, so it takes about twice as many; chance has a wide margin.
  EXPECT_LE(driven_, 5 * Waking::kEnough);
  EXPECT_EQ(CountUp(), Waking::kEnough);
}

TEST_F(LiveMembersTest, TheSessionThatACallAwaitsWakes) {
  Begin(kGiB);
  ASSERT_TRUE(Await([&] { return CountUp() >= Waking::kEnough; }));
  ServerSession* sleeper = nullptr;
  for (const auto& session : sessions_) {
    if (session->asleep() && IsAlive(*session)) sleeper = session.get();
  }
  ASSERT_NE(sleeper, nullptr);
  EXPECT_FALSE(sleeper->away_too_long());
  EXPECT_EQ(sleeper->AwayNs(), 0);
  struct Counted : Waiter {
    std::atomic<bool> resumed{false};
  } waiter;
  waiter.what = Waiter::For::kConnection;
  waiter.deadline_ns = DeadlineAfterMs(30'000);
  waiter.resume = [](Waiter* self) { static_cast<Counted*>(self)->resumed = true; };
  ASSERT_TRUE(sleeper->WaitFor(&waiter));
  EXPECT_TRUE(Await([&] { return waiter.resumed.load(); }));
  EXPECT_EQ(waiter.outcome, Waiter::Outcome::kUsable);
}

TEST_F(LiveMembersTest, WhereThereIsLittleRoomMoreAreGreeted) {
  Begin(/*free_bytes=*/64 * kMiB);
  // 8 GiB of room are 128 such servers.
  ASSERT_TRUE(Await([&] { return CountUp() >= 128; })) << CountUp();
  EXPECT_LE(CountUp(), 128 + 3 * Waking::kAtOnce);
}

TEST_F(LiveMembersTest, AllSessionsWakeForAllConcerns) {
  Begin(kGiB);
  live_->WakeAll();
  EXPECT_EQ(driven_, kNames);
  EXPECT_EQ(CountUp(), kNames / 2);
}

TEST_F(LiveMembersTest, WhoCannotBeDrivenSleepsOnAndIsTriedLater) {
  no_threads_ = 3;
  Begin(kGiB);
  ASSERT_TRUE(Await([&] { return CountUp() >= Waking::kEnough; }));
  EXPECT_EQ(no_threads_, 0);
  ServerSession* sleeper = nullptr;
  for (const auto& session : sessions_) {
    if (session->asleep() && IsAlive(*session)) sleeper = session.get();
  }
  ASSERT_NE(sleeper, nullptr);
  no_threads_ = 2;
  live_->WantAwake(sleeper);
  EXPECT_TRUE(Await([&] { return sleeper->up(); }));
}

TEST_F(LiveMembersTest, InASmallPoolAllAreAwake) {
  Begin(kGiB, kAllAwakeMax);
  EXPECT_EQ(driven_, kAllAwakeMax);
}

// Gives the same answer again and again, in no time.
class FakeSource : public MemberSource {
 public:
  explicit FakeSource(std::vector<Member> members) : members_(std::move(members)) {}
  absl::StatusOr<std::vector<Member>> Look(int64_t) override {
    ++looks;
    return members_;
  }
  int64_t period_ms() const override { return 0; }
  void AwaitNext() override { std::this_thread::yield(); }
  void Stop() override {}
  const std::string& name() const override { return name_; }
  bool may_be_remote() const override { return false; }

  std::atomic<int> looks{0};

 private:
  const std::vector<Member> members_;
  const std::string name_ = "fake";
};

TEST_F(LiveMembersTest, AListOfWhichNothingIsAcceptedIsNoWord) {
  const auto source = std::make_shared<FakeSource>(std::vector<Member>{{{"stranger", 7070, ""}}});
  Begin(kGiB, 3, source);
  ASSERT_TRUE(Await([&] { return source->looks > 3 * Roster::kAbsencesOfMany; }));
  for (const auto& session : sessions_) EXPECT_FALSE(session->removed()) << session->name();
  EXPECT_EQ(sessions_.size(), 3u);
}

// All servers may return between the search for a place and the choice of a server to wait for.
TEST(PlacingTest, WhoComesBackInTheMiddleIsNotTakenForFull) {
  const PoolOptions options;
  ChangeGate gate;
  Sessions sessions(&gate, 2);
  std::vector<std::unique_ptr<FakeDriver>> drivers;
  for (uint16_t i = 0; i < 2; ++i) {
    const Endpoint server{absl::StrCat("node", i), 7070, ""};
    sessions.Add(std::make_unique<ServerSession>(i, server, LeaseId{i + 1u}, options, Environment::Real()));
    drivers.push_back(std::make_unique<FakeDriver>(sessions.at(i), /*is_alive=*/false, kGiB));
  }
  const RegionMap::Ref one_copy = RegionMap::Make({.id = RegionId{1}});
  const RegionMap::Ref two_copies = RegionMap::Make({.id = RegionId{2}, .copies = 2});
  Placing one, two;
  ASSERT_EQ(one.Choose(sessions, *one_copy, 0), nullptr);
  ASSERT_FALSE(two.ChooseCopies(sessions, *two_copies, 0).placed());
  for (uint16_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(PollUntil(DeadlineAfterMs(30'000), 1, [&] {
      drivers[i]->Run(/*is_alive=*/true, kGiB);
      return sessions.at(i)->up();
    }));
  }
  absl::Status why;
  EXPECT_NE(one.Survey(sessions, kMiB, &why), nullptr) << why;
  EXPECT_NE(two.Survey(sessions, kMiB, &why), nullptr) << why;
}

TEST(WakingTest, AsManyAsAreLacking) {
  EXPECT_EQ((Waking{.asleep = 100}).ToWake(), Waking::kEnough);
  EXPECT_EQ((Waking{.asleep = 3}).ToWake(), 3u);
  EXPECT_EQ((Waking{.asleep = 100, .with_room = 20, .coming = 12}).ToWake(), 0u);
  EXPECT_EQ((Waking{.asleep = 100, .with_room = 20, .coming = 2}).ToWake(), 10u);
  EXPECT_EQ((Waking{.asleep = 100, .with_room = 40, .coming = 1, .free_bytes = 1}).ToWake(), 0u);
  EXPECT_EQ((Waking{.asleep = 100, .with_room = 40, .free_bytes = 1}).ToWake(), Waking::kAtOnce);
  EXPECT_EQ((Waking{.asleep = 100, .with_room = 40, .free_bytes = Waking::kEnoughBytes}).ToWake(), 0u);
}

TEST(ClaimsTest, OneSessionForEachLife) {
  Claims claims;
  EXPECT_EQ(claims.Claim(7, 0), kNoServer);
  EXPECT_EQ(claims.Claim(7, 1), 0) << "it is the same server";
  EXPECT_EQ(claims.Claim(7, 0), kNoServer) << "again";
  EXPECT_EQ(claims.Claim(8, 0), kNoServer) << "it has restarted";
  EXPECT_EQ(claims.Claim(8, 1), 0);
  EXPECT_EQ(claims.Claim(7, 1), kNoServer) << "nobody has the former life";
  claims.GiveUp(0);
  EXPECT_EQ(claims.Claim(8, 2), kNoServer) << "it was given up";
  EXPECT_EQ(claims.Claim(8, 0), 2);
}

}  // namespace
}  // namespace nram
