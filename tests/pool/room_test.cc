// Room on real servers: full servers, reserved room, and room that other clients cannot take.

#include <poll.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

TEST(RoomTest, FullIsAnErrorAndNothingIsLost) {
  TestPool servers(2, 128 * kMiB);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  uint64_t written = 0;
  absl::Status status;
  while ((status = region->Write(written, Bytes(data))).ok()) written += kMiB;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_GT(written, 32 * kMiB);
  for (uint64_t at = 0; at < written; at += kMiB) ASSERT_TRUE(Read(region.get(), at, kMiB).value() == data) << at;
  // Overwriting needs no room.
  const std::string other = Pattern(kMiB, 2);
  for (uint64_t at = 0; at < written; at += kMiB) ASSERT_TRUE(region->Write(at, Bytes(other)).ok()) << at;
  // When some memory is freed, there is room again.
  ASSERT_TRUE(region->Trim(0, written / 2).ok());
  status = region->Write(written, Bytes(data));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RoomTest, WhatIsReservedIsThere) {
  TestPool servers(2, 160 * kMiB);
  auto pool = servers.Open();
  auto mine = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(mine->Reserve(0, 32 * kMiB).ok());
  EXPECT_EQ(mine->Reserve(32 * kMiB, kGiB).code(), absl::StatusCode::kResourceExhausted);
  auto other_pool = servers.Open();
  for (Pool* greedy_pool : {pool.get(), other_pool.get()}) {
    auto greedy = greedy_pool->CreateRegion({.gc = true}).value();
    const std::string data = Pattern(kMiB, 1);
    for (uint64_t at = 0; greedy->Write(at, Bytes(data)).ok(); at += kMiB) {
    }
    if (greedy_pool == other_pool.get()) {
      const std::string page = Pattern(4096, 3);
      // The pages are written in a mixed order.
      for (uint64_t i = 0; i < 32 * kMiB / kPageBytes; ++i) {
        const uint64_t at = i * 4099 % (32 * kMiB / kPageBytes) * kPageBytes;
        const absl::Status status = mine->Write(at, Bytes(page));
        ASSERT_TRUE(status.ok()) << i << ": " << status;
      }
    }
    if (greedy_pool == pool.get()) {
      ASSERT_TRUE(greedy->Destroy().ok());
    }
  }
}

// A write of many pages, few of them new, when only the new pages' reserved room is left.
TEST(RoomTest, WhatIsReservedIsThereForALargeWriteToo) {
  TestPool servers(1, 128 * kMiB);
  auto pool = servers.Open();
  auto mine = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(mine->Reserve(0, kMiB).ok());
  const std::string data = Pattern(kMiB, 2);
  for (uint64_t page = 0; page < 255; ++page) {
    ASSERT_TRUE(mine->Write(page * kPageBytes, Bytes(data.substr(0, kPageBytes))).ok());
  }
  auto other_pool = servers.Open();
  for (Pool* greedy_pool : {pool.get(), other_pool.get()}) {
    auto greedy = greedy_pool->CreateRegion({.gc = false}).value();
    for (uint64_t at = 0; greedy->Write(at, Bytes(data)).ok(); at += kMiB) {
    }
    for (uint64_t at = 0; greedy->Write(at, Bytes(data.substr(0, 4096))).ok(); at += 4096) {
      if (at >= 256 * kMiB) break;
    }
  }
  const absl::Status status = mine->Write(0, Bytes(data));
  EXPECT_TRUE(status.ok()) << status;
}

// Each write has less than its pages would need if they were all new; together they have enough.
TEST(RoomTest, ManyWritesAtOnceShareWhatIsReserved) {
  TestPool servers(1, 128 * kMiB);
  auto pool = servers.Open();
  auto mine = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(mine->Reserve(0, kMiB).ok());
  const std::string data = Pattern(kMiB, 2);
  ASSERT_TRUE(mine->Write(0, Bytes(data)).ok());
  auto other_pool = servers.Open();
  for (Pool* greedy_pool : {pool.get(), other_pool.get()}) {
    auto greedy = greedy_pool->CreateRegion({.gc = false}).value();
    for (uint64_t at = 0; greedy->Write(at, Bytes(data)).ok(); at += kMiB) {
    }
  }
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(TestSeed() + thread);
      for (int i = 0; i < 12; ++i) {
        const uint64_t page = random() % 256;
        const absl::Status trimmed = mine->Trim(page * kPageBytes, kPageBytes, {}, Region::TrimRoom::kKeep);
        ASSERT_TRUE(trimmed.ok()) << trimmed;
        const absl::Status written = mine->Write(0, Bytes(data));
        ASSERT_TRUE(written.ok()) << "thread " << thread << ", " << i << ": " << written;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Read(mine.get(), 0, kMiB).value() == data);
}

