#include "memserver/compactor.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"
#include "memserver/spill.h"

namespace nram {
namespace {

constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();
constexpr uint64_t kAll = ~uint64_t{0};

class CompactorTest : public PageStoreTest {
 protected:
  explicit CompactorTest(uint64_t ceiling = 64 * kMiB) : PageStoreTest(ceiling) {}

  static std::string Page(uint64_t page, char salt = 0) {
    std::string data(kPageBytes, '\0');
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(1 + (page * 31 + i / 64 + salt) % 250);
    return data;
  }
  static ChunkRange RangeOf(uint64_t page) { return {page * kChunksPerPage, kChunksPerPage}; }
  Reason Trim(ChunkRange range) {
    return store_.Trim(lease_.get(), {.region = kRegion, .epoch = 1, .range = range, .frames = frames_});
  }
  // Writes pages until there is no memory for more. Returns their number.
  uint64_t Fill() {
    uint64_t pages = 0;
    while (Write(RangeOf(pages), Page(pages)) == Reason::kOk) ++pages;
    return pages;
  }
  // The arena's memory that the kernel really has.
  uint64_t ResidentBytes() const {
    const uint64_t bytes = arena_->usage().ceiling_bytes / (2 * kMiB) * (2 * kMiB);
    std::vector<unsigned char> pages(bytes / 4096);
    EXPECT_EQ(mincore(arena_->Data(0), bytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char in) { return (in & 1) != 0; }) * uint64_t{4096};
  }

