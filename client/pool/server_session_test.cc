// The session machine and its parts, driven by hand in a time of their own.

#include "client/pool/server_session.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "client/pool/claims.h"
#include "client/pool/placement.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Kind = SessionAction::Kind;

class FakeEnvironment : public Environment {
 public:
  int64_t NowNs() const override { return now_ns; }
  uint64_t RandomId() override { return ++ids_; }
  int64_t now_ns = kNsPerSecond;

 private:
  uint64_t ids_ = 0;
};

// Is connected until the test breaks it; carries nothing.
class FakeTransport : public Transport {
 public:
  absl::Status Connect(int64_t) override { return absl::OkStatus(); }
  bool connected() const override { return up; }
  void Start(Call*) override {}
  void Wait(Call*) override {}
  void Disconnect() override { up = false; }
  bool up = false;
};

// Resumed waiters, in order.
struct Resumed : Waiter {
  explicit Resumed(std::vector<Resumed*>* order, For what, int64_t deadline_ns) : order(order) {
    this->what = what;
    this->deadline_ns = deadline_ns;
    resume = [](Waiter* waiter) {
      auto* const self = static_cast<Resumed*>(waiter);
      self->order->push_back(self);
    };
  }
  std::vector<Resumed*>* const order;
};

class ServerSessionTest : public ::testing::Test, private SessionDriver {
 protected:
  static constexpr int64_t kTtlMs = 9'000;
  static constexpr int64_t kPingMs = 100;

  ServerSessionTest() : session_(0, Endpoint{"10.0.0.7", 7070, ""}, LeaseId{5}, options_, &environment_) {
    session_.SetDriver(this);
  }
  ~ServerSessionTest() override {
    session_.BeginStop();
    SessionAction action = session_.Next();
    if (action.kind != Kind::kFinished) {
      session_.Done(std::move(action), {});
      action = session_.Next();
    }
    EXPECT_EQ(action.kind, Kind::kFinished);
  }

  void Wake() override { ++wakes_; }
  void Join() override {}
  ControlClient* control() override { return nullptr; }

  void After(int64_t ms) { environment_.now_ns += ms * kNsPerMs; }
  LeaseInfo Lease() const {
    LeaseInfo lease;
    lease.ttl_ms = kTtlMs;
    lease.incarnation = incarnation_;
    lease.term = term_;
    lease.reservation_bytes = reservation_bytes_;
    lease.capacity.free_bytes = share_ > 0 ? 0 : free_bytes_;
    lease.capacity.pressed = share_ > 0 || pressed_;
    lease.asked_back_share = share_;
    lease.hear_again_ms = hear_again_ms_;
    return lease;
  }
  // A server that answers everything.
  SessionOutcome Good(const SessionAction& action) {
    SessionOutcome outcome;
    outcome.hello.incarnation = incarnation_;
    outcome.hello.lease_ttl_ms = kTtlMs;
    outcome.hello.host = host_;
    outcome.lease = Lease();
    if (action.kind == Kind::kDial) {
      outcome.life = std::make_unique<ServerLife>();
      outcome.life->incarnation = incarnation_;
      outcome.life->bulk = std::make_unique<FakeTransport>();
      outcome.life->urgent = std::make_unique<FakeTransport>();
    }
    if (action.kind == Kind::kConnect) Connect(true);
    if (action.kind == Kind::kReserve) {
      reservation_bytes_ += static_cast<uint64_t>(action.pages) * Room::kBytesPerPage;
      outcome.lease = Lease();
    }
    return outcome;
  }
  void Connect(bool up) {
    static_cast<FakeTransport*>(session_.life()->bulk.get())->up = up;
    static_cast<FakeTransport*>(session_.life()->urgent.get())->up = up;
  }
  SessionAction ExpectNext(Kind kind) {
    SessionAction action = session_.Next();
    EXPECT_EQ(static_cast<int>(action.kind), static_cast<int>(kind));
    return action;
  }
  void Answer(Kind kind) {
    SessionAction action = ExpectNext(kind);
    SessionOutcome outcome = Good(action);
    session_.Done(std::move(action), std::move(outcome));
  }
  void Refuse(Kind kind, const absl::Status& status) {
    SessionAction action = ExpectNext(kind);
    SessionOutcome outcome;
    outcome.status = status;
    session_.Done(std::move(action), std::move(outcome));
  }
  void ComeUp() {
    for (const Kind kind : {Kind::kHello, Kind::kGrant, Kind::kDial, Kind::kConnect, Kind::kRenew}) Answer(kind);
    ASSERT_TRUE(session_.up());
  }

