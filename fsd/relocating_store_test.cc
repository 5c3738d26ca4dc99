// Files that outlive servers: whatever dies, a read gives the bytes written last, or an error.

#include "fsd/relocating_store.h"

#include <map>
#include <random>
#include <set>
#include <utility>

#include "base/test_seed.h"
#include "base/units.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// Servers that can die. The spans that a dead one held are lost, and writes there fail. New files place their spans on
// living servers.
struct Servers {
  std::set<int> dead;
  int next = 0;  // new spans go there
  bool all_away = false;
  int writes = 0;  // attempts, of all files
  int files = 0;
  absl::Status next_write;  // the next attempt fails so
};

class MortalFile : public BlockFile {
 public:
  explicit MortalFile(Servers* servers) : servers_(servers) {}
  bool Start(BlockIo* io) override {
    io->End(io->op() == BlockIo::Op::kRead ? Load(io->offset(), io->to()) : Store(io->offset(), io->from()));
    return true;
  }
  absl::Status Load(uint64_t offset, absl::Span<std::byte> to) {
    for (uint64_t at = 0; at < to.size(); at += kChunkBytes) {
      const auto place = places_.find((offset + at) / kSpanBytes);
      if (place != places_.end() && servers_->dead.count(place->second) > 0) return absl::DataLossError("lost");
      const auto chunk = chunks_.find(offset + at);
      std::fill_n(to.data() + at, kChunkBytes, chunk != chunks_.end() ? chunk->second : std::byte{0});
    }
    return absl::OkStatus();
  }
  absl::Status Store(uint64_t offset, absl::Span<const std::byte> from) {
    ++servers_->writes;
    if (!servers_->next_write.ok()) return std::exchange(servers_->next_write, absl::OkStatus());
    if (servers_->all_away) return absl::UnavailableError("all are away");
    for (uint64_t at = 0; at < from.size(); at += kChunkBytes) {
      const auto [place, placed] = places_.try_emplace((offset + at) / kSpanBytes, servers_->next);
      if (servers_->dead.count(place->second) > 0) return absl::UnavailableError("dead");
      chunks_[offset + at] = from[at];
    }
    return absl::OkStatus();
  }
  absl::Status Trim(uint64_t offset, uint64_t length) override {
    for (uint64_t at = offset; at < offset + length; at += kChunkBytes) {
      const auto place = places_.find(at / kSpanBytes);
      if (place != places_.end() && servers_->dead.count(place->second) > 0) return absl::UnavailableError("dead");
      chunks_.erase(at);
    }
    return absl::OkStatus();
  }
  absl::Status Reserve(uint64_t, uint64_t) override { return absl::OkStatus(); }

 private:
  Servers* const servers_;
  std::map<uint64_t, int> places_;
  std::map<uint64_t, std::byte> chunks_;
};

class MortalStore : public BlockStore {
 public:
  explicit MortalStore(Servers* servers) : servers_(servers) {}
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    ++servers_->files;
    return std::make_unique<MortalFile>(servers_);
  }
  void Destroy(std::vector<std::unique_ptr<BlockFile>>) override {}
  StoreCapacity Capacity() const override { return {}; }

 private:
  Servers* const servers_;
};

