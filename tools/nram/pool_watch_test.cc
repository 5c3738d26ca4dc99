#include "tools/nram/pool_watch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

ServerStatistics Server(uint64_t incarnation, uint64_t reads, uint64_t bytes_written) {
  ServerStatistics server;
  server.incarnation = incarnation;
  server.capacity.donated_bytes = kGiB;
  server.capacity.free_bytes = kGiB / 2;
  server.counters = {{"leases", 3}, {"reads", reads}, {"bytes_written", bytes_written}};
  return server;
}

PoolLook Look(int64_t at_s, std::vector<PoolLook::Donor> donors) {
  PoolLook look;
  look.at_ns = at_s * kNsPerSecond;
  look.time = "2026-01-02T03:04:05Z";
  look.donors = std::move(donors);
  return look;
}

std::string Text(const PoolView& view) {
  std::string text;
  for (const WatchLine& line : ToLines(view)) absl::StrAppend(&text, line.text, "\n");
  return text;
}

TEST(PoolWatchTest, RatesAreOfTheTimeBetweenTheLooks) {
  const PoolLook before = Look(10, {{"a:1", Server(1, 100, kMiB), 0}, {"b:1", Server(2, 5, 0), 0}});
  const PoolLook now = Look(12, {{"a:1", Server(1, 300, 5 * kMiB), 3 * kNsPerMs}, {"b:1", Server(2, 5, 0), 0}});
  const PoolView view = Compare(before, now);
  EXPECT_DOUBLE_EQ(view.seconds, 2);
  ASSERT_EQ(view.donors.size(), 2u);
  EXPECT_DOUBLE_EQ(view.donors[0].rate.reads, 100);
  EXPECT_DOUBLE_EQ(view.donors[0].rate.written_bytes, 2 * kMiB);
  EXPECT_DOUBLE_EQ(view.donors[0].answer_ms, 3);
  EXPECT_DOUBLE_EQ(view.rate.reads, 100);
  EXPECT_EQ(view.total.donated_bytes, 2 * kGiB);
  const nlohmann::json json = ToJson(view);
  EXPECT_EQ(json["donors"][0]["per_second"]["reads"], 100.0);
  EXPECT_EQ(json["donors"][0]["clients"], 3);
  EXPECT_EQ(json["total"]["free_bytes"], kGiB);
  EXPECT_EQ(json.dump().find('\n'), std::string::npos);
  EXPECT_THAT(Text(view), HasSubstr("2.00 MiB/s"));
}

TEST(PoolWatchTest, EightyColumnsShowTheActivityOfLongNames) {
  const std::string name = "unix:/run/user/1000/some/where/nram/7.socket";
  const PoolLook before = Look(10, {{name, Server(1, 100, kMiB), 0}, {"b:1", absl::UnavailableError("no route"), 0}});
  const PoolLook now =
      Look(12, {{name, Server(1, 300, 5 * kMiB), 3 * kNsPerMs}, {"b:1", absl::UnavailableError("no route"), 0}});
  std::string text;
  size_t longest = 0;
  for (const WatchLine& line : ToLines(Compare(before, now), 80)) {
    if (line.text.find("donors") == std::string::npos) longest = std::max(longest, line.text.size());
    absl::StrAppend(&text, line.text, "\n");
  }
  EXPECT_LE(longest, 80u) << text;
  EXPECT_THAT(text, HasSubstr("/nram/7.socket"));
  EXPECT_THAT(text, HasSubstr("2.00 MiB/s"));
  EXPECT_THAT(text, HasSubstr("3.0 ms"));
}

TEST(PoolWatchTest, ARestartedServerHasNoRate) {
  const PoolView view = Compare(Look(1, {{"a:1", Server(1, 100, 0), 0}}), Look(2, {{"a:1", Server(9, 5000, 0), 0}}));
  EXPECT_EQ(view.donors[0].state, "restarted");
  EXPECT_DOUBLE_EQ(view.rate.reads, 0);
}