  // The given time passes, and the session sends only pings.
  void PingUntil(int64_t ms) {
    for (const int64_t end_ns = environment_.now_ns + ms * kNsPerMs; environment_.now_ns < end_ns;) {
      environment_.now_ns = std::min(end_ns, environment_.now_ns + kPingMs * kNsPerMs);
      Answer(Kind::kPing);
    }
  }
  // Has the session act, at a server that answers, until the given time has passed. Returns the number of actions of
  // each kind. `flags`: each answer says that the server asks for memory back.
  std::map<Kind, int> Run(int64_t ms, bool flags = false) {
    std::map<Kind, int> count;
    for (const int64_t end_ns = environment_.now_ns + ms * kNsPerMs; environment_.now_ns < end_ns;) {
      // An operation's answer, each millisecond.
      if (flags) session_.NoteAsksBack();
      SessionAction action = session_.Next();
      if (action.kind == Kind::kNone) {
        const int64_t next_ns = flags ? environment_.now_ns + kNsPerMs : action.deadline_ns;
        environment_.now_ns = std::min(end_ns, next_ns);
        continue;
      }
      ++count[action.kind];
      asked_pages_ += action.kind == Kind::kReserve ? action.pages : 0;
      SessionOutcome outcome = Good(action);
      outcome.asks_back = action.kind == Kind::kPing && share_ > 0;
      session_.Done(std::move(action), std::move(outcome));
    }
    return count;
  }

  FakeEnvironment environment_;
  PoolOptions options_;
  ServerSession session_;
  ServerHost host_;
  uint64_t incarnation_ = 77;
  uint64_t term_ = 1;
  uint64_t reservation_bytes_ = 0;
  uint32_t share_ = 0;  // the share that the server asks back
  bool pressed_ = false;
  uint64_t free_bytes_ = kGiB;
  uint32_t hear_again_ms_ = 100;
  int wakes_ = 0;
  int64_t asked_pages_ = 0;  // by Run
  std::vector<Resumed*> order_;
};

TEST_F(ServerSessionTest, ComesUpAndRenewsInTime) {
  ComeUp();
  PingUntil(kTtlMs / 3);
  Answer(Kind::kRenew);
  ExpectNext(Kind::kNone);
}