  Compactor compactor_{arena_.get(), &store_, &landing_};
};

TEST_F(CompactorTest, ResidentMemoryFallsByWhatWasFreed) {
  const uint64_t pages = Fill();
  const uint64_t full = ResidentBytes();
  ASSERT_GT(pages * kPageBytes, 50 * kMiB);
  for (uint64_t page = 0; page < pages; ++page) {
    if (page % 4 != 0) {
      ASSERT_EQ(Trim(RangeOf(page)), Reason::kOk);
    }
  }
  arena_->ReleaseSpare(kAll, kNoDeadline);
  EXPECT_GT(ResidentBytes(), full - 6 * kMiB) << "every extent has some pages";
  const uint64_t before = ResidentBytes();
  const uint64_t given_bytes = compactor_.Run(kAll, kNoDeadline);
  EXPECT_GT(given_bytes, pages * kPageBytes * 3 / 4 - 6 * kMiB);
  EXPECT_EQ(ResidentBytes(), before - given_bytes);
  EXPECT_EQ(compactor_.counters().bytes_given_back, given_bytes);
  EXPECT_EQ(compactor_.counters().extents_emptied, given_bytes / (2 * kMiB));
  EXPECT_EQ(compactor_.counters().extents_given_up, 0);
  EXPECT_LE(compactor_.counters().pages_moved * kPageBytes, given_bytes);
  for (uint64_t page = 0; page < pages; ++page) {
    ASSERT_EQ(Read(RangeOf(page)), page % 4 == 0 ? Page(page) : std::string(kPageBytes, '\0')) << page;
  }
  // No memory is left to gain.
  const uint64_t moved = compactor_.counters().pages_moved;
  EXPECT_EQ(compactor_.Run(kAll, kNoDeadline), 0);
  EXPECT_LE(compactor_.counters().pages_moved, moved + 512);
}

TEST_F(CompactorTest, GivesBackWhatIsWantedAndNoMore) {
  const uint64_t pages = Fill();
  for (uint64_t page = 0; page < pages; ++page) {
    if (page % 4 != 0) {
      ASSERT_EQ(Trim(RangeOf(page)), Reason::kOk);
    }
  }
  arena_->ReleaseSpare(kAll, kNoDeadline);
  EXPECT_GT(compactor_.GainBytes(), 30 * kMiB);
  EXPECT_EQ(compactor_.Run(5 * kMiB, kNoDeadline), 6 * kMiB);
  EXPECT_EQ(compactor_.Run(0, kNoDeadline), 0);
  EXPECT_EQ(compactor_.Run(2 * kMiB, kNoDeadline), 2 * kMiB);
  // Time is up at once: no extent remains put aside.
  const uint64_t free_bytes = arena_->usage().free_bytes;
  compactor_.Run(kAll, 0);
  EXPECT_EQ(arena_->evacuating_extents(), 0);
  EXPECT_GE(arena_->usage().free_bytes, free_bytes);
}

// As a donor under pressure does it: the ceiling is low already, and follows the returned memory.
TEST_F(CompactorTest, WorksBelowALowCeiling) {
  const uint64_t pages = Fill();
  for (uint64_t page = 0; page < pages; ++page) {
    if (page % 4 != 0) {
      ASSERT_EQ(Trim(RangeOf(page)), Reason::kOk);
    }
  }
  ASSERT_TRUE(arena_->Reserve(1000, &lease_->reservation));
  arena_->SetCeiling(0);
  const uint64_t before = arena_->usage().extent_bytes;
  uint64_t given_bytes = 0;
  for (int i = 0; i < 20; ++i) {
    given_bytes += compactor_.Run(4 * kMiB, kNoDeadline);
    arena_->SetCeiling(0);
  }
  // The rest: the pages, the stock, the reserved memory, and the last extent.
  const uint64_t needed = pages / 4 * kPageBytes + landing_.size() * kPageBytes;
  EXPECT_LE(arena_->usage().extent_bytes, needed + 4 * kMiB);
  EXPECT_EQ(arena_->usage().extent_bytes, before - given_bytes);
  EXPECT_LT(arena_->usage().ceiling_bytes, needed + 1000 * kReservationBytesPerPage + 18 * kMiB);
  for (uint64_t page = 0; page < 1000; ++page) {
    ASSERT_EQ(Write(RangeOf(pages + page), Page(page)), Reason::kOk) << "it is reserved";
  }
}

TEST_F(CompactorTest, SpareExtentsAndDestroyedRegionsGoFirst) {
  Fill();
  PageStore::Doomed doomed;
  ASSERT_EQ(store_.Unlink(lease_.get(), kRegion, 1, &doomed), Reason::kOk);
  store_.FreeLater(std::move(doomed));
  EXPECT_GT(compactor_.Run(kAll, kNoDeadline), 55 * kMiB);
  EXPECT_EQ(compactor_.counters().pages_moved, 0);
}

TEST_F(CompactorTest, SealsAndChecksumsStay) {
  const auto seal_of = [](uint64_t page) {
    PageSeal seal{};
    memcpy(seal.tag.data(), &page, sizeof page);
    seal.tag[15] = 1;
    return seal;
  };
  uint64_t pages = 0;
  for (;; ++pages) {
    seals_ = {seal_of(pages)};
    if (Write(RangeOf(pages), Page(pages)) != Reason::kOk) break;
  }
  for (uint64_t page = 0; page < pages; ++page) {
    if (page % 3 != 1) {
      ASSERT_EQ(Trim(RangeOf(page)), Reason::kOk);
    }
  }
  // One page's memory has changed. The page must remain damaged.
  store_.ReadInPlace({.region = {kRegion, 0}, .range = RangeOf(1)},
                     [](const PageStore::Stored& stored) { *static_cast<char*>(stored.chunks[0].iov_base) ^= 4; });
  EXPECT_GT(compactor_.Run(kAll, kNoDeadline), 30 * kMiB);
  EXPECT_GT(compactor_.counters().pages_moved, 1000);
  for (uint64_t page = 0; page < pages; ++page) {
    ChunkMask mask = 0;
    uint32_t crc = 0;
    std::string data(kPageBytes, '?');
    size_t bytes = 0;
    PageSeal seal{};
    bool sealed = false;
    ASSERT_EQ(store_.Read({.region = {kRegion, 0}, .range = RangeOf(page)}, &mask, &crc,
                          reinterpret_cast<std::byte*>(data.data()), &bytes, &seal, &sealed),
              Reason::kOk);
    ASSERT_EQ(mask, page % 3 == 1 ? kAllChunks : 0);
    if (page % 3 != 1) continue;
    ASSERT_TRUE(seal == seal_of(page));
    ASSERT_EQ(data == Page(page), page != 1);
    ASSERT_EQ(crc, Crc32c(0, Page(page).data(), kPageBytes));
  }
}

TEST_F(CompactorTest, LandingFramesPinNothing) {
  const uint64_t pages = Fill();
  // Displaced frames scatter the stock.
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 5000; ++i) {
    const uint64_t page = random() % pages;
    ASSERT_EQ(Write(RangeOf(page), Page(page)), Reason::kOk);
  }
  std::vector<FrameLoc> held(8);
  ASSERT_TRUE(landing_.Take(held.size(), held.data()));
  ASSERT_EQ(Trim({0, pages * kChunksPerPage}), Reason::kOk);
  // The store is empty. All that is in use is the stock, of 1 MiB, and each held frame pins an extent at most.
  compactor_.Run(kAll, kNoDeadline);
  EXPECT_LE(arena_->usage().extent_bytes, (held.size() + 1) * 2 * kMiB);
  landing_.Give(held.data(), held.size());
  compactor_.Run(kAll, kNoDeadline);
  EXPECT_EQ(arena_->usage().extent_bytes, 2 * kMiB);
}

TEST_F(CompactorTest, SpilledPagesComeBack) {
  const uint64_t pages = Fill();
  Spill spill(arena_.get());
  const uint64_t before = ResidentBytes();
  const absl::StatusOr<uint64_t> left_bytes = spill.Run(8 * kMiB, kNoDeadline);
  if (absl::IsUnimplemented(left_bytes.status())) GTEST_SKIP() << left_bytes.status();
  ASSERT_TRUE(left_bytes.ok()) << left_bytes.status();
  // Without swap, nothing is evicted.
  EXPECT_LE(*left_bytes, 10 * kMiB);
  EXPECT_EQ(ResidentBytes(), before - *left_bytes);
  for (uint64_t page = 0; page < pages; ++page) ASSERT_EQ(Read(RangeOf(page)), Page(page)) << page;
}

// Pages of all shapes, and a model of them. Compaction between the operations.
TEST_F(CompactorTest, AgreesWithAModel) {
  std::mt19937_64 random(TestSeed());
  std::map<uint64_t, std::string> model;
  constexpr uint64_t kPages = 20'000;
  ASSERT_TRUE(arena_->Reserve(500, &lease_->reservation));
  ASSERT_EQ(Write(RangeOf(kPages), Page(0)), Reason::kOk);
  for (int i = 0; i < 60'000; ++i) {
    const uint64_t page = random() % kPages;
    const uint64_t action = random() % 100;
    if (action < 60) {
      const uint64_t first = random() % 3 == 0 ? 0 : random() % 8;
      const uint64_t count = first == 0 ? 8 : 1 + random() % (8 - first);
      const std::string whole = Page(page, static_cast<char>(random() % 100));
      const std::string part = whole.substr(first * kChunkBytes, count * kChunkBytes);
      limit_bytes_ = random() % 2 == 0 ? 0 : ~uint64_t{0};
      frames_ = page % 5 == 0 ? PageStore::Frames::kWhole : PageStore::Frames::kFitted;
      const bool paid = limit_bytes_ != 0 && arena_->left_bytes(lease_->reservation) >= 4 * kReservationBytesPerPage;
      const Reason reason = Write({page * 8 + first, count}, part);
      ASSERT_TRUE(reason == Reason::kOk || (reason == Reason::kFull && !paid));
      if (reason == Reason::kOk) {
        std::string& now = model.try_emplace(page, kPageBytes, '\0').first->second;
        now.replace(first * kChunkBytes, part.size(), part);
      }
    } else if (action < 95) {
      const uint64_t count = random() % 2 == 0 ? 1 : 1 + random() % 40;
      frames_ = PageStore::Frames::kFitted;
      ASSERT_EQ(Trim({page * 8, count * 8}), Reason::kOk);
      model.erase(model.lower_bound(page), model.lower_bound(page + count));
    } else if (action < 97) {
      compactor_.Run(random() % (8 * kMiB), random() % 4 == 0 ? MonotonicNs() + 200'000 : kNoDeadline);
    } else if (action == 97) {
      if (random() % 2 == 0) {
        (void)arena_->Reserve(random() % 200, &lease_->reservation);
      } else {
        arena_->Unreserve(random() % 200, &lease_->reservation);
      }
    } else {
      ASSERT_EQ(Read(RangeOf(page)), model.contains(page) ? model[page] : std::string(kPageBytes, '\0'));
    }
    if (i % 20'000 == 19'999) {
      // Nearly all pages are trimmed.
      for (uint64_t at = 0; at + 10 < kPages; at += 10) {
        ASSERT_EQ(Trim({at * 8, 9 * 8}), Reason::kOk);
        model.erase(model.lower_bound(at), model.lower_bound(at + 9));
      }
      compactor_.Run(kAll, kNoDeadline);
    }
  }
  EXPECT_GT(compactor_.counters().pages_moved, 1000);
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(Read(RangeOf(page)), model.contains(page) ? model[page] : std::string(kPageBytes, '\0')) << page;
  }
  ASSERT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kOk);
  arena_->CloseReservation(&lease_->reservation);
  EXPECT_EQ(arena_->usage().frame_bytes, landing_.size() * kPageBytes);
}