TEST(RelocatingStoreTest, ReadsGiveWhatWasWrittenLastOrAnError) {
  constexpr uint64_t kPages = 4 * kPagesPerSpan;
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 20; ++round) {
    Servers servers;
    const auto store = NewRelocatingStore(std::make_unique<MortalStore>(&servers));
    const std::unique_ptr<BlockFile> file = store->Create().value();
    ASSERT_TRUE(file->Reserve(0, kPages * kPageBytes).ok());
    std::map<uint64_t, std::byte> model;  // the last byte written to each page, or holes
    uint64_t reads = 0, losses = 0, writes_after_death = 0;
    for (int i = 0; i < 3'000; ++i) {
      const uint64_t count = 1 + random() % 16;
      const uint64_t first = random() % (kPages - count);
      std::vector<std::byte> data(count * kPageBytes);
      switch (random() % 8) {
        case 0:
          if (random() % 60 == 0) servers.dead.insert(servers.next++);
          break;
        case 1:
          if (file->Trim(first * kPageBytes, data.size()).ok()) {
            for (uint64_t page = first; page < first + count; ++page) model.erase(page);
          }
          break;
        case 2:
        case 3:
        case 4: {
          const std::byte fill{static_cast<uint8_t>(1 + random() % 255)};
          std::fill(data.begin(), data.end(), fill);
          ASSERT_TRUE(file->Write(first * kPageBytes, data).ok());
          for (uint64_t page = first; page < first + count; ++page) model[page] = fill;
          writes_after_death += servers.dead.empty() ? 0 : 1;
          break;
        }
        default: {
          for (uint64_t page = first; page < first + count; ++page) {
            ++reads;
            std::vector<std::byte> got(kPageBytes);
            if (!file->Read(page * kPageBytes, absl::MakeSpan(got)).ok()) {
              ++losses;
              continue;
            }
            // FileData asks for pages only that hold something.
            const auto expected = model.find(page);
            if (expected != model.end()) {
              ASSERT_EQ(got[0], expected->second) << "page " << page;
            }
          }
        }
      }
    }
    EXPECT_GT(reads, losses);
    if (!servers.dead.empty()) {
      EXPECT_GT(writes_after_death, 0u);
    }
  }
}

TEST(RelocatingStoreTest, PartOfAPageStaysWhereItsPageIs) {
  Servers servers;
  const auto store = NewRelocatingStore(std::make_unique<MortalStore>(&servers));
  const std::unique_ptr<BlockFile> file = store->Create().value();
  ASSERT_TRUE(file->Reserve(0, kSpanBytes).ok());
  const std::vector<std::byte> page(kPageBytes, std::byte{7});
  ASSERT_TRUE(file->Write(0, page).ok());
  servers.dead.insert(servers.next++);
  std::vector<std::byte> got(kPageBytes);
  EXPECT_FALSE(file->Write(0, absl::MakeSpan(page).subspan(0, kChunkBytes)).ok());
  EXPECT_FALSE(file->Read(0, absl::MakeSpan(got)).ok());
  ASSERT_TRUE(file->Write(0, page).ok());
  ASSERT_TRUE(file->Read(0, absl::MakeSpan(got)).ok());
  EXPECT_EQ(got, page);
}

// The first try has taken an operation's whole time.
TEST(RelocatingStoreTest, ARewriteIsNotTriedWhereItFailed) {
  Servers servers;
  const auto store = NewRelocatingStore(std::make_unique<MortalStore>(&servers));
  const std::unique_ptr<BlockFile> file = store->Create().value();
  ASSERT_TRUE(file->Reserve(0, kSpanBytes).ok());
  const std::vector<std::byte> page(kPageBytes, std::byte{7});
  const absl::Status late = absl::DeadlineExceededError("late");
  const auto rewrite = [&](uint64_t offset, const absl::Status& failed) {
    BlockIo io;
    io.set_earlier_failure(failed);
    EXPECT_TRUE(file->StartWrite(&io, offset, page));
    return io.Wait();
  };
  ASSERT_TRUE(file->RewriteMayHelp(late));
  ASSERT_TRUE(rewrite(0, late).ok());
  EXPECT_EQ(servers.writes, 1);
  EXPECT_EQ(servers.files, 2);
  servers.dead.insert(servers.next);
  std::vector<std::byte> got(kPageBytes);
  EXPECT_FALSE(file->Read(0, absl::MakeSpan(got)).ok()) << "where was it written to?";
  ++servers.next;
  EXPECT_TRUE(rewrite(kPageBytes, late).ok());
  // A server that was full may have room by now.
  servers.writes = 0;
  EXPECT_TRUE(rewrite(2 * kPageBytes, absl::ResourceExhaustedError("full")).ok());
  EXPECT_EQ(servers.writes, 1);
}

