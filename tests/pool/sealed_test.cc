// Sealed regions over real sockets: the donors' view of them, and the effect of donors' lies.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/plain_model.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

const RegionOptions kSealed{.gc = true, .seal = Seal::kYes};

class SealedTest : public ::testing::Test {
 protected:
  // Every chunk that a server stores, of all pages of the region's first span.
  std::string StoredAt(int server, RegionId region) {
    std::string stored;
    for (uint64_t page = 0; page < kPagesPerSpan; page += kPagesPerMessage) {
      const ChunkRange range{page * kChunksPerPage, kChunksPerMessage};
      (void)servers_.server(server).store().ReadInPlace(
          {.region = {region, 0}, .range = range, .generation = std::nullopt}, [&](const PageStore::Stored& at) {
            for (const iovec& piece : at.chunks) stored.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
          });
    }
    return stored;
  }
  std::string Stored(RegionId region) { return StoredAt(0, region) + StoredAt(1, region); }

  TestPool servers_{2, 256 * kMiB, Clock::Real(), TestPool::Hosts::kPretended};
};

TEST_F(SealedTest, DonorsHaveOnlyCiphertext) {
  auto pool = servers_.Open();
  EXPECT_FALSE(pool->seals()) << "all servers are on this machine";
  const std::string canary = "the canary that nobody may see!!";
  std::string page;
  while (page.size() < kPageBytes) page += canary;
  for (const Seal seal : {Seal::kNo, Seal::kYes}) {
    for (const int copies : {1, 2}) {
      auto region = pool->CreateRegion({.gc = true, .copies = copies, .seal = seal}).value();
      EXPECT_EQ(region->sealed(), seal == Seal::kYes);
      std::string data;
      for (int i = 0; i < 20; ++i) data += page;
      ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
      std::string back(data.size(), '?');
      ASSERT_TRUE(region->Read(0, Into(&back)).ok());
      EXPECT_TRUE(back == data);
      const std::string stored = Stored(region->id());
      EXPECT_EQ(stored.size(), data.size() * static_cast<size_t>(copies));
      EXPECT_EQ(stored.find(canary) != std::string::npos, seal == Seal::kNo);
      // The same page, sealed twice, is not the same.
      if (seal == Seal::kYes) {
        EXPECT_NE(stored.substr(0, kPageBytes), stored.substr(kPageBytes, kPageBytes));
      }
      ASSERT_TRUE(region->Destroy().ok());
    }
  }
}

TEST_F(SealedTest, OnByItselfWhereAServerIsElsewhere) {
  PoolOptions options = servers_.Options();
  EXPECT_FALSE(TestPool::Open(options)->seals());
  options.servers.push_back({"192.0.2.1", 7070, ""});  // an unused address (RFC 5737)
  options.open_timeout_ms = 300;
  auto pool = TestPool::Open(options);
  EXPECT_TRUE(pool->seals());
  EXPECT_TRUE(pool->CreateRegion({.gc = true}).value()->sealed());
  EXPECT_FALSE(pool->CreateRegion({.gc = true, .seal = Seal::kNo}).value()->sealed());
  options.seal = Seal::kNo;
  EXPECT_FALSE(TestPool::Open(options)->seals());
}

TEST_F(SealedTest, TakesWholePagesAlone) {
  auto pool = servers_.Open();
  auto region = pool->CreateRegion(kSealed).value();
  EXPECT_EQ(region->unit_bytes(), kPageBytes);
  std::string data(kPageBytes, 'x');
  const auto refused = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("multiples of 4096"));
  };
  refused(region->Write(512, Bytes(data)));
  refused(region->Write(0, Bytes(data.substr(0, 512))));
  refused(region->Read(512, Into(&data)));
  refused(region->Trim(0, 512));
  // Of a page with some selected chunks, all chunks are written.
  const ChunkMask some[] = {1, 0};
  data = std::string(2 * kPageBytes, 'y');
  ASSERT_TRUE(region->WriteChunks(0, Bytes(data), some).ok());
  std::string back(2 * kPageBytes, '?');
  ASSERT_TRUE(region->Read(0, Into(&back)).ok());
  EXPECT_TRUE(back == std::string(kPageBytes, 'y') + std::string(kPageBytes, '\0'));
}