TEST(PoolWatchTest, WhoIsAwayIsSeen) {
  const PoolLook before = Look(1, {{"a:1", Server(1, 0, 0), 0}, {"b:1", absl::UnavailableError("no route"), 0}});
  const PoolLook now = Look(2, {{"a:1", absl::UnavailableError("no route"), 0}, {"b:1", Server(2, 7, 0), 0}});
  const PoolView view = Compare(before, now);
  EXPECT_EQ(view.silent, 1u);
  EXPECT_EQ(view.donors[0].state, "away");
  EXPECT_DOUBLE_EQ(view.donors[1].rate.reads, 0);
  EXPECT_EQ(ToJson(view)["donors"][0]["error"], "no route");
  EXPECT_THAT(ToLines(view), Contains(Field(&WatchLine::tone, WatchLine::Tone::kBad)));
}

TEST(PoolWatchTest, StatesAreToldInTheOrderOfTheirWeight) {
  ServerStatistics server = Server(1, 0, 0);
  const auto state = [&] { return Compare(Look(1, {}), Look(2, {{"a:1", server, 0}})).donors[0].state; };
  EXPECT_EQ(state(), "up");
  server.capacity.pressed = true;
  EXPECT_EQ(state(), "pressed");
  server.capacity.draining = true;
  EXPECT_EQ(state(), "draining");
  server.capacity.leaving = true;
  EXPECT_EQ(state(), "leaving");
}

TEST(PoolWatchTest, ClientsAreSummedByDoor) {
  PoolLook before = Look(1, {}), now = Look(3, {});
  before.clients = {{"mount /a on n1, pid 1", {4 * kMiB, 1}}};
  now.clients = {{"mount /a on n1, pid 1", {2 * kMiB, 1}},
                 {"mount /b on n2, pid 2", {kMiB, 1}},
                 {"swap /run on n1, pid 3", {8 * kMiB, 1}},
                 {"python3 on n1, pid 4", {1, 1}}};
  const PoolView view = Compare(before, now);
  ASSERT_EQ(view.clients.size(), 4u);
  EXPECT_EQ(view.clients[0].door, "swap");
  EXPECT_DOUBLE_EQ(view.clients[1].stored_bytes_per_s, -static_cast<double>(kMiB));
  EXPECT_EQ(view.doors.at("mount").stored_bytes, 3 * kMiB);
  EXPECT_EQ(view.doors.at("program").stored_bytes, 1u);
  const nlohmann::json json = ToJson(view);
  EXPECT_EQ(json["doors"][0]["door"], "mount");
  EXPECT_EQ(json["doors"][0]["clients"], 2);
  EXPECT_FALSE(json.contains("clients_missing"));
  EXPECT_THAT(Text(view), HasSubstr("-1.00 MiB/s"));
  now.clients_missing = "too many regions";
  EXPECT_THAT(Text(Compare(before, now)), HasSubstr("unknown, too many regions"));
}

TEST(PoolWatchTest, DevicesHaveTheMeanTimeOfARequest) {
  PoolLook before = Look(1, {}), now = Look(2, {});
  before.devices["swap"] = *ParseDeviceStat("  10 0 80 5 20 0 160 40 0 0 0\n");
  now.devices["swap"] = *ParseDeviceStat("  30 0 240 25 20 0 160 40 0 0 0\n");
  const PoolView view = Compare(before, now);
  ASSERT_EQ(view.devices.size(), 1u);
  EXPECT_DOUBLE_EQ(view.devices[0].reads, 20);
  EXPECT_DOUBLE_EQ(view.devices[0].read_bytes, 160 * 512);
  EXPECT_DOUBLE_EQ(view.devices[0].read_ms, 1);
  EXPECT_DOUBLE_EQ(view.devices[0].write_ms, 0);
  EXPECT_EQ(ToJson(view)["swap_devices"][0]["read_ms"], 1.0);
  EXPECT_FALSE(ParseDeviceStat("1 2 3").has_value());
  EXPECT_FALSE(ParseDeviceStat("1 2 3 4 5 6 7 x").has_value());
}

TEST(PoolWatchTest, DoorsByTheNameThatTheyGiveThemselves) {
  EXPECT_EQ(DoorOf("mount /mnt on n1, pid 5"), "mount");
  EXPECT_EQ(DoorOf("swap"), "swap");
  EXPECT_EQ(DoorOf("mounter on n1"), "program");
  EXPECT_EQ(DoorOf(""), "program");
}

}  // namespace
}  // namespace nram