// Other threads that use a server while it compacts. Each function runs in a thread of its own.
class CompactorAndOthersTest : public CompactorTest {
 protected:
  static constexpr uint64_t kPages = 6'000;

  // A page is whole at any time: its first byte tells the rest.
  static bool IsWhole(uint64_t page, const std::string& data) {
    if (data == std::string(kPageBytes, '\0')) return true;
    const char salt = static_cast<char>((static_cast<unsigned char>(data[0]) + 249 - page * 31 % 250) % 250);
    return data == Page(page, salt);
  }

  void ReadOn() {
    std::mt19937_64 random(TestSeed() + 1);
    for (; !stop_; ++reads_) {
      const uint64_t page = random() % kPages;
      wrong_ += !IsWhole(page, Read(RangeOf(page)));
      std::string sent;
      store_.ReadInPlace({.region = {kRegion, 0}, .range = RangeOf(page)}, [&](const PageStore::Stored& stored) {
        for (const iovec& piece : stored.chunks) sent.append(static_cast<char*>(piece.iov_base), piece.iov_len);
      });
      wrong_ += !sent.empty() && !IsWhole(page, sent);
    }
  }

  void CreateAndDestroyOn() {
    std::mt19937_64 random(TestSeed() + 2);
    const auto lease = Grant(7);
    while (!stop_) {
      const RegionId region{1000 + random() % 8};
      Payment nobody;
      for (uint64_t page = 0; page < 200; ++page) WriteSevens(lease.get(), region, page, &nobody);
      const Reason reason = store_.Destroy(lease.get(), region, 1);
      wrong_ += reason != Reason::kOk && reason != Reason::kUnknownRegion;
    }
  }