TEST_F(SealedTest, ZerosAreHolesUnlessTheirRoomIsReserved) {
  auto pool = servers_.Open();
  auto region = pool->CreateRegion(kSealed).value();
  const std::string data = std::string(kPageBytes, 'a') + std::string(kPageBytes, '\0') + std::string(kPageBytes, 'b');
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  EXPECT_EQ(Stored(region->id()).size(), 2 * kPageBytes);
  // Zeros over a page make it a hole.
  ASSERT_TRUE(region->Write(0, Bytes(std::string(kPageBytes, '\0'))).ok());
  EXPECT_EQ(Stored(region->id()).size(), kPageBytes);
  std::string back(3 * kPageBytes, '?');
  ASSERT_TRUE(region->Read(0, Into(&back)).ok());
  EXPECT_TRUE(back == std::string(2 * kPageBytes, '\0') + std::string(kPageBytes, 'b'));
  ASSERT_TRUE(region->Reserve(0, kSpanBytes).ok());
  ASSERT_TRUE(region->Write(0, Bytes(std::string(2 * kPageBytes, '\0'))).ok());
  EXPECT_EQ(Stored(region->id()).size(), 3 * kPageBytes) << "a page with room of its own keeps its frame";
  ASSERT_TRUE(region->Read(0, Into(&back)).ok());
  EXPECT_TRUE(back == std::string(2 * kPageBytes, '\0') + std::string(kPageBytes, 'b'));
}

TEST_F(SealedTest, AChildHasNoKey) {
  auto pool = servers_.Open();
  auto region = pool->CreateRegion(kSealed).value();
  const std::string data(kPageBytes, 'x');
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  const pid_t child = fork();
  if (child == 0) {
    // Nothing of the pool may be used here; the cipher's refusal is enough.
    PageCipher cipher;
    const SealKey& key = *region->map()->seal()->key();
    _exit(cipher.BeginSealing(key) || cipher.BeginOpening(key) ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
}

// The relays on the path know every version of every page.
class EvilTest : public SealedTest {
 protected:
  EvilTest() {
    for (int i = 0; i < 2; ++i) {
      relays_.push_back(
          std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", servers_.server(i).data_port(), ""}, TestSeed() + i));
    }
    options_ = servers_.Options();
    options_.io_timeout_ms = 30'000;
    options_.reroute_data_for_test = [this](size_t server, const Endpoint&) { return relays_[server]->endpoint(); };
  }
  // Returns the number of refused reads.
  int RunModels(Region* region, bool lies) {
    constexpr int kThreads = 4;
    std::atomic<int> losses{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        PlainModel model(region, t);
        if (lies) model.ExpectLies();
        for (int i = 0; i < 200; ++i) ASSERT_NO_FATAL_FAILURE(model.Step()) << "thread " << t << " step " << i;
        losses += model.losses();
      });
    }
    for (auto& thread : threads) thread.join();
    return losses;
  }

  std::vector<std::unique_ptr<FaultyRelay>> relays_;
  PoolOptions options_;
};

TEST_F(EvilTest, AgreesWithAMapOverAFaultyNetwork) {
  auto pool = TestPool::Open(options_);
  for (auto& relay : relays_) {
    relay->SetPlan(
        {.repeat = 0.002, .corrupt = 0.002, .cut = 0.002, .reorder = 0.002, .delay = 0.02, .delay_us_max = 500});
  }
  for (const int copies : {1, 2}) {
    auto region = pool->CreateRegion({.gc = true, .copies = copies, .seal = Seal::kYes}).value();
    EXPECT_EQ(RunModels(region.get(), /*lies=*/false), 0);
  }
}

TEST_F(EvilTest, NoLieOfTheOnlyDonorIsBelieved) {
  auto pool = TestPool::Open(options_);
  auto region = pool->CreateRegion(kSealed).value();
  // A read that does not fit is repeated once, since a write might have been under way: both answers must be lies.
  for (auto& relay : relays_) relay->SetPlan({.lie = 0.5});
  EXPECT_GT(RunModels(region.get(), /*lies=*/true), 0);
  EXPECT_GT(relays_[0]->lies() + relays_[1]->lies(), 20u);
  std::string page(kPageBytes, 'x');
  for (auto& relay : relays_) relay->SetPlan({});
  ASSERT_TRUE(region->Write(0, Bytes(page)).ok());
  for (auto& relay : relays_) relay->SetPlan({.lie = 1});
  const absl::Status status = region->Read(0, Into(&page));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("that are not the last written ones"));
  EXPECT_TRUE(page == std::string(kPageBytes, '\0')) << "nothing of it is shown";
}

TEST_F(EvilTest, TheOtherCopyIsRightHoweverOneLies) {
  auto pool = TestPool::Open(options_);
  auto region = pool->CreateRegion({.gc = true, .copies = 2, .seal = Seal::kYes}).value();
  relays_[0]->SetPlan({.lie = 0.3});
  EXPECT_EQ(RunModels(region.get(), /*lies=*/false), 0);
  EXPECT_GT(relays_[0]->lies(), 20u);
}

