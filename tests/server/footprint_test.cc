// The ceiling holds for the process, and bookkeeping stays small. Real servers run as processes of their own. Sizes are
// small here; the figures of docs/performance.md come from the same program with NRAM_FOOTPRINT_MIB=4096.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/tls/pump.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "client/transport/control_client.h"
#include "gtest/gtest.h"
#include "tests/util/http2_peer.h"
#include "tools/nram/local_pool.h"

namespace nram {
namespace {

class FootprintTest : public ::testing::Test {
 protected:
  void StartServer(uint64_t donate_bytes) {
    options_.directory = ::testing::TempDir() + "/footprint";
    options_.servers = 1;
    options_.server_flags = {"--donate=" + std::to_string(donate_bytes)};
    options_.die_with_parent = true;
    options_.tcp = true;
    auto servers = StartLocalPool(options_);
    ASSERT_TRUE(servers.ok()) << servers.status();
    servers_ = *servers;
    pid_ = servers->front().pid;
    PoolOptions pool;
    pool.servers = ParsePoolSpec("@" + options_.directory + "/pool").value();
    pool_ = Pool::Open(pool).value();
  }
  ~FootprintTest() override {
    pool_.reset();
    (void)StopLocalPool(options_.directory, 5'000);
  }
  // Until the server answers a call, and so has taken those before it. Where they have used up gRPC's allowance, gRPC
  // closes connections without a call, this one too, and ends some calls. The next call connects anew.
  void AwaitAnswer() {
    const int64_t deadline_ns = DeadlineAfterMs(20'000);
    absl::Status answer;
    do {
      answer = pool_->session(0)->control()->GetStatistics(deadline_ns).status();
    } while (absl::IsUnavailable(answer) && MonotonicNs() < deadline_ns);
    ASSERT_TRUE(answer.ok()) << answer;
  }
  uint64_t Resident() const { return ReadProcessMemory(pid_).resident_bytes; }
  // The largest resident memory so far.
  uint64_t Peak() const {
    const std::string status = ReadFile(absl::StrCat("/proc/", pid_, "/status")).value_or("");
    const size_t at = status.find("VmHWM:");
    return at == std::string::npos ? ~uint64_t{0} : std::strtoull(&status[at + 6], nullptr, 10) * kKiB;
  }

  LocalPoolOptions options_;
  std::vector<LocalServer> servers_;
  int pid_ = 0;
  std::unique_ptr<Pool> pool_;
};

std::vector<std::byte> RandomBytes(size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    memcpy(&data[i], &word, 8);
  }
  return data;
}

TEST_F(FootprintTest, TheCeilingHoldsForTheWholeProcess) {
  constexpr uint64_t kDonate = 192 * kMiB;
  StartServer(kDonate);
  const auto data = RandomBytes(kMiB);
  auto region = pool_->CreateRegion({.gc = true}).value();
  uint64_t at = 0;
  while (region->Write(at, data).ok()) at += data.size();
  // Then one chunk of each page, far apart, where the index is the largest.
  auto scattered = pool_->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Trim(0, at / 2).ok());
  for (uint64_t i = 0; scattered->Write(i * kSpanBytes, {data.data(), 512}).ok(); ++i) {
    ASSERT_LT(i, 10'000'000);
  }
  EXPECT_LE(Peak(), kDonate);
  std::cerr << "resident " << FormatByteSize(Resident()) << " of " << FormatByteSize(kDonate) << "\n";
}

// Of 64 leaves of the index one stays, alone in its page of the heap. Data takes the room of the others.
TEST_F(FootprintTest, TheCeilingHoldsWhenAScatteredIndexIsFreedAndTheRoomFilledAgain) {
  constexpr uint64_t kDonate = kGiB;  // the holes are more than the fixed part has to spare
  StartServer(kDonate);
  const auto data = RandomBytes(kMiB);
  auto scattered = pool_->CreateRegion({.gc = true}).value();
  uint64_t spans = 0;
  // The first of 64 has another number of chunks, so the frames of the others leave whole slabs.
  while (scattered->Write(spans * kSpanBytes, {data.data(), spans % 64 == 0 ? 512u : 1024u}).ok()) {
    ASSERT_LT(++spans, 10'000'000);
  }
  for (uint64_t first = 0; first < spans; first += 64) {
    ASSERT_TRUE(scattered->Trim((first + 1) * kSpanBytes, 63 * kSpanBytes).ok());
  }
  auto full = pool_->CreateRegion({.gc = true}).value();
  uint64_t at = 0;
  while (full->Write(at, data).ok()) at += data.size();
  std::cerr << spans << " spans, then " << FormatByteSize(at) << " of full pages; peak " << Peak() / kMiB << " of "
            << kDonate / kMiB << " MiB"
            << "\n";
  EXPECT_LE(Peak(), kDonate);
  std::vector<std::byte> kept(512);
  for (uint64_t span = 0; span < spans; span += 64) {
    ASSERT_TRUE(scattered->Read(span * kSpanBytes, absl::MakeSpan(kept)).ok());
    ASSERT_EQ(memcmp(kept.data(), data.data(), kept.size()), 0) << span;
  }
}

// Small files: many regions of few pages are made, 63 of 64 destroyed, and larger ones made in their place.
TEST_F(FootprintTest, TheCeilingHoldsForManySmallRegionsThatComeAndGo) {
  constexpr uint64_t kDonate = 128 * kMiB;
  StartServer(kDonate);
  const auto data = RandomBytes(64 * kKiB);
  std::vector<std::unique_ptr<Region>> regions;
  for (int round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < 20'000; ++i) {
      auto region = pool_->CreateRegion({.gc = true});
      if (!region.ok() || !(*region)->Write(0, {data.data(), kPageBytes * (1 + round)}).ok()) break;
      regions.push_back(*std::move(region));
    }
    size_t kept = 0;
    for (size_t i = 0; i < regions.size(); ++i) {
      if (i % 64 == 0) {
        regions[kept++] = std::move(regions[i]);
      } else {
        (void)regions[i]->Destroy();
      }
    }
    regions.resize(kept);
    EXPECT_LE(Peak(), kDonate) << round;
  }
}

// All that clients can make a server hold, at once: pages, regions, leases that end, names, connections, calls.
TEST_F(FootprintTest, TheCeilingHoldsAtThePeakOfAllAbuse) {
  constexpr uint64_t kDonate = 256 * kMiB;
  StartServer(kDonate);
  const uint64_t at_first = Peak();
  const int port =
      pool_->session(0)->control()->Hello(DeadlineAfterMs(20'000)).ok() ? servers_.front().control_port : 0;
  std::vector<std::unique_ptr<Http2Peer>> crowd;
  std::vector<std::thread> abusers;
  for (int i = 0; i < 3; ++i) {
    abusers.emplace_back([this] {
      PoolOptions options;
      options.servers = ParsePoolSpec("@" + options_.directory + "/pool").value();
      auto pool = Pool::Open(options).value();
      const auto data = RandomBytes(kMiB);
      auto region = pool->CreateRegion({.gc = true}).value();
      uint64_t at = 0;
      while (region->Write(at, data).ok()) at += data.size();
      (void)region->Trim(0, at / 2);
      auto scattered = pool->CreateRegion({.gc = true}).value();
      for (uint64_t k = 0; k < 20'000 && scattered->Write(k * kSpanBytes, {data.data(), 512}).ok(); ++k) {
      }
    });
    abusers.emplace_back([i, port] {
      const auto control = ControlClient::Create({"127.0.0.1", port, ""});
      for (uint64_t k = 1; k <= 5'000; ++k) {
        const LeaseId lease{(i + uint64_t{1}) << 32 | k};
        (void)control->GrantLease(lease, std::string(255, 'o'), 0, DeadlineAfterMs(20'000));
        CreateRegionArgs args;
        args.lease = lease;
        args.region = RegionId{Raw(lease)};
        args.epoch = Epoch{1};
        args.name = k % 4 == 0 ? absl::StrCat(std::string(200, 'n'), Raw(lease)) : "";
        args.incarnations.assign(k % 64 == 0 ? 4'000 : 0, 1);
        (void)control->CreateRegion(args, DeadlineAfterMs(20'000));
        (void)control->EndLease(lease, DeadlineAfterMs(20'000));
        if (k % 500 == 0) (void)control->ListRegions(false, false, DeadlineAfterMs(20'000));
      }
    });
  }
  const std::string large(60'000, 'x');
  // As many calls as the server has room for, and then as many again.
  for (int i = 0; i < 560; ++i) {
    crowd.push_back(std::make_unique<Http2Peer>(port));
    crowd.back()->Greet(i % 2 == 0 ? 0 : 65535);
    if (i % 3 != 0) crowd.back()->Call("Drain", "");
    for (int call = 0; i % 3 == 1 && call < 15; ++call) crowd.back()->Call("ListRegions", "");
    for (int call = 0; i % 3 == 2 && call < 15; ++call) crowd.back()->Call("CreateRegion", large, 50'000);
    if (crowd.size() > 280) crowd.erase(crowd.begin());
  }
  for (std::thread& abuser : abusers) abuser.join();
  std::cerr << "peak " << FormatByteSize(Peak()) << " of " << FormatByteSize(kDonate) << ", at first "
            << FormatByteSize(at_first) << "\n";
  EXPECT_LE(Peak(), kDonate);
}

// Calls that come faster than gRPC answers them, of clients that never hear how many it allows. (Without the meter's
// bound such a server took 330 MiB.)
TEST_F(FootprintTest, FloodsOfCallsStayBelowTheCeiling) {
  constexpr uint64_t kDonate = 128 * kMiB;
  constexpr int kCalls = 10'000;
  StartServer(kDonate);
  for (const bool bad_te : {false, true}) {
    // More than the meter lets through at once, and not quite as many.
    for (const int at_once : {50, 20}) {
      std::vector<std::thread> peers;
      for (int i = 0; i < 4; ++i) {
        peers.emplace_back([&, port = servers_.front().control_port] {
          for (int again = 0; again < 10; ++again) {
            Http2Peer peer(port);
            peer.Greet(65'535);
            peer.Flood(kCalls, at_once, bad_te);
          }
        });
      }
      for (std::thread& peer : peers) peer.join();
      ASSERT_NO_FATAL_FAILURE(AwaitAnswer());
      std::cerr << "peak " << FormatByteSize(Peak()) << " of " << FormatByteSize(kDonate) << "\n";
      EXPECT_LE(Peak(), kDonate) << "bad_te: " << bad_te << ", at once: " << at_once;
    }
  }
}

// A request is large; its answer is small and never taken. gRPC keeps the call, but the server must not keep the
// request.
TEST_F(FootprintTest, RequestsWhoseAnswersAreNotTakenAreNotKept) {
  StartServer(512 * kMiB);
  const uint64_t before = Peak();
  constexpr int kPeers = 240;
  constexpr int kCalls = 12;
  // An unknown field of 50,000 bytes.
  const std::string drain = absl::StrCat("\x7A\xD0\x86\x03", std::string(50'000, 'x'));
  std::vector<std::unique_ptr<Http2Peer>> crowd;
  for (int i = 0; i < kPeers; ++i) {
    crowd.push_back(std::make_unique<Http2Peer>(servers_.front().control_port));
    crowd.back()->Greet(0);
  }
  // The peers take turns, so that the server has taken a peer's last call before its next one arrives.
  int sent = 0;
  for (int call = 0; call < kCalls; ++call) {
    for (const auto& peer : crowd) {
      peer->Call("Drain", drain);
      if (++sent % 16 == 0) {
        ASSERT_NO_FATAL_FAILURE(AwaitAnswer());
      }
    }
  }
  const uint64_t more = Peak() - before;
  std::cerr << "peak grew by " << FormatByteSize(more) << "\n";
  EXPECT_GT(more, 4 * kMiB) << "the calls did not come";
  // The price of the connections, the pump's included, and gRPC's allowance for all of them.
  EXPECT_LT(more, kPeers * (64 * kKiB + Pump::LinkBytes(/*is_tls=*/false)) + 8 * kMiB);
}

TEST_F(FootprintTest, FullPagesCostLittleBesideThemselves) {
  const char* given = std::getenv("NRAM_FOOTPRINT_MIB");
  const uint64_t mib = given != nullptr ? std::strtoull(given, nullptr, 10) : 256;
  StartServer((mib + 256) * kMiB);
  const uint64_t before = Resident();
  const auto data = RandomBytes(kMiB);
  auto region = pool_->CreateRegion({.gc = true}).value();
  for (uint64_t at = 0; at < mib * kMiB; at += kMiB) ASSERT_TRUE(region->Write(at, data).ok());
  const auto statistics = pool_->session(0)->control()->GetStatistics(DeadlineAfterMs(5'000)).value();
  uint64_t index = 0, pages = 0;
  for (const auto& [name, value] : statistics.counters) {
    if (name == "index_bytes") index = value;
    if (name == "pages") pages = value;
  }
  const double beyond = static_cast<double>(Resident()) - mib * kMiB;
  std::cerr << "data " << mib << " MiB, resident before " << FormatByteSize(before) << ", beyond the data "
            << FormatByteSize(beyond) << " (" << 100.0 * beyond / (mib * kMiB) << " %), index " << double(index) / pages
            << " B a page, client " << double(region->memory_bytes()) / mib << " B a MiB\n";
  EXPECT_EQ(pages, mib * kMiB / kPageBytes);
  EXPECT_LE(index, 16 * pages);
  EXPECT_LE(region->memory_bytes(), 16 * mib + 1024);
  // The limit of 1 % all in is for 4 GiB; the process itself does not shrink with the data.
  EXPECT_LE(beyond, 0.01 * std::max<uint64_t>(mib, 4096) * kMiB);
}

}  // namespace
}  // namespace nram
