#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/http2/farewell.h"
#include "base/http2/frame_meter.h"
#include "base/http2/frame_scanner.h"
#include "base/http2/test_frames.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Sender = FrameScanner::Sender;
using ::testing::HasSubstr;

// A connection of one peer, in virtual time.
struct Metered {
  explicit Metered(Sender sender = Sender::kClient) : meter(sender) { EXPECT_TRUE(Send(TestGreeting(sender)).ok()); }
  absl::Status Send(absl::string_view bytes) { return meter.Take(TestBytes(bytes), now_ns); }
  // The other end answers.
  void Hear(absl::string_view bytes) { meter.NoteSent(TestBytes(bytes)); }

  FrameMeter meter;
  int64_t now_ns = kNsPerSecond;
};

// A frame of a kind that the meter counts.
std::string FrameOf(FrameMeter::Kind kind) {
  switch (kind) {
    case FrameMeter::kStreams:
      return TestFrame(FrameType::kHeaders, kFlagEndHeaders, 1, "hpack");
    case FrameMeter::kWindows:
      return TestFrame(FrameType::kWindowUpdate, 0, 0, "1234");
    case FrameMeter::kPings:
      return TestFrame(FrameType::kPing, 0, 0, "12345678");
    case FrameMeter::kResets:
      return TestFrame(FrameType::kReset, 0, 1, "1234");
    case FrameMeter::kSettings:
      return TestFrame(FrameType::kSettings, 0, 0, "123456");
    case FrameMeter::kEmptyData:
      return TestFrame(FrameType::kData, 0, 1, "");
    case FrameMeter::kContinuations:
      return TestFrame(FrameType::kHeaders, 0, 1, "") + TestFrame(FrameType::kContinuation, kFlagEndHeaders, 1, "");
    case FrameMeter::kPriorities:
      return TestFrame(FrameType::kPriority, 0, 1, "12345");
    case FrameMeter::kOthers:
      return TestFrame(static_cast<FrameType>(77), 0, 0, "any");
  }
  return "";
}

// How many frames pass, of `most`. *why: of the cut.
int CountUntilCut(Metered* peer, const std::string& frame, int most, absl::Status* why = nullptr) {
  for (int sent = 0; sent < most; ++sent) {
    const absl::Status status = peer->Send(frame);
    if (why != nullptr) *why = status;
    if (!status.ok()) return sent;
  }
  return most;
}

