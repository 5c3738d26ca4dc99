#ifndef NRAM_TESTS_POOL_VERSIONS_FIXTURE_H_
#define NRAM_TESTS_POOL_VERSIONS_FIXTURE_H_

// A region for versions on three real servers, with one copy and three, plain and sealed; its owner and an observer.

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {

inline constexpr int64_t kPatienceMs = 60'000;
inline constexpr const char* kName = "kept";
inline constexpr uint64_t kSpans = 4;

inline bool Await(absl::FunctionRef<bool()> done) { return PollUntil(DeadlineAfterMs(kPatienceMs), 5, done); }

struct Kind {
  int copies;
  bool sealed;
};

// A client whose data can be held back on its way to a server.
class Client {
 public:
  Client(const TestPool& servers, const std::string& key_file) {
    PoolOptions options = servers.Options();
    options.ExpectCopies();
    options.replace_after_ms = 60'000;
    options.repair_bytes_per_s = PoolOptions::kRepairUnbounded;
    options.reserve_step_bytes = kMiB;
    options.key_file = key_file;
    options.seal = key_file.empty() ? Seal::kNo : Seal::kYes;
    options.reroute_data_for_test = [this](size_t server, const Endpoint& target) {
      MutexLock lock(&mu_);
      std::unique_ptr<FaultyRelay>& relay = data_[{server, target.ToString()}];
      if (relay == nullptr) relay = std::make_unique<FaultyRelay>(target, 1);
      return relay->endpoint();
    };
    pool_ = TestPool::Open(options);
  }
  ~Client() {
    region_ = nullptr;
    pool_ = nullptr;
  }
  // Data sent to the server waits on its way, and arrives later.
  void Hold(size_t server, bool hold) {
    MutexLock lock(&mu_);
    for (auto& [where, relay] : data_) {
      if (where.first == server) relay->Hold(hold);
    }
  }
  Pool* pool() { return pool_.get(); }
  Region* region() { return region_.get(); }
  void Take(std::unique_ptr<Region> region) { region_ = std::move(region); }

 private:
  Mutex mu_;
  std::map<std::pair<size_t, std::string>, std::unique_ptr<FaultyRelay>> data_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
};

class VersionsTest : public ::testing::TestWithParam<Kind> {
 protected:
  VersionsTest() {
    const char* const given = getenv("TEST_TMPDIR");
    std::string directory = absl::StrCat(given == nullptr ? "/tmp" : given, "/versions-XXXXXX");
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    if (GetParam().sealed) {
      key_file_ = directory + "/key";
      EXPECT_TRUE(WriteFileAtomically(key_file_, std::string(32, 'k')).ok());
      EXPECT_EQ(chmod(key_file_.c_str(), 0600), 0);
    }
    owner_ = NewClient();
    auto region = owner_->pool()->CreateRegion(
        {.gc = false, .copies = copies(), .name = kName, .size_bytes = 64 * kMiB, .versioned = true});
    EXPECT_TRUE(region.ok()) << region.status();
    if (region.ok()) owner_->Take(*std::move(region));
    model_.resize(kSpans * kMiB);
  }
  static int copies() { return GetParam().copies; }
  std::unique_ptr<Client> NewClient() { return std::make_unique<Client>(servers_, key_file_); }
  Region* region() { return owner_->region(); }

  void Write(uint64_t offset, const std::string& data) {
    const absl::Status status = region()->Write(offset, Bytes(data));
    ASSERT_TRUE(status.ok()) << status;
    model_.replace(offset, data.size(), data);
  }
  void Trim(uint64_t offset, uint64_t bytes) {
    const absl::Status status = region()->Trim(offset, bytes);
    ASSERT_TRUE(status.ok()) << status;
    memset(&model_[offset], 0, bytes);
  }
  // All but the last span.
  void Fill(uint64_t seed = 0) {
    for (uint64_t span = 0; span + 1 < kSpans; ++span) Write(span * kMiB, Pattern(kMiB, 10 * seed + span));
  }
  VersionPlace Snapshot(VersionKeep keep = VersionKeep::kUntilDropped) {
    const auto sealed = region()->Snapshot(keep);
    EXPECT_TRUE(sealed.ok()) << sealed.status();
    if (!sealed.ok()) return {};
    return PlaceOf(*sealed);
  }
  VersionPlace PlaceOf(const SealedVersion& sealed) {
    return {kName, region()->id(), sealed.number, sealed.incarnations, sealed.least_in_sync};
  }
  static void Check(Region* region, const std::string& model) {
    for (uint64_t at = 0; at < model.size(); at += kMiB) {
      const auto back = Read(region, at, kMiB);
      ASSERT_TRUE(back.ok()) << "at " << at << ": " << back.status();
      ASSERT_TRUE(*back == model.substr(at, kMiB)) << "wrong bytes in the span at " << at;
    }
  }
  // As another client sees it.
  void CheckVersion(const VersionPlace& place, const std::string& model) {
    if (observer_ == nullptr) observer_ = NewClient();
    auto version = observer_->pool()->OpenVersion(place);
    ASSERT_TRUE(version.ok()) << version.status();
    EXPECT_EQ((*version)->version(), place.number);
    EXPECT_EQ((*version)->sealed(), GetParam().sealed);
    ASSERT_NO_FATAL_FAILURE(Check(version->get(), model));
  }
  absl::Status OpenError(const VersionPlace& place) {
    if (observer_ == nullptr) observer_ = NewClient();
    return observer_->pool()->OpenVersion(place).status();
  }
  void Restart(int server) {
    servers_.StopServer(server);
    servers_.StartServer(server);
  }
  // The client has noticed.
  void AwaitLife(Client* client, int server) {
    ASSERT_TRUE(Await([&] {
      const ServerSession& session = *client->pool()->session(static_cast<size_t>(server));
      return session.usable() && session.incarnation() == servers_.server(server).incarnation();
    }));
  }
  std::vector<StoredVersion> StoredAt(int server) {
    return servers_.server(server).store().ListVersions({region()->id(), 0}).value_or(std::vector<StoredVersion>());
  }
  std::vector<uint32_t> VersionsAt(int server) {
    std::vector<uint32_t> numbers;
    for (const StoredVersion& version : StoredAt(server)) numbers.push_back(Raw(version.number));
    return numbers;
  }
  size_t HoldsAt(int server) {
    size_t holds = 0;
    for (const StoredVersion& version : StoredAt(server)) holds += version.holds;
    return holds;
  }

  TestPool servers_{3, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended};
  std::string key_file_;
  std::unique_ptr<Client> owner_;
  std::unique_ptr<Client> observer_;
  std::string model_;
};

inline const auto kKinds = ::testing::Values(Kind{1, false}, Kind{3, false}, Kind{1, true}, Kind{3, true});

inline std::string KindName(const ::testing::TestParamInfo<Kind>& kind) {
  return absl::StrCat("Copies", kind.param.copies, kind.param.sealed ? "Sealed" : "Plain");
}

}  // namespace nram

#endif  // NRAM_TESTS_POOL_VERSIONS_FIXTURE_H_
