// Random writes, trims, snapshots, drops and observers of one region against plain strings, over a network that loses
// and cuts.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

constexpr uint64_t kPages = 3 * kPagesPerSpan;
constexpr int kServers = 3;
constexpr size_t kVersionsMax = 6;
constexpr int kSteps = 400;

struct Kind {
  int copies;
  bool sealed;
  bool faults;
};

class VersionsModelTest : public ::testing::TestWithParam<Kind> {
 protected:
  // A version and its expected contents.
  struct Version {
    VersionPlace place;
    std::string model;
    bool ends = false;  // was dropped, and ends with its last handle
  };
  struct Observer {
    VersionNumber number{};
    std::unique_ptr<Region> handle;
  };

  VersionsModelTest() : random_(TestSeed()) {
    for (int i = 0; i < kServers; ++i) {
      relays_.push_back(
          std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", servers_.server(i).data_port(), ""}, TestSeed() + i));
    }
    PoolOptions options = servers_.Options();
    options.ExpectCopies();
    options.io_timeout_ms = 30'000;
    options.replace_after_ms = 60'000;
    options.reserve_step_bytes = kMiB;
    if (GetParam().sealed) {
      const char* const given = getenv("TEST_TMPDIR");
      options.key_file = absl::StrCat(given == nullptr ? "/tmp" : given, "/versions-model-key.", getpid());
      EXPECT_TRUE(WriteFileAtomically(options.key_file, std::string(32, 'k')).ok());
      EXPECT_EQ(chmod(options.key_file.c_str(), 0600), 0);
    }
    options.seal = GetParam().sealed ? Seal::kYes : Seal::kNo;
    observers_pool_ = TestPool::Open(options);
    options.reroute_data_for_test = [this](size_t server, const Endpoint&) { return relays_[server]->endpoint(); };
    pool_ = TestPool::Open(options);
    region_ =
        pool_->CreateRegion({.gc = true, .copies = GetParam().copies, .name = "modelled", .versioned = true}).value();
  }

  uint64_t Random(uint64_t below) { return random_() % below; }
  // A random run of pages: first and count.
  std::pair<uint64_t, uint64_t> Run() {
    const uint64_t first = Random(kPages);
    return {first, 1 + Random(std::min<uint64_t>(kPages - first, Random(8) == 0 ? 300 : 6))};
  }

  void Step() {
    const uint64_t what = Random(100);
    if (what < 45) return Write();
    if (what < 55) return Trim();
    if (what < 65) return Snapshot();
    if (what < 70) return Drop();
    if (what < 78) return Open();
    if (what < 82) return Close();
    if (what < 86) return Compare();
    return Read();
  }

  void Write() {
    const auto [first, pages] = Run();
    // Zeros too, and the present contents.
    std::string data = Pattern(pages * kPageBytes, random_());
    if (Random(6) == 0) data.assign(data.size(), '\0');
    if (Random(6) == 0) data = head_.substr(first * kPageBytes, data.size());
    const absl::Status status = region_->Write(first * kPageBytes, Bytes(data));
    ASSERT_TRUE(status.ok()) << status;
    head_.replace(first * kPageBytes, data.size(), data);
  }

  void Trim() {
    const auto [first, pages] = Run();
    const absl::Status status = region_->Trim(first * kPageBytes, pages * kPageBytes);
    ASSERT_TRUE(status.ok()) << status;
    memset(&head_[first * kPageBytes], 0, pages * kPageBytes);
  }

  void Snapshot() {
    if (versions_.size() == kVersionsMax) return Drop();
    const auto sealed = region_->Snapshot(Random(2) == 0 ? VersionKeep::kWithOwner : VersionKeep::kUntilDropped);
    // Over such a network all servers may miss the seal.
    if (GetParam().faults && absl::IsUnavailable(sealed.status())) return;
    // No page is written yet.
    if (absl::IsFailedPrecondition(sealed.status()) && head_.find_first_not_of('\0') == std::string::npos) return;
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    ASSERT_TRUE(versions_.empty() || sealed->number > versions_.rbegin()->first);
    versions_[sealed->number] = {
        {"modelled", region_->id(), sealed->number, sealed->incarnations, sealed->least_in_sync}, head_};
    ++sealed_;
  }

  void Drop() {
    if (versions_.empty()) return;
    const auto it = std::next(versions_.begin(), static_cast<long>(Random(versions_.size())));
    const VersionNumber number = it->first;
    const auto dropped = region_->DropVersions(number, number, /*force=*/false);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    bool is_held = false;
    for (const Observer& observer : observers_) is_held = is_held || observer.number == number;
    if (dropped->unanswered > 0) return Forget(number);
    // A hold whose release had no answer remains until its pool reaches that server again.
    if (GetParam().faults && !is_held && dropped->held > 0) return Forget(number);
    ASSERT_EQ(dropped->held > 0, is_held) << "version " << Raw(number);
    if (!is_held) return Forget(number);
    it->second.ends = true;
  }

  // A dropped version ends with its last handle.
  void ForgetIfLast(VersionNumber number) {
    const auto it = versions_.find(number);
    if (it == versions_.end() || !it->second.ends) return;
    for (const Observer& observer : observers_) {
      if (observer.number == number) return;
    }
    versions_.erase(it);
  }

  // The version may be there or not.
  void Forget(VersionNumber number) {
    std::erase_if(observers_, [&](const Observer& observer) { return observer.number == number; });
    versions_.erase(number);
  }

  void Open() {
    if (versions_.empty() || observers_.size() > 8) return;
    const auto it = std::next(versions_.begin(), static_cast<long>(Random(versions_.size())));
    auto handle = (Random(2) == 0 ? observers_pool_ : pool_)->OpenVersion(it->second.place);
    if (GetParam().faults && absl::IsUnavailable(handle.status())) return;  // a connection was just cut
    ASSERT_TRUE(handle.ok()) << handle.status();
    observers_.push_back({it->first, *std::move(handle)});
  }

  void Close() {
    if (observers_.empty()) return;
    const auto it = observers_.begin() + static_cast<long>(Random(observers_.size()));
    const VersionNumber number = it->number;
    observers_.erase(it);
    ForgetIfLast(number);
  }

  void Read() {
    const auto [first, pages] = Run();
    std::string back(pages * kPageBytes, '?');
    if (observers_.empty() || Random(3) == 0) {
      const absl::Status status = region_->Read(first * kPageBytes, Into(&back));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(back == head_.substr(first * kPageBytes, back.size())) << "the head at page " << first;
      return;
    }
    const Observer& observer = observers_[Random(observers_.size())];
    const absl::Status status = observer.handle->Read(first * kPageBytes, Into(&back));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(back == versions_[observer.number].model.substr(first * kPageBytes, back.size()))
        << "version " << Raw(observer.number) << " at page " << first;
  }

  // The reported changes between two versions are complete.
  void Compare() {
    if (observers_.size() < 2) return;
    const Observer& from = observers_[Random(observers_.size())];
    const Observer& to = observers_[Random(observers_.size())];
    if (from.number >= to.number) return;
    std::vector<bool> changed(kPages);
    const absl::Status status =
        observers_pool_->VisitChanges(*from.handle, *to.handle, [&](uint64_t span, const ChangedPages& pages) {
          for (uint64_t i = 0; i < kPagesPerSpan && span < kPages / kPagesPerSpan; ++i) {
            changed[span * kPagesPerSpan + i] = (pages[i / 64] >> i % 64 & 1) != 0;
          }
        });
    ASSERT_TRUE(status.ok()) << status;
    const std::string& before = versions_[from.number].model;
    const std::string& after = versions_[to.number].model;
    for (uint64_t page = 0; page < kPages; ++page) {
      const bool differs = before.compare(page * kPageBytes, kPageBytes, after, page * kPageBytes, kPageBytes) != 0;
      ASSERT_TRUE(changed[page] || !differs)
          << "page " << page << " between " << Raw(from.number) << " and " << Raw(to.number);
    }
    ++compared_;
  }

  void CheckAll() {
    for (const auto& [number, version] : versions_) {
      auto handle = observers_pool_->OpenVersion(version.place);
      ASSERT_TRUE(handle.ok()) << handle.status();
      std::string back(version.model.size(), '?');
      const absl::Status status = (*handle)->Read(0, Into(&back));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(back == version.model) << "version " << Raw(number);
    }
  }

  std::mt19937_64 random_;
  TestPool servers_{kServers, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended};
  std::vector<std::unique_ptr<FaultyRelay>> relays_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Pool> observers_pool_;
  std::unique_ptr<Region> region_;
  std::string head_ = std::string(kPages * kPageBytes, '\0');
  std::map<VersionNumber, Version> versions_;
  std::vector<Observer> observers_;
  int sealed_ = 0;
  int compared_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, VersionsModelTest,
                         ::testing::Values(Kind{1, false, false}, Kind{3, false, false}, Kind{2, true, false},
                                           Kind{3, false, true}, Kind{1, true, true}),
                         [](const auto& kind) {
                           return absl::StrCat("Copies", kind.param.copies, kind.param.sealed ? "Sealed" : "Plain",
                                               kind.param.faults ? "Faults" : "");
                         });

TEST_P(VersionsModelTest, VersionsAreAsTheRegionWas) {
  if (GetParam().faults) {
    for (auto& relay : relays_) relay->SetPlan({.repeat = 0.002, .corrupt = 0.002, .cut = 0.004, .delay = 0.02});
  }
  for (int i = 0; i < kSteps; ++i) ASSERT_NO_FATAL_FAILURE(Step()) << "step " << i;
  ASSERT_NO_FATAL_FAILURE(CheckAll());
  EXPECT_GT(sealed_, 10);
  observers_.clear();
}

}  // namespace
}  // namespace nram
