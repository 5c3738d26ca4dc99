// Named regions of two copies: owners begin, end in good order or not, and others attach their regions, while servers
// end, start again and are out of reach.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/byte_relay.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPatienceMs = 60'000;
constexpr const char* kName = "kept";

bool Await(absl::FunctionRef<bool()> done) { return PollUntil(DeadlineAfterMs(kPatienceMs), 5, done); }

// A client with a network of its own.
class Client {
 public:
  explicit Client(const TestPool& servers, std::optional<int64_t> open_timeout_ms = std::nullopt) {
    PoolOptions options = servers.Options();
    if (open_timeout_ms.has_value()) options.open_timeout_ms = *open_timeout_ms;
    options.ExpectCopies();
    options.replace_after_ms = 300;
    options.repair_bytes_per_s = PoolOptions::kRepairUnbounded;
    options.io_timeout_ms = 10'000;
    options.reserve_step_bytes = kMiB;
    for (Endpoint& server : options.servers) {
      control_.push_back(std::make_unique<ByteRelay>(server.port));
      server.port = control_.back()->port();
    }
    down_.resize(options.servers.size());
    options.reroute_data_for_test = [this](size_t server, const Endpoint& target) {
      MutexLock lock(&mu_);
      std::unique_ptr<FaultyRelay>& relay = data_[{server, target.ToString()}];
      if (relay == nullptr) relay = std::make_unique<FaultyRelay>(target, 1);
      relay->SetDown(down_[server]);
      return relay->endpoint();
    };
    pool_ = TestPool::Open(options);
  }
  ~Client() {
    Thaw();
    region_ = nullptr;
    pool_ = nullptr;
  }

  // The server's data plane is out of reach.
  void SetDown(size_t server, bool down) {
    MutexLock lock(&mu_);
    down_[server] = down;
    for (auto& [where, relay] : data_) {
      if (where.first == server) relay->SetDown(down);
    }
  }
  bool is_down(size_t server) {
    MutexLock lock(&mu_);
    return down_[server];
  }
  // From here on the client's messages do not reach a server.
  void Crash() {
    for (auto& relay : control_) relay->Hold(true);
    for (size_t i = 0; i < control_.size(); ++i) SetDown(i, true);
  }
  // The client goes on as before.
  void Thaw() {
    for (size_t i = 0; i < control_.size(); ++i) {
      control_[i]->Hold(false);
      SetDown(i, false);
    }
  }
  absl::Status Create() {
    absl::StatusOr<std::unique_ptr<Region>> region =
        pool_->CreateRegion({.gc = false, .copies = 2, .name = kName, .size_bytes = 64 * kMiB});
    if (region.ok()) region_ = *std::move(region);
    return region.status();
  }
  absl::Status Attach(AttachMode mode = AttachMode::kTakeOver, AttachLoss loss = AttachLoss::kRefuse) {
    absl::StatusOr<std::unique_ptr<Region>> region = pool_->AttachRegion(kName, mode, loss);
    if (region.ok()) region_ = *std::move(region);
    return region.status();
  }
  void Leave() { region_ = nullptr; }
  Region* region() { return region_.get(); }
  Pool* pool() { return pool_.get(); }

 private:
  std::vector<std::unique_ptr<ByteRelay>> control_;
  Mutex mu_;
  std::vector<bool> down_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<size_t, std::string>, std::unique_ptr<FaultyRelay>> data_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
};

class NamedCopiesTest : public ::testing::Test {
 protected:
  explicit NamedCopiesTest(int servers = 3)
      : servers_(servers, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended) {
    owner_ = NewClient();
  }