TEST(RoomTest, ReservingAndGivingBackForEverKeepsNothing) {
  TestPool servers(1, 128 * kMiB);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Reserve(0, kPageBytes).ok());  // remains, so that the region always has some reserved room
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(region->Reserve(kMiB - kPageBytes, kPageBytes).ok()) << i;
    region->Unreserve(kMiB - kPageBytes, kPageBytes);
  }
  // A leak of 512 bytes a turn would be 10 MB more.
  const uint64_t reserved_bytes = servers.server(0).arena().usage().reserved_bytes;
  auto other = pool->CreateRegion({.gc = true}).value();
  const uint64_t free_bytes = servers.server(0).arena().usage().free_bytes + reserved_bytes;
  const absl::Status status =
      other->Reserve(0, free_bytes / kReservationBytesPerPage * kPageBytes / kMiB * kMiB - 3 * kMiB);
  EXPECT_TRUE(status.ok()) << status;
}

// Swap depends on this: pages are stored and freed for ever, and a greedy client never gets the region's room.
TEST(RoomTest, RoomThatATrimKeepsIsThereAgain) {
  constexpr uint64_t kBytes = 24 * kMiB;
  TestPool servers(2, 128 * kMiB);
  auto pool = servers.Open();
  auto mine = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(mine->Reserve(0, kBytes).ok());
  auto other_pool = servers.Open();
  auto greedy = other_pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  uint64_t greedy_end = 0;
  const auto take_all = [&] {
    for (; greedy->Write(greedy_end, Bytes(data)).ok(); greedy_end += kMiB) {
    }
    greedy_end += kMiB;  // spans that failed remain on their server
  };
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 20; ++round) {
    take_all();
    for (uint64_t at = 0; at < kBytes; at += kMiB) {
      // Some chunks are zeros, which are not stored.
      std::string part = Pattern(kMiB, round);
      if (random() % 3 == 0) part.replace(0, kMiB / 2, kMiB / 2, '\0');
      const absl::Status status = mine->Write(at, Bytes(part));
      ASSERT_TRUE(status.ok()) << "round " << round << ", " << at << ": " << status;
    }
    // The trims are single pages, whole spans, everything.
    if (round % 3 == 0) {
      ASSERT_TRUE(mine->Trim(0, kBytes, {}, Region::TrimRoom::kKeep).ok());
      continue;
    }
    for (int i = 0; i < 300; ++i) {
      const uint64_t pages = random() % 4 == 0 ? kPagesPerSpan * 2 : 1 + random() % 8;
      const uint64_t first = random() % (kBytes / kPageBytes - pages);
      ASSERT_TRUE(mine->Trim(first * kPageBytes, pages * kPageBytes, {}, Region::TrimRoom::kKeep).ok());
    }
  }
  // A trim that does not keep the room leaves it to any client, as soon as that client learns of it.
  for (uint64_t at = 0; at < kBytes; at += kMiB) ASSERT_TRUE(mine->Write(at, Bytes(data)).ok());
  ASSERT_TRUE(mine->Trim(0, kBytes).ok());
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  greedy_end += 8 * kMiB;
  while (!greedy->Write(greedy_end, Bytes(data)).ok()) {
    ASSERT_LT(MonotonicNs(), deadline_ns);
    poll(nullptr, 0, 20);
  }
}

TEST(RoomTest, AFullServerIsPassedOverAlsoWhileThisClientFreesThings) {
  TestPool servers(2);
  PoolOptions first = servers.Options();
  first.servers.pop_back();
  auto filling = TestPool::Open(first);
  auto much = filling->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  for (uint64_t at = 0; much->Write(at, Bytes(data)).ok(); at += kMiB) {
  }
  auto pool = servers.Open();
  std::atomic<bool> done{false};
  std::thread frees([&] {
    while (!done) pool->session(0)->NoteFreed();
  });
  auto region = pool->CreateRegion({.gc = true}).value();
  // Enough spans that some are placed on the full server.
  for (uint64_t at = 0; at < 800 * kMiB; at += kMiB) {
    const absl::Status status = region->Write(at, Bytes(data.substr(0, kPageBytes)));
    EXPECT_TRUE(status.ok()) << at << ": " << status;
  }
  done = true;
  frees.join();
}

}  // namespace
}  // namespace nram