// The write was executed without an answer; then the page was read as the hole that it was before.
TEST_F(EvilTest, AWriteWithoutAnAnswerIsFoundAfterItsPageWasRead) {
  auto pool = TestPool::Open(options_);
  for (const int copies : {1, 2}) {
    auto region = pool->CreateRegion({.gc = true, .copies = copies, .seal = Seal::kYes}).value();
    const std::string page(kPageBytes, 'a');
    for (auto& relay : relays_) relay->SetPlan({.drop_reply = 1});
    EXPECT_FALSE(region->Write(0, Bytes(page), {.timeout_ms = 300}).ok());
    for (auto& relay : relays_) relay->SetPlan({});
    const auto read = [&] {
      std::string back(kPageBytes, '?');
      const absl::Status status = region->Read(0, Into(&back));
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(back == page || back == std::string(kPageBytes, '\0'));
      return back;
    };
    (void)read();
    ASSERT_TRUE(region->Write(100 * kPageBytes, Bytes(page)).ok());
    const std::string found = read();
    EXPECT_TRUE(read() == found) << "it goes to and fro";
    ASSERT_TRUE(region->Destroy().ok());
  }
}

// The contents that a region's pages may have when servers also lie about their changes. A page holds its tag in every
// word.
class MayBeModel {
 public:
  static constexpr uint64_t kPages = 96;  // two messages, of one span

  explicit MayBeModel(uint64_t seed) : random_(seed) { Forget(); }
  void Forget() { may_be_.assign(kPages, {0}); }

  // A random operation. False: another region is needed.
  bool Step(Region* region) {
    const uint64_t first = random_() % kPages;
    const uint64_t count = 1 + random_() % std::min<uint64_t>(kPages - first, random_() % 4 == 0 ? kPages : 4);
    std::string data(count * kPageBytes, '\0');
    absl::Status status;
    const uint64_t what = random_() % 5;
    const uint64_t tag = what == 0 ? 0 : ++tag_;
    if (what >= 3) return Read(region, first, &data);
    for (size_t at = 0; at < data.size(); at += sizeof tag) memcpy(&data[at], &tag, sizeof tag);
    status = what == 0 ? region->Trim(first * kPageBytes, data.size()) : region->Write(first * kPageBytes, Bytes(data));
    for (uint64_t page = first; page < first + count; ++page) {
      if (status.ok()) may_be_[page].clear();
      may_be_[page].insert(tag);
    }
    ++(status.ok() ? done : failed);
    return !absl::IsFailedPrecondition(status) && !absl::IsUnimplemented(status);
  }

  int done = 0, failed = 0, read = 0, refused = 0;

 private:
  bool Read(Region* region, uint64_t first, std::string* data) {
    const absl::Status status = region->Read(first * kPageBytes, Into(data));
    ++(status.ok() ? read : refused);
    for (uint64_t i = 0; status.ok() && i < data->size() / kPageBytes; ++i) {
      const std::string page = data->substr(i * kPageBytes, kPageBytes);
      uint64_t tag = 0;
      memcpy(&tag, page.data(), sizeof tag);
      std::string whole;
      while (whole.size() < kPageBytes) whole.append(reinterpret_cast<const char*>(&tag), sizeof tag);
      EXPECT_TRUE(page == whole) << "page " << first + i << " is of two minds";
      EXPECT_TRUE(may_be_[first + i].contains(tag)) << "page " << first + i << " is " << tag;
      may_be_[first + i] = {tag};
    }
    return !absl::IsFailedPrecondition(status) && !absl::IsUnimplemented(status);
  }

  std::mt19937_64 random_;
  std::vector<std::set<uint64_t>> may_be_;
  uint64_t tag_ = 0;
};

TEST_F(EvilTest, LiesAboutWhatWasDoneAreNoOtherBytesEither) {
  options_.io_timeout_ms = 2'000;
  auto pool = TestPool::Open(options_);
  for (const int copies : {1, 2}) {
    MayBeModel model(TestSeed() + static_cast<uint64_t>(copies));
    const RegionOptions how{.gc = true, .copies = copies, .seal = Seal::kYes};
    auto region = pool->CreateRegion(how).value();
    for (int i = 0; i < 1'500 && !HasFailure(); ++i) {
      // The pause between lies lets doubts be resolved.
      const bool lies = i / 50 % 2 == 0;
      for (auto& relay : relays_) {
        relay->SetPlan({.cut = lies ? 0.01 : 0, .lie = lies ? 0.02 : 0, .lie_of_changes = lies ? 0.3 : 0});
      }
      if (model.Step(region.get())) continue;
      (void)region->Destroy();
      region = pool->CreateRegion(how).value();
      model.Forget();
    }
    std::cerr << copies << " copies: " << model.done << " changes done, " << model.failed << " failed, " << model.read
              << " reads, " << model.refused << " refused" << std::endl;
    EXPECT_GT(model.failed, 5);
    EXPECT_GT(model.refused, 5);
    EXPECT_GT(model.read, 200);
    (void)region->Destroy();
  }
  EXPECT_GT(relays_[0]->lies(), 20u);
}

}  // namespace
}  // namespace nram