TEST(FrameMeterTest, EachKindIsCut) {
  for (const Sender sender : {Sender::kClient, Sender::kServer}) {
    for (size_t i = 0; i < FrameMeter::kKinds; ++i) {
      const auto kind = static_cast<FrameMeter::Kind>(i);
      const FrameMeter::Rate& rate = FrameMeter::RateOf(kind);
      SCOPED_TRACE(rate.name);
      Metered peer(sender);
      const int greeted = kind == FrameMeter::kSettings ? 1 : 0;
      absl::Status why;
      EXPECT_EQ(CountUntilCut(&peer, FrameOf(kind), 100'000, &why), rate.at_once - greeted);
      EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
      EXPECT_THAT(std::string(why.message()), HasSubstr(rate.name));
    }
  }
}

TEST(FrameMeterTest, EachKindMayComeAgainAfterSomeTime) {
  for (size_t i = 0; i < FrameMeter::kKinds; ++i) {
    const auto kind = static_cast<FrameMeter::Kind>(i);
    const FrameMeter::Rate& rate = FrameMeter::RateOf(kind);
    SCOPED_TRACE(rate.name);
    Metered peer;
    for (int second = 0; second < 100; ++second) {
      ASSERT_GE(CountUntilCut(&peer, FrameOf(kind), static_cast<int>(rate.each_second)), rate.each_second);
      peer.now_ns += kNsPerSecond;
    }
  }
}

// An attacker that repeats the poor frames of several kinds is bounded by each of them.
TEST(FrameMeterTest, RapidResetsAreCut) {
  Metered peer;
  uint32_t stream = 1;
  int opened = 0;
  for (; opened < 100'000; ++opened, stream += 2) {
    const std::string call = TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack") +
                             TestFrame(FrameType::kData, kFlagEndStream, stream, std::string(5, '\0')) +
                             TestFrame(FrameType::kReset, 0, stream, "1234");
    if (!peer.Send(call).ok()) break;
  }
  EXPECT_EQ(opened, FrameMeter::RateOf(FrameMeter::kResets).at_once);
}

// A whole call of a client.
std::string CallOn(uint32_t stream) {
  return TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack") +
         TestFrame(FrameType::kData, kFlagEndStream, stream, std::string(5, '\0'));
}

// How many calls of a client pass, of `most`, while the other end says `answer` to each.
size_t CallUntilCut(Metered* client, uint32_t* stream, size_t most,
                    const std::function<std::string(uint32_t stream)>& answer, absl::Status* why = nullptr) {
  for (size_t sent = 0; sent < most; ++sent, *stream += 2) {
    const absl::Status status = client->Send(CallOn(*stream));
    if (why != nullptr) *why = status;
    if (!status.ok()) return sent;
    client->Hear(answer(*stream));
  }
  return most;
}

// gRPC has a bound of its own, of which a client that acknowledges no SETTINGS is free.
TEST(FrameMeterTest, StreamsThatNobodyEndsAreCut) {
  const std::vector<std::function<std::string(uint32_t)>> no_ends = {
      [](uint32_t) { return ""; },
      [](uint32_t stream) { return TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack"); },
      [](uint32_t stream) { return TestFrame(FrameType::kData, 0, stream, "some"); },
      [](uint32_t stream) { return TestFrame(FrameType::kReset, 0, stream + 2, "1234"); },  // of another stream
      // No SETTINGS, WINDOW_UPDATE or PING is an end, whatever its flags.
      [](uint32_t stream) { return TestFrame(FrameType::kWindowUpdate, kFlagEndStream, stream, "1234"); },
      [](uint32_t stream) { return TestFrame(FrameType::kPing, kFlagAck, stream, "12345678"); },
  };
  for (size_t i = 0; i < no_ends.size(); ++i) {
    SCOPED_TRACE(i);
    Metered client;
    client.Hear(TestGreeting(Sender::kServer));
    uint32_t stream = 1;
    absl::Status why;
    EXPECT_EQ(CallUntilCut(&client, &stream, 1'000, no_ends[i], &why), FrameMeter::kOpenStreamsMax);
    EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
    EXPECT_THAT(std::string(why.message()), HasSubstr("streams open at once"));
  }
}

TEST(FrameMeterTest, AStreamIsOpenUntilEitherEndEndsIt) {
  const std::vector<std::function<std::string(uint32_t)>> ends = {
      [](uint32_t stream) {
        return TestFrame(FrameType::kHeaders, kFlagEndHeaders | kFlagEndStream, stream, "trailers");
      },
      [](uint32_t stream) { return TestFrame(FrameType::kData, kFlagEndStream, stream, ""); },
      [](uint32_t stream) { return TestFrame(FrameType::kReset, 0, stream, "1234"); },
      // As gRPC answers a bad `te`: its own frames may be long, and an end may come twice.
      [](uint32_t stream) {
        return TestFrame(FrameType::kData, 0, stream, std::string(100'000, 'x')) +
               TestFrame(FrameType::kHeaders, kFlagEndHeaders | kFlagEndStream, stream, "trailers") +
               TestFrame(FrameType::kReset, 0, stream, "1234");
      },
  };
  for (size_t i = 0; i < ends.size(); ++i) {
    SCOPED_TRACE(i);
    Metered client;
    client.Hear(TestGreeting(Sender::kServer));
    uint32_t stream = 1;
    const auto none = [](uint32_t) { return ""; };
    // Some stay open meanwhile, and the room of the others comes back.
    ASSERT_EQ(CallUntilCut(&client, &stream, FrameMeter::kOpenStreamsMax - 1, none), FrameMeter::kOpenStreamsMax - 1);
    EXPECT_EQ(CallUntilCut(&client, &stream, 1'000, ends[i]), 1'000u);
    EXPECT_EQ(CallUntilCut(&client, &stream, 1'000, none), 1u);
  }
  // The client's own RST_STREAM too.
  Metered client;
  uint32_t stream = 1;
  const auto none = [](uint32_t) { return ""; };
  ASSERT_EQ(CallUntilCut(&client, &stream, FrameMeter::kOpenStreamsMax, none), FrameMeter::kOpenStreamsMax);
  for (uint32_t old = 1; old < stream; old += 2) {
    ASSERT_TRUE(client.Send(TestFrame(FrameType::kReset, 0, old, "1234")).ok());
  }
  EXPECT_EQ(CallUntilCut(&client, &stream, 1'000, none), FrameMeter::kOpenStreamsMax);
}

// What gRPC takes for a new stream is one for the meter too.
TEST(FrameMeterTest, NumbersOfStreamsDoNotHideAny) {
  Metered client;
  EXPECT_TRUE(absl::IsInvalidArgument(client.Send(CallOn(0x7ffffffe))));
  Metered other;
  // The uppermost bit is none of the number.
  size_t opened = 0;
  for (uint32_t stream = 1; opened < 1'000 && other.Send(CallOn(stream | 0x80000000)).ok(); stream += 2) ++opened;
  EXPECT_EQ(opened, FrameMeter::kOpenStreamsMax);
}

// A server's HEADERS are answers.
TEST(FrameMeterTest, AServersAnswersOpenNoStreams) {
  Metered server(Sender::kServer);
  for (uint32_t stream = 1; stream < 2'000; stream += 2) {
    ASSERT_TRUE(server.Send(TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack")).ok());
  }
}

TEST(FrameMeterTest, AHeaderBlockWithoutAnEndIsCut) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5'000}, size_t{kFrameContentMax}}) {
    SCOPED_TRACE(bytes);
    Metered peer;
    ASSERT_TRUE(peer.Send(TestFrame(FrameType::kHeaders, 0, 1, "hpack")).ok());
    const std::string more = TestFrame(FrameType::kContinuation, 0, 1, std::string(bytes, 'x'));
    EXPECT_LE(CountUntilCut(&peer, more, 1'000), FrameMeter::kBlockContinuationsMax);
  }
  Metered peer;
  EXPECT_TRUE(peer.Send(TestFrame(FrameType::kHeaders, 0, 1, std::string(16'000, 'x')) +
                        TestFrame(FrameType::kContinuation, kFlagEndHeaders, 1, std::string(384, 'x')))
                  .ok());
}

TEST(FrameMeterTest, WhatGrpcNeverSendsIsCut) {
  const std::string open_block = TestFrame(FrameType::kHeaders, 0, 1, "hpack");
  const std::vector<std::string> bad = {
      TestFrame(FrameType::kData, 0, 1, std::string(kFrameContentMax + 1, 'x')),
      TestFrame(FrameType::kReset, 0, 1, "123"),
      TestFrame(FrameType::kPing, 0, 0, "1234567"),
      TestFrame(FrameType::kWindowUpdate, 0, 0, "12345"),
      TestFrame(FrameType::kPriority, 0, 1, "1234"),
      TestFrame(FrameType::kSettings, 0, 0, "12345"),
      TestFrame(FrameType::kSettings, 0, 0, std::string(16'380, 'x')),
      TestFrame(FrameType::kHeaders, kFlagEndHeaders, 0, "hpack"),
      TestFrame(FrameType::kContinuation, kFlagEndHeaders, 1, "hpack"),
      open_block + TestFrame(FrameType::kContinuation, kFlagEndHeaders, 3, "hpack"),
      open_block + open_block,
      open_block + TestFrame(FrameType::kPing, 0, 0, "12345678"),
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_TRUE(absl::IsInvalidArgument(Metered().Send(bad[i]))) << i;
    EXPECT_TRUE(absl::IsInvalidArgument(Metered(Sender::kServer).Send(bad[i]))) << i;
  }
  for (const std::string first : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "PRI * HTTP/1.1"}) {
    EXPECT_FALSE(FrameMeter(Sender::kClient).Take(TestBytes(first), 0).ok()) << first;
  }
  EXPECT_FALSE(FrameMeter(Sender::kServer).Take(TestBytes("HTTP/1.1 400 Bad Request\r\n"), 0).ok());
  EXPECT_FALSE(FrameMeter(Sender::kServer).Take(TestBytes(FrameOf(FrameMeter::kPings)), 0).ok());
}

// Half a million calls, as fast as a server of two processors answers them, and its side of them.
TEST(FrameMeterTest, AnHonestConversationPasses) {
  Metered client(Sender::kClient), server(Sender::kServer);
  client.Hear(TestGreeting(Sender::kServer));
  server.Hear(TestGreeting(Sender::kClient));
  const std::string acknowledged = TestFrame(FrameType::kSettings, kFlagAck, 0, "");
  ASSERT_TRUE(client.Send(acknowledged).ok());
  ASSERT_TRUE(server.Send(acknowledged).ok());
  const std::string ping = TestFrame(FrameType::kPing, 0, 0, "12345678");
  const std::string window = TestFrame(FrameType::kWindowUpdate, 0, 0, "1234");
  constexpr int kCallsPerSecond = 8'000;
  for (int call = 0; call < 500'000; ++call) {
    client.now_ns = server.now_ns = kNsPerSecond + call * (kNsPerSecond / kCallsPerSecond);
    const auto stream = static_cast<uint32_t>(2 * call + 1);
    std::string asked = TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, std::string(60, 'h'));
    asked += TestFrame(FrameType::kData, kFlagEndStream, stream, std::string(30, 'd'));
    std::string told = TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack");
    told += TestFrame(FrameType::kData, 0, stream, std::string(40, 'd'));
    told += TestFrame(FrameType::kHeaders, kFlagEndHeaders | kFlagEndStream, stream, "hpack");
    if (call % 4 == 0) asked += window, told += window;
    if (call % 200 == 0) asked += ping, told += ping;
    // One call in 1,000 reaches its deadline.
    if (call % 1'000 == 0) asked += TestFrame(FrameType::kReset, 0, stream, "1234");
    ASSERT_TRUE(client.Send(asked).ok()) << call;
    server.Hear(asked);
    ASSERT_TRUE(server.Send(told).ok()) << call;
    client.Hear(told);
  }
}

// The verdict, and the frame that it falls on, do not depend on the pieces in which the bytes come.
TEST(FrameMeterTest, PiecesMakeNoDifference) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::string bytes = TestGreeting(Sender::kClient);
    for (int i = 0; i < 200; ++i) {
      bytes += FrameOf(static_cast<FrameMeter::Kind>(random() % FrameMeter::kKinds));
      if (random() % 50 == 0) bytes[bytes.size() - 1 - random() % 20] ^= static_cast<char>(1 << random() % 8);
    }
    const absl::Status whole = FrameMeter(Sender::kClient).Take(TestBytes(bytes), 0);
    FrameMeter meter(Sender::kClient);
    absl::Status pieces;
    for (size_t at = 0; at < bytes.size() && pieces.ok();) {
      const size_t step = std::min<size_t>(1 + random() % 30, bytes.size() - at);
      pieces = meter.Take(TestBytes(bytes).subspan(at, step), 0);
      at += step;
    }
    EXPECT_EQ(pieces, whole) << "round " << round;
  }
}

const std::string kCall = TestFrame(FrameType::kHeaders, kFlagEndHeaders, 1, "hpack");

TEST(FarewellTest, AnswersTheFirstCall) {
  Farewell farewell(absl::UnauthenticatedError("use TLS, 100 %"));
  std::string out;
  ASSERT_TRUE(farewell.Take(TestBytes(kHttp2Preface), &out).ok());
  EXPECT_EQ(out, TestFrame(FrameType::kSettings, 0, 0, ""));
  out.clear();
  ASSERT_TRUE(farewell.Take(TestBytes(TestFrame(FrameType::kSettings, 0, 0, "123456")), &out).ok());
  EXPECT_EQ(out, TestFrame(FrameType::kSettings, kFlagAck, 0, ""));
  EXPECT_FALSE(farewell.is_told());
  out.clear();
  ASSERT_TRUE(farewell.Take(TestBytes(TestFrame(FrameType::kWindowUpdate, 0, 0, "1234")), &out).ok());
  EXPECT_EQ(out, "");
  ASSERT_TRUE(farewell.Take(TestBytes(kCall), &out).ok());
  EXPECT_TRUE(farewell.is_told());
  EXPECT_THAT(out, HasSubstr(std::string("\0\x0bgrpc-status\x02", 14) + "16"));
  EXPECT_THAT(out, HasSubstr("use TLS, 100 %25"));
  std::vector<FrameHeader> frames;
  FrameScanner scanner(Sender::kServer);
  const auto note = [&](const FrameHeader& frame) {
    frames.push_back(frame);
    return absl::OkStatus();
  };
  ASSERT_TRUE(scanner.Scan(TestBytes(TestGreeting(Sender::kServer) + out), note).ok());
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[1].type, FrameType::kHeaders);
  EXPECT_TRUE(frames[1].has(kFlagEndStream) && frames[1].has(kFlagEndHeaders));
  EXPECT_EQ(frames[2].type, FrameType::kGoAway);
}

TEST(FarewellTest, ALongMessageHasALongLength) {
  Farewell farewell(absl::PermissionDeniedError(std::string(5'000, 'm')));
  std::string out;
  ASSERT_TRUE(farewell.Take(TestBytes(TestGreeting(Sender::kClient) + kCall), &out).ok());
  // 1,000 is 127 and 873, whose low seven bits come first.
  EXPECT_THAT(out, HasSubstr(std::string("\x0cgrpc-message\x7f\xe9\x06mmm")));
  EXPECT_EQ(std::count(out.begin(), out.end(), 'm'), 1'000 + 1);
}

TEST(FarewellTest, TakesLittleAndNothingElse) {
  std::string out;
  EXPECT_FALSE(Farewell(absl::UnauthenticatedError("")).Take(TestBytes("GET / HTTP/1.1\r\n"), &out).ok());
  EXPECT_EQ(out, "");
  Farewell farewell(absl::UnauthenticatedError(""));
  ASSERT_TRUE(farewell.Take(TestBytes(TestGreeting(Sender::kClient)), &out).ok());
  size_t taken = 0;
  const std::string settings = TestFrame(FrameType::kSettings, 0, 0, "");
  while (taken < 1'000'000 && farewell.Take(TestBytes(settings), &out).ok()) taken += settings.size();
  EXPECT_LE(taken, Farewell::kBytesMax);
  EXPECT_LE(out.size(), 18u) << "one SETTINGS and one acknowledgement";
  EXPECT_FALSE(farewell.is_told());
}

}  // namespace
}  // namespace nram