  // It has all running servers. The client would wait for a dead one as long as for a slow one.
  std::unique_ptr<Client> NewClient() {
    std::vector<size_t> running;
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (servers_.runs(static_cast<int>(i))) running.push_back(i);
    }
    if (running.size() == servers_.size()) return std::make_unique<Client>(servers_);
    auto client = std::make_unique<Client>(servers_, /*open_timeout_ms=*/1'000);
    for (const size_t i : running) EXPECT_TRUE(Await([&] { return client->pool()->session(i)->up(); })) << i;
    return client;
  }
  void Restart(int server) {
    servers_.StopServer(server);
    servers_.StartServer(server);
  }
  void Write(uint64_t offset, const std::string& data) {
    const absl::Status status = owner_->region()->Write(offset, Bytes(data));
    ASSERT_TRUE(status.ok()) << status;
    if (model_.size() < offset + data.size()) model_.resize(offset + data.size(), '\0');
    model_.replace(offset, data.size(), data);
  }
  void Fill(uint64_t spans) {
    ASSERT_TRUE(owner_->Create().ok());
    for (uint64_t span = 0; span < spans; ++span) Write(span * kMiB, Pattern(kMiB, span));
  }
  void Check(Region* region) {
    for (uint64_t at = 0; at < model_.size(); at += kMiB) {
      const auto back = Read(region, at, kMiB);
      ASSERT_TRUE(back.ok()) << "at " << at << ": " << back.status();
      ASSERT_TRUE(*back == model_.substr(at, kMiB)) << "wrong bytes in the span at " << at;
    }
  }
  // All spans have two copies in sync on servers that are there, and the pool knows it.
  void AwaitWhole() {
    const auto whole = [&] {
      const CopiesReport report = owner_->pool()->copies();
      return report.in_sync == model_.size() / kMiB &&
             report.degraded + report.repairing + report.lost + report.moving == 0;
    };
    ASSERT_TRUE(Await(whole)) << owner_->pool()->copies().degraded << " are degraded, "
                              << owner_->pool()->copies().in_sync << " in sync";
  }
  uint64_t PagesAt(int server) { return static_cast<uint64_t>(servers_.server(server).store().counters().pages); }
  // Another client has the region from now on. The former one remains if its region does.
  absl::Status HandOver(AttachMode mode, AttachLoss loss = AttachLoss::kRefuse) {
    if (owner_->region() != nullptr) former_.push_back(std::move(owner_));
    owner_ = nullptr;
    owner_ = NewClient();
    return owner_->Attach(mode, loss);
  }
  // A client dies in the middle of a takeover: one server has a new owner, and the others have not.
  void BeginTakeOver(int server) {
    PageStore& store = servers_.server(server).store();
    const auto now = store.Attach(nullptr, {store.FindByName(0, kName), 0}, 0, /*force=*/false);
    ASSERT_TRUE(now.ok()) << now.status();
    const auto control = ControlClient::Create(servers_.Options().servers[static_cast<size_t>(server)]);
    const int64_t deadline_ns = DeadlineAfterMs(kPatienceMs);
    const LeaseId lease{4711};
    ASSERT_TRUE(control->GrantLease(lease, "begins", 0, deadline_ns).ok());
    const AttachRegionArgs args{lease, now->id, "", false, Epoch{now->epoch + 1}, /*force=*/true};
    const absl::Status status = control->AttachRegion(args, deadline_ns).status();
    ASSERT_TRUE(status.ok()) << status;
  }
  // Waits until all these servers know these as the members, in their present lives.
  void AwaitMembers(const std::vector<int>& members) {
    std::vector<uint64_t> incarnations;
    for (const int i : members) incarnations.push_back(servers_.server(i).incarnation());
    std::sort(incarnations.begin(), incarnations.end());
    for (const int i : members) {
      ASSERT_TRUE(Await([&] {
        auto known =
            servers_.server(i).store().Attach(nullptr, {servers_.server(i).store().FindByName(0, kName), 0}, 0, false);
        if (!known.ok()) return false;
        std::sort(known->manifest.incarnations.begin(), known->manifest.incarnations.end());
        return known->manifest.incarnations == incarnations;
      })) << "server "
          << i << " does not get the view";
    }
  }

  TestPool servers_;
  std::unique_ptr<Client> owner_;
  std::vector<std::unique_ptr<Client>> former_;
  std::string model_;
};

