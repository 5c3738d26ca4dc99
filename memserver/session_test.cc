// Trims, destroys and drops of versions in steps: a newer connection, and other connections of the same thread, wait
// for one step only. Versions over a session.

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
  void Fill(uint64_t region, SpanGeneration generation = {}, char what = 7) {
    for (uint64_t span = 0; span < kSpans; ++span) {
      FrameLoc landed;
      ASSERT_TRUE(landing_.Take(1, &landed));
      memset(arena_->Data(landed), what, kPageBytes);
      const uint32_t crc = 0;
      Payment payment;
      const PageStore::WriteArgs args{.region = RegionId{region},
                                      .epoch = 1,
                                      .range = {span * kPagesPerSpan * kChunksPerPage, 8},
                                      .page_crcs = {&crc, 1},
                                      .landed = &landed,
                                      .absent = PageStore::IfAbsent::kCreate,
                                      .generation = generation};
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
  static MessageHeader Seal(uint32_t version) {
    return MessageHeader(SealRequest{.region = RegionId{2}, .epoch = Epoch{1}, .version = VersionNumber{version}});
  }
  static MessageHeader Drop(uint32_t first, uint32_t last) {
    return MessageHeader(DropVersionRequest{
        .region = RegionId{2}, .epoch = Epoch{1}, .first = VersionNumber{first}, .last = VersionNumber{last}});
  }
  // Sets *first_byte of the span's page, if it is read.
  Answer ReadSpan(Session* session, uint64_t id, uint32_t version, uint32_t generation, uint64_t span,
                  char* first_byte = nullptr) {
    std::array<std::byte, kMessageHeaderBytes + kPayloadTableBytesMax + kPageBytes> bytes;
    ReplyBuffer reply{bytes.data(), bytes.size(), 0};
    MessageHeader read(ReadRequest{.region = RegionId{2},
                                   .range = {span * kPagesPerSpan * kChunksPerPage, kChunksPerPage},
                                   .span_generation = SpanGeneration{generation},
                                   .version = VersionNumber{version}});
    read.request_id = id;
    Landing landing;
    EXPECT_TRUE(*session->Begin(read, {}, bytes.size(), &landing));
    Answer answer{session->Execute(read, {}, &reply), {}};
    EXPECT_TRUE(answer.status.ok() && DecodeHeader(bytes.data(), &answer.header).ok());
    if (first_byte != nullptr)
      *first_byte = static_cast<char>(bytes[kMessageHeaderBytes + answer.header.table_bytes()]);
    return answer;
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
  Fill(2, SpanGeneration{4}, 1);
  ASSERT_EQ(Run(&session, Seal(1), 2).header.reason, Reason::kOk);
  Fill(2, SpanGeneration{4}, 2);
  uint64_t id = 2;
  for (const MessageHeader& request : {Request(Op::kTrim), Drop(1, 1), Request(Op::kDestroy)}) {
    Fill(1);
    Answer answer = Run(&session, request, ++id);
    int turns = 0;
    while (session.busy()) {
      ASSERT_TRUE(answer.status.ok());
      EXPECT_EQ(reply_.used, 0) << "it is not answered before it is done";
      Landing landing;
      MessageHeader next = Request(Op::kPing);
      next.request_id = id + 1;
      EXPECT_FALSE(*session.Begin(next, {}, sizeof bytes_, &landing));
      ASSERT_LT(++turns, 100);
      answer = Finish(session.Continue(&reply_));
    }
    EXPECT_GE(turns, 4);
    EXPECT_EQ(reply_.used, kMessageHeaderBytes);
    EXPECT_EQ(answer.header.reason, Reason::kOk);
    EXPECT_EQ(store_.counters().pages, request.op == Op::kDropVersion ? 2 * kSpans : kSpans);
  }
  EXPECT_EQ(store_.counters().versions.bytes, 0);
  EXPECT_EQ(store_.counters().regions, 1);
}

TEST_F(SessionTest, AVersionIsSealedReadAndDropped) {
  Session session(context_);
  ASSERT_EQ(Hello(&session, 1).header.reason, Reason::kOk);
  Fill(2, SpanGeneration{4}, 1);
  Answer answer = Run(&session, Seal(5), 2);
  EXPECT_EQ(answer.header.reason, Reason::kOk);
  EXPECT_EQ(answer.header.as<SealReply>().newest, VersionNumber{5});
  EXPECT_EQ(answer.header.as<SealReply>().pages, kSpans);
  Fill(2, SpanGeneration{6}, 2);
  char byte = 0;
  EXPECT_EQ(ReadSpan(&session, 3, 5, 4, 9, &byte).header.reason, Reason::kOk);
  EXPECT_EQ(byte, 1);
  EXPECT_EQ(ReadSpan(&session, 4, 0, 6, 9, &byte).header.reason, Reason::kOk);
  EXPECT_EQ(byte, 2);
  EXPECT_EQ(ReadSpan(&session, 5, 5, 6, 9).header.reason, Reason::kOtherGeneration);
  EXPECT_EQ(ReadSpan(&session, 6, 4, 4, 9).header.reason, Reason::kUnknownSnapshot);
  EXPECT_EQ(Run(&session, Seal(4), 7).header.reason, Reason::kOldVersion);
  answer = Run(&session, Drop(1, 5), 8);
  EXPECT_EQ(answer.header.reason, Reason::kOk);
  EXPECT_EQ(answer.header.as<DropVersionReply>().dropped, 1u);
  EXPECT_EQ(answer.header.as<DropVersionReply>().held, 0u);
  EXPECT_GE(answer.header.as<DropVersionReply>().freed_bytes, kSpans * kPageBytes);
  EXPECT_EQ(store_.counters().versions.bytes, 0);
  EXPECT_EQ(ReadSpan(&session, 9, 5, 4, 9).header.reason, Reason::kUnknownSnapshot);
  EXPECT_EQ(Run(&session, Seal(5), 10).header.reason, Reason::kUnknownSnapshot) << "it has gone";
}

TEST_F(SessionTest, AReplyToAWriteTellsWhichVersionHasYielded) {
  Session session(context_);
  ASSERT_EQ(Hello(&session, 1).header.reason, Reason::kOk);
  Fill(2, SpanGeneration{4});
  ASSERT_EQ(Run(&session, Seal(5), 2).header.reason, Reason::kOk);
  // Without chunks.
  MessageHeader write(WriteRequest{
      .region = RegionId{2}, .range = {0, kChunksPerPage}, .epoch = Epoch{1}, .span_generation = SpanGeneration{4}});
  write.flags |= kFlagSparse;
  const ChunkMask none = 0;
  const uint32_t crc = 0;
  for (const uint64_t id : {3, 4}) {
    write.request_id = id;
    write.payload_bytes = 1;
    Landing landing;
    ASSERT_TRUE(*session.Begin(write, {{&none, 1}, {}}, sizeof bytes_, &landing));
    reply_.used = 0;
    const Answer answer = Finish(session.Execute(write, {&crc, 1}, &reply_));
    ASSERT_EQ(answer.header.reason, Reason::kOk);
    EXPECT_EQ(answer.header.as<WriteReply>().yielded, VersionNumber{id == 3 ? 0u : 5u});
    EXPECT_EQ(store_.YieldVersions(tenant_, kPageBytes), id == 3);
  }
}

TEST_F(SessionTest, ADropIsCutOffByANewerConnectionAndTheServerDoesTheRest) {
  Session older(context_);
  Session newer(context_);
  ASSERT_EQ(Hello(&older, 1).header.reason, Reason::kOk);
  Fill(2, SpanGeneration{4}, 1);
  ASSERT_EQ(Run(&older, Seal(1), 2).header.reason, Reason::kOk);
  Fill(2, SpanGeneration{4}, 2);
  int steps = 0;
  between_steps = [&] {
    if (++steps > 1) return;
    EXPECT_EQ(Hello(&newer, 2).header.reason, Reason::kOk);
  };
  EXPECT_EQ(Run(&older, Drop(1, 1), 3).status.code(), absl::StatusCode::kAborted);
  between_steps = nullptr;
  EXPECT_EQ(steps, 1);
  EXPECT_GT(store_.counters().versions.bytes, 0);
  EXPECT_EQ(ReadSpan(&newer, 2, 1, 4, 200).header.reason, Reason::kUnknownSnapshot) << "its name went first";
  EXPECT_TRUE(store_.StepVersions(1'000));
  EXPECT_EQ(store_.counters().versions.bytes, 0);
  const Answer again = Run(&newer, Drop(1, 1), 3);
  EXPECT_EQ(again.header.reason, Reason::kOk);
  EXPECT_EQ(again.header.as<DropVersionReply>().dropped, 0u);
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
