// Trims and destroys in steps: a newer connection, and other connections of the same thread, wait for one step only.

#include "memserver/session.h"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "proto/any_request.h"

namespace nram {
namespace {

// Two leases' worth of a server without sockets.
class SessionTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSpans = 300;  // five steps

  SessionTest() : arena_(FrameArena::Create(64 * kMiB, kMiB).value()) {
    lease_ = leases_.Grant(wish_).value();
    context_ = {&store_, &leases_, &landing_, 1, Credit{256, 4096}};
    context_.tenant = &tenant_;
    context_.between_steps_for_test = [] {
      if (between_steps) between_steps();
    };
    Fill(1);
  }
  ~SessionTest() override { between_steps = nullptr; }

  // A page in each of many spans.
  void Fill(uint64_t region) {
    for (uint64_t span = 0; span < kSpans; ++span) {
      FrameLoc landed;
      ASSERT_TRUE(landing_.Take(1, &landed));
      memset(arena_->Data(landed), 7, kPageBytes);
      const uint32_t crc = 0;
      Payment payment;
      const PageStore::WriteArgs args{.region = RegionId{region},
                                      .epoch = 1,
                                      .range = {span * kPagesPerSpan * kChunksPerPage, 8},
                                      .page_crcs = {&crc, 1},
                                      .landed = &landed,
                                      .absent = PageStore::IfAbsent::kCreate};
      ASSERT_EQ(store_.Write(lease_.get(), args, &payment), Reason::kOk);
      landing_.Give(&landed, 1);
    }
  }

  struct Answer {
    absl::Status status;
    MessageHeader header;
  };
  Answer Finish(absl::Status status) {
    Answer answer{std::move(status), {}};
    if (answer.status.ok() && reply_.used > 0) {
      EXPECT_TRUE(DecodeHeader(reply_.data, &answer.header).ok());
    }
    return answer;
  }
  Answer Run(Session* session, MessageHeader request, uint64_t id) {
    request.request_id = id;
    Landing landing;
    const auto accepted = session->Begin(request, {}, sizeof bytes_, &landing);
    EXPECT_TRUE(accepted.ok() && *accepted);
    reply_.used = 0;
    return Finish(session->Execute(request, {}, &reply_));
  }
  Answer Hello(Session* session, uint64_t generation, uint64_t lease = 1) {
    std::array<std::byte, kMessageHeaderBytes> bytes;
    ReplyBuffer reply{bytes.data(), bytes.size(), 0};
    MessageHeader hello(HelloRequest{.lease = LeaseId{lease}, .generation = generation});
    hello.request_id = 1;
    Landing landing;
    EXPECT_TRUE(session->Begin(hello, {}, bytes.size(), &landing).ok());
    Answer answer{session->Execute(hello, {}, &reply), {}};
    EXPECT_TRUE(answer.status.ok());
    EXPECT_TRUE(DecodeHeader(reply.data, &answer.header).ok());
    return answer;
  }
  static MessageHeader Request(Op op) { return AnyRequest(op, 1, 1, {0, kSpans * kPagesPerSpan * kChunksPerPage}); }
  static MessageHeader KeepingTrim() {
    MessageHeader trim = Request(Op::kTrim);
    trim.flags = kFlagReservation;
    return trim;
  }

  static std::function<void()> between_steps;