class NamedCopiesOnTwoTest : public NamedCopiesTest {
 protected:
  NamedCopiesOnTwoTest() : NamedCopiesTest(2) {}
};

TEST_F(NamedCopiesTest, WhatIsLeftInGoodOrderOutlivesAServer) {
  ASSERT_NO_FATAL_FAILURE(Fill(12));
  owner_->Leave();
  Restart(1);
  {
    Client reader(servers_);
    const absl::Status status = reader.Attach(AttachMode::kReadOnly);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_NO_FATAL_FAILURE(Check(reader.region()));
  }
  const absl::Status status = HandOver(AttachMode::kOwner);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(owner_->region()->size_bytes(), 64 * kMiB);
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
  // All spans have two copies again, the former server's new life among their servers.
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  Write(3 * kMiB + 4096, Pattern(5 * kPageBytes, 77));
  owner_->Leave();
  Restart(2);
  ASSERT_TRUE(HandOver(AttachMode::kOwner).ok());
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesTest, OneThatIsOnlyAwayIsNotDoneWithout) {
  ASSERT_NO_FATAL_FAILURE(Fill(4));
  owner_->Leave();
  servers_.StopServer(1);
  absl::Status status = HandOver(AttachMode::kOwner);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not answer"));
  servers_.StartServer(1);  // now its emptiness is known
  ASSERT_TRUE(Await([&] { return (status = owner_->Attach(AttachMode::kOwner)).ok(); })) << status;
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesTest, AnOwnerThatDiesLeavesAllItHasAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(Fill(8));
  owner_->Crash();
  const absl::Status status = HandOver(AttachMode::kTakeOver);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
  Write(kMiB, Pattern(kMiB, 99));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesTest, AnOwnerAndAServerAreTooMuchUnlessLossIsAccepted) {
  ASSERT_NO_FATAL_FAILURE(Fill(8));
  owner_->Crash();
  Restart(0);
  absl::Status status = HandOver(AttachMode::kTakeOver);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("only if loss is accepted"));
  status = owner_->Attach(AttachMode::kTakeOver, AttachLoss::kAccept);
  ASSERT_TRUE(status.ok()) << status;
  // Here nothing was lost.
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
}

TEST_F(NamedCopiesTest, AServerThatStaysAwayIsNoMemberAnyMore) {
  ASSERT_NO_FATAL_FAILURE(Fill(8));
  owner_->SetDown(2, true);
  for (uint64_t span = 0; span < 8; ++span) Write(span * kMiB, Pattern(kMiB, 40 + span));
  ASSERT_NO_FATAL_FAILURE(AwaitMembers({0, 1}));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  owner_->Crash();
  servers_.StopServer(2);
  const absl::Status status = HandOver(AttachMode::kTakeOver);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesOnTwoTest, AServerThatBeginsAgainIsAMemberAgain) {
  ASSERT_NO_FATAL_FAILURE(Fill(8));
  for (int server = 0; server < 2; ++server) {
    Restart(server);
    Write(kMiB * static_cast<uint64_t>(server), Pattern(kMiB, 50 + server));
    ASSERT_NO_FATAL_FAILURE(AwaitMembers({0, 1}));
    // A report from before the restart says that all is well.
    ASSERT_TRUE(Await([&] { return PagesAt(0) == PagesAt(1) && PagesAt(server) == model_.size() / kPageBytes; }))
        << PagesAt(0) << " and " << PagesAt(1) << " pages";
    ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  }
  owner_->Crash();
  absl::Status status = HandOver(AttachMode::kTakeOver);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  // An owner that has missed a server for a moment may have removed it from its members.
  ASSERT_NO_FATAL_FAILURE(AwaitMembers({0, 1}));
  owner_->Leave();
  Restart(0);
  status = HandOver(AttachMode::kOwner);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesOnTwoTest, WhatIsLostIsNeverTakenForAHole) {
  ASSERT_NO_FATAL_FAILURE(Fill(3));
  Restart(0);
  Restart(1);
  absl::Status status;
  ASSERT_TRUE(Await([&] { return absl::IsDataLoss(status = Read(owner_->region(), 0, kPageBytes).status()); }))
      << status;
  owner_->Leave();
  status = HandOver(AttachMode::kOwner);
  EXPECT_FALSE(status.ok());
}