TEST_F(ServerSessionTest, AnIdleSessionPingsTenTimesASecondOrAsOftenAsTheServerSays) {
  for (const auto& [hear_again_ms, ping_ms] : {std::pair(100, 100), {60, 100}, {300, 300}, {2'000, 500}}) {
    hear_again_ms_ = static_cast<uint32_t>(hear_again_ms);
    if (!session_.up()) ComeUp();
    Run(5'000);  // until its next renewal at least
    EXPECT_NEAR(Run(3'000)[Kind::kPing], 3'000 / ping_ms, 2) << hear_again_ms;
  }
}

TEST_F(ServerSessionTest, ARenewalThatFailsIsTriedAgainAndThePingComesFirst) {
  ComeUp();
  PingUntil(kTtlMs / 3);
  Refuse(Kind::kRenew, absl::DeadlineExceededError("no answer"));
  EXPECT_TRUE(session_.up());
  ExpectNext(Kind::kNone);
  PingUntil(500);
  Answer(Kind::kRenew);
}

TEST_F(ServerSessionTest, ALeaseThatRunsOutBreaksTheConnectionsWhateverIsUnderWay) {
  ComeUp();
  PingUntil(kTtlMs / 3);
  SessionAction renewal = ExpectNext(Kind::kRenew);
  After(kTtlMs + 1);
  session_.Tick();
  EXPECT_FALSE(session_.up());
  EXPECT_FALSE(session_.life()->connected());
  SessionOutcome late;
  late.status = absl::DeadlineExceededError("no answer");
  session_.Done(std::move(renewal), std::move(late));
  // The lease is taken anew in the same life of the server.
  term_ = 2;
  for (const Kind kind : {Kind::kHello, Kind::kGrant, Kind::kConnect, Kind::kRenew}) Answer(kind);
  EXPECT_TRUE(session_.up());
}

TEST_F(ServerSessionTest, AnotherLifeOfTheServer) {
  ComeUp();
  ServerLife* const former = session_.life();
  Connect(false);
  Refuse(Kind::kConnect, absl::UnavailableError("refused"));
  incarnation_ = 78;
  for (const Kind kind : {Kind::kHello, Kind::kGrant, Kind::kDial, Kind::kConnect, Kind::kRenew}) Answer(kind);
  EXPECT_NE(session_.life(), former);
  EXPECT_EQ(session_.incarnation(), 78u);
  EXPECT_FALSE(former->connected());
}

// The server has another name, by which a client may reach it when this one does not answer.
TEST_F(ServerSessionTest, ALifeIsLeftToATwinWhenTheServerIsAwayForLong) {
  Claims claims;
  session_.SetWaker(nullptr, &claims);
  Answer(Kind::kHello);
  Answer(Kind::kGrant);
  EXPECT_EQ(claims.Claim(incarnation_, 1), 0) << "it is just being dialled";
  Refuse(Kind::kDial, absl::UnavailableError("no route"));
  EXPECT_EQ(claims.Claim(incarnation_, 1), 0) << "for a moment";
  After(31'000);
  Refuse(Kind::kHello, absl::UnavailableError("no route"));
  EXPECT_EQ(claims.Claim(incarnation_, 1), kNoServer);
  After(2'000);
  Answer(Kind::kHello);
  EXPECT_EQ(session_.twin(), 1) << "it is the same server";
}

TEST_F(ServerSessionTest, ALifeThatASessionHasEnteredIsItsOwnWhoeverHasClaimedItMeanwhile) {
  Claims claims;
  session_.SetWaker(nullptr, &claims);
  ComeUp();
  Connect(false);
  Refuse(Kind::kConnect, absl::UnavailableError("refused"));
  After(31'000);
  Refuse(Kind::kHello, absl::UnavailableError("no route"));
  EXPECT_EQ(claims.Claim(incarnation_, 1), kNoServer);
  After(2'000);
  Refuse(Kind::kConnect, absl::UnavailableError("refused"));
  for (const Kind kind : {Kind::kHello, Kind::kGrant, Kind::kConnect, Kind::kRenew}) Answer(kind);
  EXPECT_TRUE(session_.up());
  EXPECT_EQ(session_.twin(), kNoServer);
}

TEST_F(ServerSessionTest, TheServersHostIsItsBootIdOrWhatItPretends) {
  host_.boot_id = "boot";
  ComeUp();
  EXPECT_EQ(session_.host(), NumberOfName("boot"));
  EXPECT_EQ(session_.domain(), 0u);
  // It is started anew with other flags.
  Connect(false);
  Refuse(Kind::kConnect, absl::UnavailableError("refused"));
  incarnation_ = 78;
  host_.pretended_host = "pretended";
  host_.domain = "rack";
  for (const Kind kind : {Kind::kHello, Kind::kGrant, Kind::kDial, Kind::kConnect, Kind::kRenew}) Answer(kind);
  EXPECT_EQ(session_.host(), NumberOfName("pretended"));
  EXPECT_EQ(session_.domain(), NumberOfName("rack"));
}

TEST_F(ServerSessionTest, AServerWhoseLeaseEndsAgainAndAgainIsAskedEverMoreSlowly) {
  ComeUp();
  int64_t pause_ns = 0;
  for (int i = 0; i < 12; ++i) {
    session_.NoteLeaseEnded(session_.times_up());
    SessionAction action = session_.Next();
    pause_ns = 0;
    if (action.kind == Kind::kNone) {
      pause_ns = action.deadline_ns - environment_.now_ns;
      environment_.now_ns = action.deadline_ns;
      action = session_.Next();
    }
    ASSERT_EQ(static_cast<int>(action.kind), static_cast<int>(Kind::kHello));
    SessionOutcome outcome = Good(action);
    session_.Done(std::move(action), std::move(outcome));
    for (const Kind kind : {Kind::kGrant, Kind::kConnect}) Answer(kind);
  }
  EXPECT_EQ(pause_ns, kNsPerSecond);
}

TEST_F(ServerSessionTest, WaitersAreResumedInOrderUrgentOnesFirst) {
  Resumed first(&order_, Waiter::For::kConnection, INT64_MAX);
  Resumed second(&order_, Waiter::For::kConnection, INT64_MAX);
  Resumed urgent(&order_, Waiter::For::kConnection, INT64_MAX);
  Resumed cancelled(&order_, Waiter::For::kConnection, INT64_MAX);
  urgent.urgent = true;
  for (Resumed* waiter : {&first, &second, &urgent, &cancelled}) EXPECT_TRUE(session_.WaitFor(waiter));
  EXPECT_TRUE(session_.Cancel(&cancelled));
  EXPECT_FALSE(session_.Cancel(&cancelled));
  ComeUp();
  EXPECT_EQ(order_, (std::vector<Resumed*>{&urgent, &first, &second}));
  for (const Resumed* waiter : order_) EXPECT_EQ(waiter->outcome, Waiter::Outcome::kUsable);
  // A new waiter need not wait now.
  EXPECT_FALSE(session_.WaitFor(&first));
  EXPECT_EQ(first.outcome, Waiter::Outcome::kUsable);
}

TEST_F(ServerSessionTest, NoDeadlineDependsOnTheDriver) {
  const SessionAction under_way = ExpectNext(Kind::kHello);
  Resumed late(&order_, Waiter::For::kConnection, environment_.now_ns + 20 * kNsPerMs);
  Resumed patient(&order_, Waiter::For::kConnection, INT64_MAX);
  EXPECT_TRUE(session_.WaitFor(&late));
  EXPECT_TRUE(session_.WaitFor(&patient));
  After(20);
  session_.Tick();
  EXPECT_EQ(order_, (std::vector<Resumed*>{&late}));
  EXPECT_EQ(late.outcome, Waiter::Outcome::kLate);
  EXPECT_EQ(session_.waits()[0].count, 1u);
  EXPECT_EQ(session_.waits()[0].ns, 20 * kNsPerMs);
  After(options_.fail_fast_after_ms);
  session_.Tick();
  EXPECT_EQ(patient.outcome, Waiter::Outcome::kAwayTooLong);
  EXPECT_EQ(session_.waits()[0].count, 2u);
  EXPECT_EQ(session_.waits()[0].ns, (40 + options_.fail_fast_after_ms) * kNsPerMs);
  session_.Done(under_way, Good(under_way));
}

TEST_F(ServerSessionTest, RoomIsReservedForThoseWhoWaitAndGrantedInOrder) {
  ComeUp();
  Resumed large(&order_, Waiter::For::kRoom, INT64_MAX);
  Resumed small(&order_, Waiter::For::kRoom, INT64_MAX);
  large.room_bytes = kMiB;
  small.room_bytes = 4096;
  EXPECT_FALSE(session_.TryTakeRoom(4096));
  EXPECT_TRUE(session_.WaitFor(&large));
  EXPECT_TRUE(session_.WaitFor(&small));
  Answer(Kind::kReserve);
  EXPECT_EQ(order_, (std::vector<Resumed*>{&large, &small}));
  for (Resumed* waiter : order_) {
    ASSERT_EQ(waiter->outcome, Waiter::Outcome::kGranted);
    session_.EndRoom(std::move(waiter->grant), 0);
  }
  EXPECT_EQ(session_.room()->free_bytes(), static_cast<int64_t>(reservation_bytes_));
}

TEST_F(ServerSessionTest, AFullServerIsAskedForAStepAndThenForWhatIsNeeded) {
  ComeUp();
  Resumed waiter(&order_, Waiter::For::kRoom, INT64_MAX);
  waiter.room_bytes = 4096;
  EXPECT_TRUE(session_.WaitFor(&waiter));
  Refuse(Kind::kReserve, absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(order_.empty());
  Refuse(Kind::kReserve, absl::ResourceExhaustedError("full"));
  ASSERT_EQ(order_.size(), 1u);
  EXPECT_EQ(waiter.outcome, Waiter::Outcome::kRefused);
  EXPECT_TRUE(session_.refused());
  EXPECT_FALSE(session_.WaitFor(&waiter));
  EXPECT_EQ(waiter.outcome, Waiter::Outcome::kRefused);
  session_.NoteFreed();
  EXPECT_FALSE(session_.refused());
}

TEST_F(ServerSessionTest, AReservationWithoutAnAnswerIsSettledBeforeAnyWordCounts) {
  ComeUp();
  Resumed waiter(&order_, Waiter::For::kRoom, INT64_MAX);
  waiter.room_bytes = 4096;
  EXPECT_TRUE(session_.WaitFor(&waiter));
  Refuse(Kind::kReserve, absl::DeadlineExceededError("no answer"));
  EXPECT_EQ(waiter.outcome, Waiter::Outcome::kNoAnswer);
  EXPECT_TRUE(session_.room()->unsettled());
  reservation_bytes_ = 20 * kMiB;  // it was executed all the same
  PingUntil(500);
  SessionAction settle = ExpectNext(Kind::kReserve);
  EXPECT_EQ(settle.pages, 0);
  SessionOutcome outcome = Good(settle);
  session_.Done(std::move(settle), std::move(outcome));
  EXPECT_FALSE(session_.room()->unsettled());
  PingUntil(kTtlMs / 3);
  Answer(Kind::kRenew);
  EXPECT_EQ(session_.room()->free_bytes(), static_cast<int64_t>(20 * kMiB));
}

TEST_F(ServerSessionTest, RoomThatNobodyWantsIsGivenBackAfterTheServerWasAsked) {
  ComeUp();
  reservation_bytes_ = 100 * kMiB;
  PingUntil(kTtlMs / 3);
  Answer(Kind::kRenew);  // hears of it
  Answer(Kind::kRenew);  // measures
  SessionAction back = ExpectNext(Kind::kReserve);
  EXPECT_LT(back.pages, 0);
  EXPECT_FALSE(session_.refused());
  SessionOutcome outcome = Good(back);
  session_.Done(std::move(back), std::move(outcome));
  EXPECT_LE(session_.room()->free_bytes(), static_cast<int64_t>(options_.reserve_step_bytes + Room::kBytesPerPage));
}

TEST_F(ServerSessionTest, DestroysWaitForTheServerAndAreDroppedWithItsLife) {
  ComeUp();
  session_.DestroyLater({RegionId{1}, Epoch{1}, 77});
  session_.DestroyLater({RegionId{2}, Epoch{1}, 76});
  SessionAction action = ExpectNext(Kind::kDestroy);
  ASSERT_EQ(action.destroys.size(), 1u);
  EXPECT_EQ(action.destroys[0].region, RegionId{1});
  session_.Done(std::move(action), {});  // without an answer
  action = ExpectNext(Kind::kDestroy);
  action.destroys[0].answered = true;
  session_.Done(std::move(action), {});
  ExpectNext(Kind::kNone);
}

TEST_F(ServerSessionTest, AStopEndsWaitersAndTheLease) {
  Resumed waiter(&order_, Waiter::For::kRoom, INT64_MAX);
  ComeUp();
  waiter.room_bytes = 4096;
  EXPECT_TRUE(session_.WaitFor(&waiter));
  session_.BeginStop();
  SessionAction action = ExpectNext(Kind::kEndLease);
  EXPECT_EQ(waiter.outcome, Waiter::Outcome::kClosing);
  EXPECT_FALSE(session_.life()->connected());
  session_.Tick();
  session_.Done(std::move(action), {});
  ExpectNext(Kind::kFinished);
}

// --- A server that asks for memory (adr/0017).

TEST_F(ServerSessionTest, WhileItIsAskedItRenewsWhenTheServerSays) {
  ComeUp();
  const uint64_t word = session_.asked().word;
  share_ = 250'000;
  hear_again_ms_ = 200;
  session_.NoteAsksBack();
  Run(150);
  EXPECT_EQ(session_.asked().share, 250'000u);
  EXPECT_GT(session_.asked().word, word);
  EXPECT_NEAR(Run(10'000)[Kind::kRenew], 50, 1);
  // Writes do not change that: many clients must not ask a donor that is short of memory at each answer.
  EXPECT_NEAR(Run(10'000, /*flags=*/true)[Kind::kRenew], 50, 1);
  hear_again_ms_ = 2'000;
  Run(200);
  EXPECT_NEAR(Run(10'000, /*flags=*/true)[Kind::kRenew], 5, 1);
  // Its pings follow, and it ends.
  share_ = 0;
  Run(2'000);
  EXPECT_EQ(session_.asked().share, 0u);
  EXPECT_LE(Run(9'000)[Kind::kRenew], 3);
}

// A write of two copies does without a server that is short of memory, whether or not it asks: it must not be refused.
TEST_F(ServerSessionTest, AServerNeedsItsMemoryThatAsksOrIsPressedWithoutRoom) {
  ComeUp();
  EXPECT_FALSE(session_.needs_memory());
  const auto hear = [&](uint32_t share, bool pressed, uint64_t free_bytes) {
    share_ = share;
    pressed_ = pressed;
    free_bytes_ = free_bytes;
    session_.NoteAsksBack();
    Run(10'000);
  };
  hear(1, true, kGiB);
  EXPECT_TRUE(session_.needs_memory());
  hear(0, true, kMiB - 1);
  EXPECT_FALSE(session_.asks());
  EXPECT_TRUE(session_.needs_memory());
  hear(0, true, kMiB);
  EXPECT_FALSE(session_.needs_memory()) << "the last choice, and a choice";
  hear(0, false, 0);
  EXPECT_FALSE(session_.needs_memory()) << "it is full, and will be";
}

TEST_F(ServerSessionTest, AFlagOnAnAnswerOrAPingBringsOneRenewal) {
  ComeUp();
  Run(1'500);
  share_ = 1;
  hear_again_ms_ = 2'000;
  const int wakes = wakes_;
  session_.NoteAsksBack();
  session_.NoteAsksBack();
  EXPECT_GT(wakes_, wakes);
  EXPECT_EQ(Run(1)[Kind::kRenew], 1);
  EXPECT_EQ(session_.capacity().asked_back_bytes, 0u);
  EXPECT_TRUE(session_.asks()) << "what it has asked for has been given, and it has not looked yet";
  EXPECT_EQ(Run(900)[Kind::kRenew], 0);
  share_ = 0;
  Run(3'000);
  ASSERT_EQ(session_.asked().share, 0u);
  EXPECT_FALSE(session_.asks());
  // No operation uses the pool: the ping tells.
  share_ = 500'000;
  Run(1'100);
  EXPECT_EQ(session_.asked().share, 500'000u);
}

TEST_F(ServerSessionTest, AServerThatAlwaysSaysSoAndAsksNothingIsAskedTenTimesASecond) {
  ComeUp();
  Run(1'000);
  std::map<Kind, int> count = Run(10'000, /*flags=*/true);
  EXPECT_LE(count[Kind::kRenew], 101);
  EXPECT_GE(count[Kind::kRenew], 90);
  EXPECT_EQ(session_.asked().share, 0u);
  EXPECT_EQ(count[Kind::kReserve], 0);
}

TEST_F(ServerSessionTest, WhileItIsAskedAllFreeRoomGoesBackAndNoneIsReservedAhead) {
  ComeUp();
  reservation_bytes_ = 20 * kMiB;
  Run(5'000);
  ASSERT_EQ(session_.room()->free_bytes(), static_cast<int64_t>(20 * kMiB)) << "so much may stay";
  share_ = 100'000;
  hear_again_ms_ = 100;
  session_.NoteAsksBack();
  asked_pages_ = 0;
  Run(1'000);
  EXPECT_LT(asked_pages_, 0);
  EXPECT_LE(session_.room()->free_bytes(), static_cast<int64_t>(Room::kBytesPerPage));
  EXPECT_EQ(session_.room()->free_bytes(), static_cast<int64_t>(reservation_bytes_));
  // A waiter gets the bytes that it needs and no more. Afterwards nothing is reserved ahead.
  Resumed waiter(&order_, Waiter::For::kRoom, INT64_MAX);
  waiter.room_bytes = kMiB;
  EXPECT_TRUE(session_.WaitFor(&waiter));
  asked_pages_ = 0;
  Run(100);
  ASSERT_EQ(waiter.outcome, Waiter::Outcome::kGranted);
  EXPECT_NEAR(static_cast<double>(asked_pages_), static_cast<double>(kMiB) / Room::kBytesPerPage, 1);
  reservation_bytes_ -= kMiB;  // the server has taken the written bytes from it
  session_.EndRoom(std::move(waiter.grant), kMiB);
  asked_pages_ = 0;
  Run(5'000);
  EXPECT_LE(asked_pages_, 0);
  // When that is over, a client that has written reserves a step ahead again.
  share_ = 0;
  Run(3'000);
  EXPECT_GE(reservation_bytes_, options_.reserve_step_bytes / 2);
}

TEST_F(ServerSessionTest, AFullServerThatAsksRefusesAtOnce) {
  ComeUp();
  share_ = 100'000;
  hear_again_ms_ = 1'000;
  Run(4'900);
  ASSERT_EQ(session_.asked().share, 100'000u);
  Resumed waiter(&order_, Waiter::For::kRoom, INT64_MAX);
  waiter.room_bytes = 4096;
  EXPECT_TRUE(session_.WaitFor(&waiter));
  Refuse(Kind::kReserve, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(waiter.outcome, Waiter::Outcome::kRefused) << "it had asked for no step";
  // The server's report that nothing is free does not end that.
  Run(1'000);
  EXPECT_TRUE(session_.refused());
  share_ = 0;
  Run(4'000);
  EXPECT_FALSE(session_.refused());
}

}  // namespace
}  // namespace nram