  FakeClock clock_;
  std::unique_ptr<FrameArena> arena_;
  Tenant tenant_{0, "local", arena_.get()};
  const LeaseTable::Wish wish_{.tenant = &tenant_, .id = LeaseId{1}, .client_name = "test"};
  LeaseTable leases_{arena_.get(), &clock_, 10'000};
  PageStore store_{arena_.get(), &leases_};
  LandingFrames landing_{arena_.get(), 128};
  SessionContext context_;
  std::shared_ptr<Lease> lease_;
  std::array<std::byte, kMessageHeaderBytes> bytes_;
  ReplyBuffer reply_{bytes_.data(), bytes_.size(), 0};
};
std::function<void()> SessionTest::between_steps;

TEST_F(SessionTest, ANewerConnectionWaitsForOneStepAndNothingIsExecutedAfterItsHello) {
  for (const MessageHeader& request : {KeepingTrim(), Request(Op::kDestroy)}) {
    Session older(context_);
    Session newer(context_);
    const uint64_t generation = request.op == Op::kTrim ? 1 : 3;
    ASSERT_EQ(Hello(&older, generation).header.reason, Reason::kOk);
    int64_t pages_at_hello = 0;
    int steps = 0;
    bool answered = false;
    between_steps = [&] {
      if (++steps > 1) return;
      std::thread hello([&] {
        EXPECT_EQ(Hello(&newer, generation + 1).header.reason, Reason::kOk);
        answered = true;
      });
      hello.join();  // would never return if hello waited for more than the step
      pages_at_hello = store_.counters().pages;
    };
    const Answer cut_off = Run(&older, request, 2);
    between_steps = nullptr;
    EXPECT_TRUE(answered);
    EXPECT_EQ(cut_off.status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(steps, 1);
    EXPECT_EQ(store_.counters().pages, pages_at_hello);
    EXPECT_GT(pages_at_hello, 0);
    const Answer again = Run(&newer, request, 2);
    ASSERT_TRUE(again.status.ok());
    if (request.op == Op::kTrim) {
      // The sum that both trims have kept makes up for the lost answer.
      EXPECT_EQ(again.header.reason, Reason::kOk);
      const uint64_t kept_bytes = again.header.as<TrimReply>().kept_bytes;
      EXPECT_GE(kept_bytes, kSpans * kPageBytes);
      EXPECT_EQ(kept_bytes, arena_->left_bytes(lease_->reservation));
      EXPECT_EQ(store_.counters().pages, 0);
      Fill(1);
    } else {
      EXPECT_EQ(again.header.reason, Reason::kUnknownRegion);
      EXPECT_EQ(store_.counters().regions, 1) << "unlinked, and not free yet";
    }
  }
  // The older connection's destroy is completed when a thread has time.
  EXPECT_TRUE(store_.FreeSome(DeadlineAfterMs(60'000)));
  EXPECT_EQ(store_.counters().regions, 0);
  EXPECT_EQ(store_.counters().pages, 0);
}

TEST_F(SessionTest, AConnectionThatTakesTurnsLetsOthersIn) {
  Session session(context_, /*takes_turns=*/true);
  ASSERT_EQ(Hello(&session, 1).header.reason, Reason::kOk);
  // A step takes as long as a turn.
  between_steps = [] {
    const int64_t until_ns = MonotonicNs() + 2 * Session::kTurnNs;
    while (MonotonicNs() < until_ns) {
    }
  };
  for (const Op op : {Op::kTrim, Op::kDestroy}) {
    Fill(1);
    Answer answer = Run(&session, Request(op), op == Op::kTrim ? 2 : 3);
    int turns = 0;
    while (session.busy()) {
      ASSERT_TRUE(answer.status.ok());
      EXPECT_EQ(reply_.used, 0) << "it is not answered before it is done";
      Landing landing;
      MessageHeader next = Request(Op::kPing);
      next.request_id = 4;
      EXPECT_FALSE(*session.Begin(next, {}, sizeof bytes_, &landing));
      ASSERT_LT(++turns, 100);
      answer = Finish(session.Continue(&reply_));
    }
    EXPECT_GE(turns, 4);
    EXPECT_EQ(reply_.used, kMessageHeaderBytes);
    EXPECT_EQ(answer.header.reason, Reason::kOk);
    EXPECT_EQ(store_.counters().pages, 0);
  }
  EXPECT_EQ(store_.counters().regions, 0);
}

TEST_F(SessionTest, ALeaseThatEndsStopsATrimBetweenSteps) {
  Session session(context_);
  ASSERT_EQ(Hello(&session, 1).header.reason, Reason::kOk);
  between_steps = [&] {
    if (leases_.End(LeaseId{1}) != nullptr) leases_.Grant(wish_).value();
  };
  EXPECT_EQ(Run(&session, KeepingTrim(), 2).status.code(), absl::StatusCode::kAborted);
  EXPECT_GT(store_.counters().pages, 0);
  EXPECT_EQ(arena_->left_bytes(lease_->reservation), 0) << "reserved in the former term";
}

}  // namespace
}  // namespace nram
