#include "tools/nram/copies_report.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ServerStatistics Server(const std::string& host, uint64_t free_bytes) {
  ServerStatistics server;
  server.host.boot_id = host;
  server.capacity.free_bytes = free_bytes;
  return server;
}

// A pool with `count` hosts that have 1 GiB free each.
CopyHosts Hosts(int count) {
  std::vector<absl::StatusOr<ServerStatistics>> answers;
  for (int i = 0; i < count; ++i) answers.emplace_back(Server("host" + std::to_string(i), kGiB));
  return HostsOf(answers);
}

TEST(SumOfCopiesTest, EachClientCountsOnceAsItsLatestReport) {
  ServerStatistics first = Server("a", 0), second = Server("b", 0);
  first.copies = {{.client = 1, .in_sync = 5, .degraded = 2, .made = 3, .left_ms = 900, .wanted = 4, .done = 2},
                  {.client = 2, .in_sync = 7, .lost = 1, .moving = 4, .left_ms = 100, .wanted = 3, .done = 5}};
  second.copies = {{.client = 1, .in_sync = 6, .repairing = 1, .made = 4, .left_ms = 500, .wanted = 4, .done = 3},
                   {.client = 3}};
  const std::vector<absl::StatusOr<ServerStatistics>> answers = {first, absl::UnavailableError("away"), second};
  const CopiesReport sum = SumOfCopies(answers);
  EXPECT_EQ(
      sum,
      (CopiesReport{
          .in_sync = 13, .repairing = 1, .lost = 1, .moving = 4, .made = 4, .left_ms = 500, .wanted = 3, .done = 8}));
  EXPECT_EQ(SumOfCopies({second, first}), sum);
  EXPECT_EQ(SumOfCopies({}), CopiesReport());
  EXPECT_EQ(CopiesToJson(sum).dump(),
            R"({"degraded":0,"done":8,"in_sync":13,"left":5,"left_ms":500,"lost":1,"made":4,"moving":4,"repairing":1,)"
            R"("wanted":3})");
  // A client of an older release.
  second.copies.push_back({.client = 4, .in_sync = 1});
  EXPECT_EQ(SumOfCopies({first, second}).wanted, 2u);
}

TEST(MovingReservedTest, AClientsWordCountsAsFarAsItHasRoomReserved) {
  ServerStatistics server = Server("a", 0);
  server.copies = {{.client = 1, .moving = CopiesReport::kMost},
                   {.client = 2, .moving = 3, .reserved_bytes = kMiB},
                   {.client = 3, .moving = CopiesReport::kMost, .reserved_bytes = kPageBytes + 1},
                   {.client = 4, .in_sync = 9, .reserved_bytes = kMiB}};
  EXPECT_EQ(MovingReserved(server), 3u + 2u);
  EXPECT_EQ(MovingReserved(Server("b", 0)), 0u);
}

TEST(ProgressOfTest, HowFarAndHowLong) {
  EXPECT_EQ(ProgressOf({.in_sync = 9, .made = 4, .wanted = 2}), "");
  EXPECT_EQ(ProgressOf({.in_sync = 9, .degraded = 3, .wanted = 2}), "0 % (0 of 3), rate unknown yet");
  EXPECT_EQ(ProgressOf({.degraded = 1, .repairing = 2, .moving = 3, .made = 90, .left_ms = 1001, .done = 9}),
            "60 % (9 of 15), about 2 s left");
}

TEST(CopyHostsTest, ServersOfAHostShareItAndDrainingOnesHaveNoRoom) {
  std::vector<absl::StatusOr<ServerStatistics>> answers = {Server("a", kGiB), Server("a", kGiB), Server("b", 3 * kGiB),
                                                           Server("c", kGiB), absl::UnavailableError("away")};
  EXPECT_EQ(HostsOf(answers).rooms.size(), 3u);
  EXPECT_EQ(HostsOf(answers).silent, 1u);
  EXPECT_EQ(HostsOf(answers).UsableBytes(1), 6 * kGiB);
  EXPECT_EQ(HostsOf(answers).UsableBytes(2), 3 * kGiB);
  EXPECT_EQ(HostsOf(answers).UsableBytes(4), 0u);
  answers[2]->capacity.draining = true;
  EXPECT_EQ(HostsOf(answers).rooms.size(), 3u);
  EXPECT_EQ(HostsOf(answers).UsableBytes(2), kGiB);
  EXPECT_FALSE(HostsOf(answers).pretended);
  answers[1]->host.pretended_host = "d";
  EXPECT_TRUE(HostsOf(answers).pretended);
  EXPECT_EQ(HostsOf(answers).rooms.size(), 4u);
}

