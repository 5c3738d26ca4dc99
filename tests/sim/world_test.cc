#include "tests/sim/world.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/episode.h"
#include "tests/sim/network.h"

namespace nram::sim {
namespace {

void RunFor(World* world, int64_t ns) {
  const int64_t until_ns = world->NowNs() + ns;
  while (world->Step(until_ns)) {
  }
}

TEST(WorldTest, EventsHappenInOrder) {
  World world(1);
  std::string seen;
  world.After(20, World::kNobody, [&] { seen += "c"; });
  world.After(10, World::kNobody, [&] { seen += "a"; });
  world.After(10, World::kNobody, [&] { seen += "b"; });
  const World::Timer cancelled = world.After(15, World::kNobody, [&] { seen += "x"; });
  world.Cancel(cancelled);
  RunFor(&world, 100);
  EXPECT_EQ(seen, "abc");
}

TEST(WorldTest, AFrozenHostsEventsWaitAndADeadOnesAreDropped) {
  World world(1);
  const HostId host = world.AddHost("host");
  std::string seen;
  world.Freeze(host);
  world.After(10, host, [&] { seen += "a"; });
  RunFor(&world, kNsPerSecond);
  EXPECT_EQ(seen, "");
  EXPECT_EQ(world.frozen_ns(host), kNsPerSecond);
  world.Thaw(host);
  RunFor(&world, kNsPerSecond);
  EXPECT_EQ(seen, "a");
  world.After(10, host, [&] { seen += "b"; });
  world.EndLife(host);
  world.After(10, host, [&] { seen += "c"; });
  RunFor(&world, kNsPerSecond);
  EXPECT_EQ(seen, "ac");
}

// Keeps all received bytes.
class Sink : public Network::Receiver, public Network::Listener {
 public:
  void OnConnected() override { connected = true; }
  void OnBytes(absl::Span<const std::byte> bytes) override {
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void OnEnd() override { ended = true; }
  Network::Receiver* Accept(Network::ConnectionId) override { return this; }

  bool connected = false;
  bool ended = false;
  std::string all;
};

class NetworkTest : public ::testing::Test {
 protected:
  void SetUp() override { network_.Listen(server_, &sink_); }
  World world_{7};
  Network network_{&world_};
  const HostId client_ = world_.AddHost("client");
  const HostId server_ = world_.AddHost("server");
  Sink source_;
  Sink sink_;
};

TEST_F(NetworkTest, BytesComeInOrderAndTheEndBehindThem) {
  const auto id = network_.Connect(client_, server_, &source_);
  std::string sent;
  for (int i = 0; i < 500; ++i) {
    const std::string message(1 + i % 7, static_cast<char>('a' + i % 26));
    sent += message;
    network_.Send(id, Network::kClient, message);
  }
  network_.Close(id, Network::kClient);
  EXPECT_FALSE(sink_.ended);
  RunFor(&world_, kNsPerSecond);
  EXPECT_EQ(sink_.all, sent);
  EXPECT_TRUE(sink_.ended);
  network_.Close(id, Network::kServer);
  EXPECT_EQ(network_.connection_count(), 0u);
}

TEST_F(NetworkTest, ACutHoldsBackAndHealingBringsIt) {
  const auto id = network_.Connect(client_, server_, &source_);
  RunFor(&world_, kNsPerSecond);
  EXPECT_TRUE(source_.connected);
  network_.Cut(client_, server_);
  network_.Send(id, Network::kClient, "one");
  RunFor(&world_, kNsPerSecond);
  EXPECT_EQ(sink_.all, "");
  network_.Heal(client_, server_);
  network_.Send(id, Network::kClient, "two");
  RunFor(&world_, kNsPerSecond);
  EXPECT_EQ(sink_.all, "onetwo");
}

TEST(EpisodeTest, TheSameSeedIsTheSameEpisode) {
  EpisodeOptions options;
  options.operations = 1000;
  std::vector<uint64_t> digests;
  for (const uint64_t seed : {3, 3, 4}) {
    options.seed = seed;
    const EpisodeResult result = RunRawEpisode(options);
    EXPECT_EQ(result.failure, "");
    digests.push_back(result.digest);
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
}

}  // namespace
}  // namespace nram::sim