TEST_F(NamedCopiesOnTwoTest, AStaleCopyAloneIsNotBelieved) {
  ASSERT_NO_FATAL_FAILURE(Fill(3));
  owner_->SetDown(0, true);
  Write(0, Pattern(kMiB, 60));  // the copy on server 0 misses it
  owner_->Crash();
  Restart(1);
  absl::Status status = HandOver(AttachMode::kTakeOver);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(NamedCopiesTest, AReaderIsToldWhenTheOwnerHasMovedCopies) {
  ASSERT_NO_FATAL_FAILURE(Fill(6));
  Client reader(servers_);
  ASSERT_TRUE(reader.Attach(AttachMode::kReadOnly).ok());
  ASSERT_NO_FATAL_FAILURE(Check(reader.region()));
  owner_->SetDown(0, true);
  for (uint64_t span = 0; span < 6; ++span) Write(span * kMiB, Pattern(kMiB, 70 + span));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  size_t refused = 0;
  for (uint64_t at = 0; at < model_.size(); at += kMiB) {
    const auto back = Read(reader.region(), at, kMiB, {.timeout_ms = 3'000});
    if (back.ok()) {
      ASSERT_TRUE(*back == model_.substr(at, kMiB)) << "old bytes at " << at;
    } else {
      ++refused;
      ASSERT_TRUE(absl::IsUnavailable(back.status())) << back.status();
    }
  }
  EXPECT_GT(refused, 0u);
  ASSERT_TRUE(reader.Attach(AttachMode::kReadOnly).ok());
  ASSERT_NO_FATAL_FAILURE(Check(reader.region()));
}

TEST_F(NamedCopiesTest, DestroyedItIsGoneEverywhere) {
  ASSERT_NO_FATAL_FAILURE(Fill(3));
  ASSERT_TRUE(owner_->region()->Destroy().ok());
  owner_->Leave();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Raw(servers_.server(i).store().FindByName(0, kName)), 0u) << i;
  EXPECT_TRUE(absl::IsNotFound(owner_->Attach()));
  ASSERT_TRUE(owner_->Create().ok());
}

TEST_F(NamedCopiesTest, TheOwnerDoesNotDestroyWhatIsBeingTakenOver) {
  ASSERT_NO_FATAL_FAILURE(Fill(3));
  ASSERT_NO_FATAL_FAILURE(BeginTakeOver(0));
  for (uint64_t span = 0; span < 3; ++span) (void)owner_->region()->Write(span * kMiB, Bytes(Pattern(kMiB, 90 + span)));
  ASSERT_TRUE(owner_->region()->map()->is_fenced());
  EXPECT_TRUE(absl::IsFailedPrecondition(owner_->region()->Destroy()));
  for (int i = 0; i < 3; ++i) EXPECT_NE(Raw(servers_.server(i).store().FindByName(0, kName)), 0u) << i;
}

TEST_F(NamedCopiesTest, RepairDoesNotDestroyWhatIsBeingTakenOver) {
  ASSERT_NO_FATAL_FAILURE(Fill(12));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  ASSERT_NO_FATAL_FAILURE(BeginTakeOver(0));
  const auto control = ControlClient::Create(servers_.Options().servers[1]);
  ASSERT_TRUE(Await([&] { return control->Drain(true, /*leaves=*/true, DeadlineAfterMs(kPatienceMs)).ok(); }));
  // The copy that must move has its other copy on the server that was taken over.
  ASSERT_TRUE(Await([&] { return owner_->region()->map()->is_fenced(); }));
  ASSERT_TRUE(HandOver(AttachMode::kTakeOver).ok());
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesTest, AFormerOwnerDestroysNothing) {
  ASSERT_NO_FATAL_FAILURE(Fill(6));
  owner_->Crash();
  ASSERT_TRUE(HandOver(AttachMode::kTakeOver).ok());
  Restart(1);
  ASSERT_NO_FATAL_FAILURE(AwaitMembers({0, 1, 2}));
  for (uint64_t span = 0; span < 6; ++span) Write(span * kMiB, Pattern(kMiB, 80 + span));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  // The former one finds a server that seems to lack its region.
  former_.back()->Thaw();
  ASSERT_TRUE(Await([&] { return former_.back()->region()->map()->is_fenced(); }));
  EXPECT_TRUE(absl::IsFailedPrecondition(former_.back()->region()->Write(0, Bytes(Pattern(kMiB, 90)))));
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
  owner_->Crash();
  ASSERT_TRUE(HandOver(AttachMode::kTakeOver).ok());
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

TEST_F(NamedCopiesOnTwoTest, APageThatIsDamagedOnTheLastCopyStaysAnError) {
  ASSERT_NO_FATAL_FAILURE(Fill(2));
  // The copy on server 0 is damaged, and the other one is lost.
  const RegionId id = owner_->region()->id();
  const uint64_t page = 5;
  bool flipped = false;
  const PageStore::ReadArgs where{
      .region = {id, 0}, .range = {page * kChunksPerPage, kChunksPerPage}, .generation = std::nullopt};
  servers_.server(0).store().ReadInPlace(where, [&](const PageStore::Stored& stored) {
    if (stored.chunks.empty()) return;
    *static_cast<uint8_t*>(stored.chunks[0].iov_base) ^= 1;
    flipped = true;
  });
  ASSERT_TRUE(flipped);
  Restart(1);
  absl::Status status;
  ASSERT_TRUE(Await([&] {
    return absl::IsDataLoss(status = Read(owner_->region(), page * kPageBytes, kPageBytes).status());
  })) << status;
  ASSERT_NO_FATAL_FAILURE(AwaitMembers({0, 1}));
  owner_->Crash();
  status = HandOver(AttachMode::kTakeOver);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(absl::IsDataLoss(status = Read(owner_->region(), page * kPageBytes, kPageBytes).status())) << status;
  // A whole write mends it, and then the span gets its second copy.
  Write(page * kPageBytes, Pattern(kPageBytes, 91));
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  ASSERT_NO_FATAL_FAILURE(Check(owner_->region()));
}

// Random faults, one at a time, and owners that change. Each new owner reads the last acknowledged data.
class NamedCopiesRandomTest : public NamedCopiesTest {
 protected:
  static constexpr uint64_t kSpans = 6;
  static constexpr uint64_t kPages = kSpans * kPagesPerSpan;

  // The contents that a page may have: one of these patterns, because some writes have failed.
  std::map<uint64_t, std::vector<uint64_t>> pages_;
  std::mt19937_64 random_{TestSeed()};
  uint64_t next_ = 1;

  uint64_t Random(uint64_t below) { return random_() % below; }
  static std::string PageOf(uint64_t pattern) {
    return pattern == 0 ? std::string(kPageBytes, '\0') : Pattern(kPageBytes, pattern);
  }

  void WriteSome() {
    const uint64_t first = Random(kPages);
    const uint64_t count = std::min<uint64_t>(1 + Random(Random(4) == 0 ? 300 : 8), kPages - first);
    const bool trims = Random(6) == 0;
    std::string data;
    const uint64_t from = next_;
    for (uint64_t i = 0; i < count && !trims; ++i) data += PageOf(next_++);
    const absl::Status status = trims ? owner_->region()->Trim(first * kPageBytes, count * kPageBytes)
                                      : owner_->region()->Write(first * kPageBytes, Bytes(data));
    for (uint64_t i = 0; i < count; ++i) {
      std::vector<uint64_t>& may_be = pages_[first + i];
      if (may_be.empty()) may_be = {0};
      if (status.ok()) may_be.clear();
      may_be.push_back(trims ? 0 : from + i);
    }
    ASSERT_TRUE(status.ok()) << status;  // one fault at a time costs nothing
  }
  void CheckAll() {
    for (uint64_t page = 0; page < kPages; ++page) {
      const auto back = Read(owner_->region(), page * kPageBytes, kPageBytes);
      ASSERT_TRUE(back.ok()) << "page " << page << ": " << back.status();
      const std::vector<uint64_t> may_be = pages_.contains(page) ? pages_[page] : std::vector<uint64_t>{0};
      const bool is_right =
          std::any_of(may_be.begin(), may_be.end(), [&](uint64_t pattern) { return *back == PageOf(pattern); });
      ASSERT_TRUE(is_right) << "wrong bytes in page " << page;
    }
  }
  void AwaitQuiet() {
    const CopyMap* const copies = owner_->region()->map()->copies();
    ASSERT_TRUE(Await([&] {
      for (uint64_t span = copies->NextSpan(0); span != UINT64_MAX; span = copies->NextSpan(span + 1)) {
        if (copies->ServersOf(span).size() != 2) return false;
      }
      return true;
    }));
    // Every running server is a member in the owner's view.
    ASSERT_TRUE(Await([&] {
      for (int i = 0; i < 3; ++i) {
        const CopyMap::Life life{static_cast<uint16_t>(i), servers_.server(i).incarnation()};
        if (!owner_->region()->map()->copies()->IsMember(life)) return false;
      }
      return true;
    }));
  }
};

TEST_F(NamedCopiesRandomTest, WhoeverAttachesReadsWhatWasAcknowledged) {
  constexpr int kRounds = 20;
  ASSERT_TRUE(owner_->Create().ok());
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const int server = static_cast<int>(Random(3));
    for (uint64_t i = Random(12); i > 0; --i) ASSERT_NO_FATAL_FAILURE(WriteSome());
    // One server fails, in one way, and the owner goes on.
    const uint64_t fault = Random(4);
    if (fault == 0) Restart(server);
    if (fault == 1) owner_->SetDown(server, true);
    for (uint64_t i = Random(20); i > 0; --i) ASSERT_NO_FATAL_FAILURE(WriteSome());
    const bool heals = Random(3) != 0;
    if (heals && fault == 1) owner_->SetDown(server, false);
    for (uint64_t i = Random(6); i > 0; --i) ASSERT_NO_FATAL_FAILURE(WriteSome());
    if (heals && Random(2) == 0) {
      ASSERT_NO_FATAL_FAILURE(AwaitQuiet());
    }
    // The owner ends; the next one finds another network.
    const bool crashes = Random(2) == 0;
    if (crashes) {
      owner_->Crash();
    } else {
      owner_->Leave();
    }
    // The owner has left in good order, and with all copies: another server may be lost now.
    const bool spare = !crashes && heals && fault > 1;
    if (spare && Random(2) == 0) Restart(static_cast<int>(Random(3)));
    const absl::Status status = HandOver(AttachMode::kTakeOver);
    if (absl::IsDataLoss(status)) {
      // The owner has died before it could report the lost server.
      ASSERT_TRUE(fault == 0 || spare) << status;
      ASSERT_FALSE(spare) << status;
      ASSERT_TRUE(owner_->Attach(AttachMode::kTakeOver, AttachLoss::kAccept).ok());
    } else {
      ASSERT_TRUE(status.ok()) << status;
    }
    // Writes of a former owner are not seen, and are not acknowledged.
    const bool haunts = crashes && Random(2) == 0;
    if (haunts) former_.back()->Thaw();
    for (uint64_t i = haunts ? 4 : 0; i > 0; --i) {
      const std::string data = PageOf(next_++);
      ASSERT_FALSE(former_.back()->region()->Write(Random(kPages) * kPageBytes, Bytes(data)).ok());
      ASSERT_NO_FATAL_FAILURE(WriteSome());
    }
    ASSERT_NO_FATAL_FAILURE(CheckAll());
    ASSERT_NO_FATAL_FAILURE(AwaitQuiet());
    if (former_.size() > 2) former_.erase(former_.begin());
  }
}

}  // namespace
}  // namespace nram