TEST(WhoMayGoTest, OneHostIfAllSpansHaveTheirCopies) {
  const CopiesReport whole{.in_sync = 12, .moving = 3};
  EXPECT_EQ(WhoMayGo(whole, Hosts(3)),
            "all spans with several copies are complete (12 spans): one host may fail at any time, but the loss of two "
            "at once may lose data; data with one copy is lost with its server");
  EXPECT_THAT(WhoMayGo(whole, Hosts(2)), HasSubstr("one of the two hosts may fail at any time, but not both;"));
  EXPECT_EQ(WhoMayGo({.in_sync = 12, .wanted = 2}, Hosts(3)), WhoMayGo(whole, Hosts(3)));
  EXPECT_THAT(WhoMayGo({.in_sync = 12, .wanted = 4}, Hosts(5)),
              HasSubstr("3 hosts may fail at any time, but the loss of 4 at once may lose data;"));
  CopyHosts pretended = Hosts(3);
  pretended.pretended = true;
  EXPECT_THAT(WhoMayGo(whole, pretended), HasSubstr("one host (pretended hosts) may fail"));
  // The clients' reports are older than the server's failure.
  CopyHosts silent = Hosts(2);
  silent.silent = 1;
  EXPECT_THAT(WhoMayGo(whole, silent), HasSubstr("1 server does not answer here: no host may be switched off"));
}

TEST(WhoMayGoTest, NoneIfASpanLacksACopy) {
  EXPECT_EQ(WhoMayGo({.in_sync = 7, .degraded = 2, .repairing = 1}, Hosts(3)),
            "3 of 10 spans with several copies lack copies: no host may be switched off now without risk of loss");
  EXPECT_THAT(WhoMayGo({.repairing = 1}, Hosts(3)), HasSubstr("1 of 1 spans"));
}

TEST(WhoMayGoTest, NothingIsSaidIfNothingHasCopies) {
  EXPECT_EQ(WhoMayGo({}, Hosts(3)), "");
  EXPECT_EQ(WhoMayGo({.lost = 3, .made = 9}, Hosts(3)), "");
}

TEST(WhyDegradedTest, HostsAndRoomAndSilence) {
  const CopiesReport lacking{.in_sync = 7, .degraded = 2};
  EXPECT_THAT(WhyDegraded(lacking, Hosts(0)), HasSubstr("none accepts new spans"));
  EXPECT_THAT(WhyDegraded(lacking, Hosts(1)), HasSubstr("too few hosts: only one accepts new spans"));
  CopyHosts hosts = Hosts(3);
  EXPECT_THAT(WhyDegraded(lacking, hosts), HasSubstr("was away or has restarted"));
  hosts.silent = 2;
  EXPECT_EQ(WhyDegraded(lacking, hosts), "2 servers do not answer");
  ServerStatistics busy = Server("host0", kGiB);
  busy.capacity.asked_back_bytes = kMiB;
  hosts = HostsOf({busy, Server("host1", kGiB)});
  EXPECT_EQ(WhyDegraded(lacking, hosts),
            "1 server asks for memory back: the donor needs it, so no copy is placed there");
  hosts = Hosts(2);
  hosts.rooms["host0"].free_bytes = 0;
  EXPECT_THAT(WhyDegraded(lacking, hosts), HasSubstr("no room: all hosts but one are full"));
  hosts.rooms["host1"].free_bytes = kSpanBytes - 1;
  EXPECT_THAT(WhyDegraded(lacking, hosts), HasSubstr("no room: all hosts are full"));
  hosts = Hosts(2);
  EXPECT_THAT(WhyDegraded({.degraded = 4096}, hosts), HasSubstr("need up to 4.00 GiB, and 2.00 GiB are free"));
}

TEST(WhyDegradedTest, HowLongIfClientsKnow) {
  const std::string why = WhyDegraded({.repairing = 2, .left_ms = 1001}, Hosts(1));
  EXPECT_EQ(why, "the copies are being made; about 2 s until all copies are restored");
  EXPECT_THAT(WhyDegraded({.repairing = 2}, Hosts(1)), Not(HasSubstr("about")));
}

}  // namespace
}  // namespace nram
