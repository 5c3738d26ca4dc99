// nram versions, checkpoint and restore, on servers in this process.

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "client/pool/publication.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"
#include "tools/nram/command.h"
#include "tools/nram/published.h"

namespace nram {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    const char* const given = getenv("TEST_TMPDIR");
    directory_ = absl::StrCat(given == nullptr ? "/tmp" : given, "/checkpoint-XXXXXX");
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    setenv("NRAM_SEAL", "0", 1);
    pool_ = servers_.Open();
    publication_ = Publication::Create(pool_.get(), "run", Options("temperature")).value();
    temperature_ = pool_->CreateRegion(Options("temperature")).value();
    wind_ = pool_->CreateRegion(Options("wind")).value();
  }
  ~CheckpointTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  static int64_t Soon() { return DeadlineAfterMs(60'000); }
  static RegionOptions Options(const std::string& name) {
    return {.gc = false, .name = name, .size_bytes = 8 * kMiB, .versioned = true};
  }
  // Both regions, as one state.
  void Publish(uint64_t number, std::vector<PublishedArray> arrays = {}) {
    PublicationRecord record;
    record.arrays = std::move(arrays);
    record.number = number;
    record.step = 10 * number;
    record.time_ns = 1'700'000'000 * kNsPerSecond;
    for (Region* const region : {temperature_.get(), wind_.get()}) {
      const auto sealed = region->Snapshot(VersionKeep::kUntilDropped);
      ASSERT_TRUE(sealed.ok()) << sealed.status();
      record.regions.push_back(
          {region->name(), region->id(), sealed->number, sealed->incarnations, sealed->least_in_sync});
    }
    record.lengths = {3 * kMiB + 100, 2 * kMiB};
    const absl::Status status = publication_->Commit(record, Soon());
    ASSERT_TRUE(status.ok()) << status;
  }
  void Write(Region* region, uint64_t offset, const std::string& data) {
    const absl::Status status = region->Write(offset, Bytes(data));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Returns the exit code; printed_ gets the output.
  int Run(std::vector<std::string> words) {
    std::vector<std::string> servers;
    for (const Endpoint& server : servers_.Options().servers) servers.push_back(server.ToString());
    const std::string name = words[0];
    words.erase(words.begin());
    words.push_back("--pool=" + absl::StrJoin(servers, ","));
    for (const Command& command : Commands()) {
      if (command.name != name) continue;
      testing::internal::CaptureStdout();
      testing::internal::CaptureStderr();
      const int code = command.run(words);
      fflush(stdout);
      printed_ = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
      return code;
    }
    return -1;
  }

  TestPool servers_{2};
  std::string directory_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Publication> publication_;
  std::unique_ptr<Region> temperature_;
  std::unique_ptr<Region> wind_;
  std::string printed_;
};

TEST_F(CheckpointTest, APublishedVersionGoesToFilesAndBack) {
  EXPECT_EQ(Run({"checkpoint", "run", directory_, "--once"}), 1);
  EXPECT_THAT(printed_, HasSubstr("no version of \"run\" is published"));
  const std::string hot = Pattern(kMiB, 1);
  const std::string gale = Pattern(2 * kMiB, 2);
  Write(temperature_.get(), kMiB, hot);
  Write(wind_.get(), 0, gale);
  ASSERT_NO_FATAL_FAILURE(Publish(7));
  Write(temperature_.get(), 0, Pattern(3 * kMiB, 3));
  Write(wind_.get(), 0, Pattern(kMiB, 4));
  ASSERT_EQ(Run({"checkpoint", "run", directory_ + "/shown", "--once", "--progress"}), 0) << printed_;
  const std::string all = absl::StrCat(FormatByteSize(5 * kMiB + 100), " of ", FormatByteSize(5 * kMiB + 100));
  EXPECT_THAT(printed_, HasSubstr(all));
  ASSERT_EQ(Run({"checkpoint", "run", directory_, "--once", "--no-progress"}), 0) << printed_;
  const std::string path = directory_ + "/run-7";
  EXPECT_EQ(printed_, path + "\n");
  const std::string raw = ReadFile(path + "/mapping-0.raw").value();
  EXPECT_EQ(raw.size(), 3 * kMiB + 100);
  EXPECT_TRUE(raw.substr(kMiB, kMiB) == hot);
  EXPECT_EQ(raw.find_first_not_of('\0'), raw.find(hot.substr(0, 64)));
  EXPECT_TRUE(ReadFile(path + "/mapping-1.raw").value() == gale);
  // Once more: it is whole already.
  ASSERT_EQ(Run({"checkpoint", "run", directory_, "--once"}), 0) << printed_;

  EXPECT_EQ(Run({"restore", path}), 1);
  EXPECT_EQ(Run({"restore", path, "--as=other"}), 2);
  EXPECT_THAT(printed_, HasSubstr("has 2 mappings"));
  ASSERT_TRUE(temperature_->Destroy().ok());
  ASSERT_TRUE(wind_->Destroy().ok());
  temperature_ = nullptr;
  wind_ = nullptr;
  ASSERT_EQ(Run({"restore", path, "--progress"}), 0) << printed_;
  EXPECT_THAT(printed_, HasSubstr(all));
  temperature_ = pool_->AttachRegion("temperature", AttachMode::kOwner).value();
  wind_ = pool_->AttachRegion("wind", AttachMode::kOwner).value();
  EXPECT_EQ(temperature_->size_bytes(), 3 * kMiB + 100);
  EXPECT_TRUE(Read(temperature_.get(), 0, 3 * kMiB).value() == raw.substr(0, 3 * kMiB));
  EXPECT_TRUE(Read(wind_.get(), 0, 2 * kMiB).value() == gale);
  // The restored regions can be published again.
  EXPECT_TRUE(wind_->Snapshot(VersionKeep::kWithOwner).ok());
}

TEST_F(CheckpointTest, VersionsAreListedAndDropped) {
  Write(temperature_.get(), 0, Pattern(kMiB, 1));
  Write(wind_.get(), 0, Pattern(kMiB, 2));
  ASSERT_NO_FATAL_FAILURE(Publish(1));
  Write(temperature_.get(), 0, Pattern(kMiB, 3));
  ASSERT_NO_FATAL_FAILURE(Publish(2));
  ASSERT_EQ(Run({"versions", "run", "--json"}), 0) << printed_;
  const auto json = nlohmann::json::parse(printed_, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << printed_;
  EXPECT_EQ(json["name"], "run");
  ASSERT_EQ(json["versions"].size(), 2u);
  const auto& first = json["versions"][0];
  EXPECT_EQ(first["number"], 1);
  EXPECT_EQ(first["step"], 10);
  EXPECT_EQ(first["time"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(first["bytes"], 5 * kMiB + 100);
  EXPECT_GE(first["own_bytes"].get<uint64_t>(), kMiB);
  EXPECT_EQ(first["whole"], true);
  EXPECT_EQ(first["keep"], "until dropped");
  EXPECT_EQ(json["versions"][1]["own_bytes"], 0);
  // While a producer is attached, only it drops versions.
  EXPECT_EQ(Run({"versions", "run", "--drop=1"}), 1);
  EXPECT_THAT(printed_, HasSubstr("is in use by"));
  publication_ = nullptr;
  temperature_ = nullptr;
  wind_ = nullptr;
  pool_ = nullptr;
  EXPECT_EQ(Run({"versions", "run", "--drop=1"}), 0) << printed_;
  EXPECT_EQ(Run({"versions", "run", "--drop=1"}), 1);
  ASSERT_EQ(Run({"versions", "run"}), 0) << printed_;
  // Few spans may all be on one server.
  EXPECT_THAT(printed_, AnyOf(HasSubstr("2 of 2"), HasSubstr("1 of 1")));
  EXPECT_EQ(Run({"versions", "nothing"}), 1);
  EXPECT_THAT(printed_, HasSubstr("nothing is published under the name \"nothing\""));
  EXPECT_EQ(Run({"versions"}), 2);
}

TEST_F(CheckpointTest, ArraysAreListedAndComeBack) {
  const std::vector<PublishedArray> arrays = {{"t", ElementType::kFloat64, true, {512, 256}, 0, 4096},
                                              {"n", ElementType::kInt32, false, {}, 1, 8}};
  Write(temperature_.get(), 0, Pattern(kMiB, 1));
  Write(wind_.get(), 0, Pattern(kMiB, 2));
  ASSERT_NO_FATAL_FAILURE(Publish(1));
  ASSERT_NO_FATAL_FAILURE(Publish(2, arrays));
  ASSERT_NO_FATAL_FAILURE(Publish(3, arrays));
  ASSERT_EQ(Run({"versions", "run"}), 0) << printed_;
  const std::string line = "t  float64[512, 256] in Fortran's order  in temperature at 4096\n";
  EXPECT_THAT(printed_, HasSubstr(line));
  EXPECT_THAT(printed_, HasSubstr("n  int32[]  in wind at 8\n"));
  EXPECT_EQ(printed_.find(line), printed_.rfind(line)) << "the third has the same";
  ASSERT_EQ(Run({"versions", "run", "--json"}), 0) << printed_;
  const auto json = nlohmann::json::parse(printed_, nullptr, /*allow_exceptions=*/false);
  ASSERT_EQ(json["versions"].size(), 3u) << printed_;
  EXPECT_EQ(json["versions"][0]["arrays"].size(), 0u);
  EXPECT_EQ(json["versions"][2]["arrays"][0]["name"], "t");
  EXPECT_EQ(json["versions"][2]["arrays"][0]["dims"], nlohmann::json({512, 256}));
  EXPECT_EQ(json["versions"][2]["arrays"][1]["type"], "int32");

  ASSERT_EQ(Run({"checkpoint", "run", directory_, "--once"}), 0) << printed_;
  ASSERT_TRUE(publication_->Destroy().ok());
  ASSERT_TRUE(temperature_->Destroy().ok());
  ASSERT_TRUE(wind_->Destroy().ok());
  ASSERT_EQ(Run({"restore", directory_ + "/run-3"}), 0) << printed_;
  EXPECT_THAT(printed_, Not(HasSubstr("not published")));
  const auto found = Publication::Attach(pool_.get(), "run", AttachMode::kReadOnly);
  ASSERT_TRUE(found.ok()) << found.status();
  const auto record = (*found)->Read(0, Soon());
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->number, 3u);
  EXPECT_EQ(record->step, 30u);
  EXPECT_TRUE(record->arrays == arrays);
  ASSERT_EQ(record->regions.size(), 2u);
  EXPECT_EQ(record->lengths[0], 3 * kMiB + 100);
  auto version = pool_->OpenVersion(record->regions[1]);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_TRUE(Read(version->get(), 0, kMiB).value() == Pattern(kMiB, 2));
  // Another producer owns that name: the memory is restored all the same.
  version->reset();
  ASSERT_TRUE(pool_->AttachRegion("temperature", AttachMode::kOwner).value()->Destroy().ok());
  ASSERT_TRUE(pool_->AttachRegion("wind", AttachMode::kOwner).value()->Destroy().ok());
  const auto owner = Publication::Attach(pool_.get(), "run", AttachMode::kOwner);
  ASSERT_TRUE(owner.ok()) << owner.status();
  ASSERT_EQ(Run({"restore", directory_ + "/run-3"}), 0) << printed_;
  EXPECT_THAT(printed_, HasSubstr("not published under the name \"run\""));
  EXPECT_TRUE(pool_->AttachRegion("wind", AttachMode::kReadOnly).ok());
}

// A checkpoint or a restore may take an hour.
TEST_F(CheckpointTest, ServersThatJoinMeanwhileAreUsed) {
  const std::string path = directory_ + "/hosts";
  const std::vector<Endpoint> servers = servers_.Options().servers;
  ASSERT_TRUE(WriteFileAtomically(path, servers[0].ToString() + "\n").ok());
  NamedPoolFlags flags;
  flags.pool = "@" + path;
  const auto pool = OpenNamedPool(flags);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->server_count(), 1u);
  ASSERT_TRUE(WriteFileAtomically(path, servers[0].ToString() + "\n" + servers[1].ToString() + "\n").ok());
  EXPECT_TRUE(PollUntil(Soon(), 10, [&] { return (*pool)->server_count() == 2 && (*pool)->session(1)->usable(); }));
}

// The word for all orphans is for accidents: kept regions need their names, or --force.
TEST_F(CheckpointTest, KeptRegionsAreDestroyedOnPurposeOnly) {
  const auto regions = [this] {
    EXPECT_EQ(Run({"regions", "--json"}), 0) << printed_;
    std::set<std::string> names;
    for (const auto& region : nlohmann::json::parse(printed_)) names.insert(region["name"]);
    return names;
  };
  Write(temperature_.get(), 0, std::string(512, 'h'));
  Write(wind_.get(), 0, std::string(512, 'g'));
  ASSERT_NO_FATAL_FAILURE(Publish(1));
  const std::unique_ptr<Pool> other = servers_.Open();
  const auto owned = other->CreateRegion(Options("owned")).value();
  Write(owned.get(), 0, std::string(512, 'r'));
  // Their program ends.
  publication_ = nullptr;
  temperature_ = nullptr;
  wind_ = nullptr;
  pool_ = nullptr;
  const bool orphans = PollUntil(Soon(), 10, [this] {
    return Run({"regions", "--orphans", "--json"}) == 0 && printed_.find("wind") != std::string::npos &&
           printed_.find("temperature") != std::string::npos && printed_.find("run.versions") != std::string::npos;
  });
  ASSERT_TRUE(orphans) << printed_;
  const std::set<std::string> all = {"owned", "run.versions", "temperature", "wind"};
  EXPECT_EQ(Run({"regions", "--destroy=orphans"}), 0);
  EXPECT_THAT(printed_, HasSubstr("Not destroyed: 3 orphans in keep mode"));
  EXPECT_EQ(regions(), all);
  EXPECT_EQ(Run({"regions", "--destroy=owned"}), 1) << "it has an owner";
  EXPECT_EQ(Run({"regions", "--destroy=none", "--json"}), 1);
  EXPECT_THAT(printed_, HasSubstr("\"error\": \"no region none\""));
  // A name is clear. JSON is JSON.
  EXPECT_EQ(Run({"regions", "--destroy=wind", "--json"}), 0);
  const auto destroyed = nlohmann::json::parse(printed_, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(destroyed.is_object()) << printed_;
  EXPECT_EQ(destroyed["destroyed"].size(), 1u);
  // The records of a publication go with it.
  EXPECT_EQ(Run({"regions", "--destroy=run"}), 0) << printed_;
  EXPECT_EQ(regions(), (std::set<std::string>{"owned", "temperature"}));
  EXPECT_EQ(Run({"regions", "--destroy=orphans", "--force"}), 0);
  EXPECT_THAT(printed_, HasSubstr("Destroyed 1 region on"));
  EXPECT_EQ(regions(), (std::set<std::string>{"owned"}));
}

}  // namespace
}  // namespace nram