// An asynchronous handle goes through to the layer and ends as the layer says. An operation in two layers waits.
TEST(RelocatingStoreTest, AHandleGoesThroughToTheLayer) {
  struct CalledIo : BlockIo {
    CalledIo() : BlockIo(nullptr, [](BlockIo* io) { ++static_cast<CalledIo*>(io)->calls; }) {}
    int calls = 0;
  } io;
  Servers servers;
  const auto store = NewRelocatingStore(std::make_unique<MortalStore>(&servers));
  const std::unique_ptr<BlockFile> file = store->Create().value();
  ASSERT_TRUE(file->Reserve(0, kSpanBytes).ok());
  const std::vector<std::byte> pages(2 * kPageBytes, std::byte{7});
  const absl::Span<const std::byte> page = absl::MakeSpan(pages).subspan(0, kPageBytes);
  ASSERT_TRUE(file->StartWrite(&io, 0, pages));
  EXPECT_TRUE(io.calls == 1 && io.status().ok());
  servers.next_write = absl::UnavailableError("gone");
  ASSERT_TRUE(file->StartWrite(&io, 0, page));
  EXPECT_TRUE(io.calls == 2 && absl::IsUnavailable(io.status()));
  servers.next_write = absl::UnavailableError("gone");
  ASSERT_TRUE(file->Write(0, page).ok()) << "elsewhere";
  std::vector<std::byte> got(2 * kPageBytes);
  EXPECT_FALSE(file->StartRead(&io, 0, absl::MakeSpan(got))) << "its pages are in two layers";
  EXPECT_FALSE(file->StartWrite(&io, 0, pages));
  EXPECT_EQ(io.calls, 2);
  ASSERT_TRUE(file->StartRead(&io, kPageBytes, absl::MakeSpan(got).subspan(kPageBytes)));
  EXPECT_EQ(io.calls, 3);
  ASSERT_TRUE(file->Read(0, absl::MakeSpan(got)).ok());
  EXPECT_EQ(got, pages);
}

// Each death of a server uses up a layer, and there are few layers.
TEST(RelocatingStoreTest, LayersAreNotUsedUpWhileNoServerIsThere) {
  Servers servers;
  const auto store = NewRelocatingStore(std::make_unique<MortalStore>(&servers));
  const std::unique_ptr<BlockFile> file = store->Create().value();
  ASSERT_TRUE(file->Reserve(0, kSpanBytes).ok());
  const std::vector<std::byte> page(kPageBytes, std::byte{7});
  servers.all_away = true;
  for (uint64_t i = 0; i < kPagesPerSpan; ++i) EXPECT_FALSE(file->Write(i * kPageBytes, page).ok());
  EXPECT_LE(servers.files, 5);
  servers.all_away = false;
  for (uint64_t i = 0; i < kPagesPerSpan; ++i) EXPECT_TRUE(file->Write(i * kPageBytes, page).ok());
}

// No later read would find these pages.
TEST(RelocatingStoreTest, PagesBehindWhatWasReservedDoNotGoElsewhere) {
  Servers servers;
  const auto store = NewRelocatingStore(std::make_unique<MortalStore>(&servers));
  const std::unique_ptr<BlockFile> file = store->Create().value();
  ASSERT_TRUE(file->Reserve(0, kSpanBytes).ok());
  const std::vector<std::byte> page(kPageBytes, std::byte{7});
  ASSERT_TRUE(file->Write(kSpanBytes, page).ok());
  servers.dead.insert(servers.next++);
  EXPECT_FALSE(file->Write(kSpanBytes, page).ok());
  EXPECT_FALSE(file->Write(kSpanBytes - kPageBytes, std::vector<std::byte>(2 * kPageBytes)).ok());
  EXPECT_TRUE(file->Write(kSpanBytes - kPageBytes, page).ok());
}

}  // namespace
}  // namespace nram