  void WriteSevens(Lease* lease, RegionId region, uint64_t page, Payment* payment) {
    FrameLoc landed;
    if (!landing_.Take(1, &landed)) return;
    memset(arena_->Data(landed), 7, kPageBytes);
    const uint32_t crc = Crc32c(0, arena_->Data(landed), kPageBytes);
    store_.Write(lease,
                 {.region = region,
                  .epoch = 1,
                  .range = RangeOf(page),
                  .page_crcs = {&crc, 1},
                  .landed = &landed,
                  .absent = PageStore::IfAbsent::kCreate},
                 payment);
    landing_.Give(&landed, 1);
  }

  void WriteAndTrimOn() {
    std::mt19937_64 random(TestSeed() + 3);
    for (uint64_t writes = 0; !stop_; ++writes) {
      const uint64_t page = random() % kPages;
      // The number of pages rises and falls like the tide, which leaves holes.
      if (random() % 8 < (writes / 2000 % 2 == 0 ? 6 : 2)) {
        wrong_ += Write(RangeOf(page), Page(page, static_cast<char>(random() % 100))) != Reason::kOk;
      } else {
        wrong_ += Trim(RangeOf(page)) != Reason::kOk;
      }
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> reads_{0}, wrong_{0};
};

TEST_F(CompactorAndOthersTest, NobodySeesPagesMove) {
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(Write(RangeOf(page), Page(page)), Reason::kOk);
  std::thread reader([&] { ReadOn(); });
  std::thread destroyer([&] { CreateAndDestroyOn(); });
  std::thread writer([&] { WriteAndTrimOn(); });
  for (int i = 0; i < 1'000'000 && (reads_ < 2000 || compactor_.counters().pages_moved < 5000); ++i) {
    compactor_.Run(kAll, MonotonicNs() + 50 * kNsPerMs);
    std::this_thread::yield();
  }
  stop_ = true;
  reader.join();
  destroyer.join();
  writer.join();
  EXPECT_EQ(wrong_, 0);
  EXPECT_GE(compactor_.counters().pages_moved, 5000);
  EXPECT_EQ(arena_->evacuating_extents(), 0);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_TRUE(IsWhole(page, Read(RangeOf(page)))) << page;
}

}  // namespace
}  // namespace nram
