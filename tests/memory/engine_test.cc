// Memory's engine on real servers: contents, residency, eviction, advice, and random operations from many threads
// against a model. engine_trouble_test.cc has the failures.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "tests/memory/engine_fixture.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

TEST_P(EngineTest, FreshMemoryIsZerosAndCostsNothing) {
  auto memory = Open();
  uint64_t* const words = Words(memory.get(), 64 * kMiB);
  for (uint64_t i = 0; i < 64 * kMiB / 8; i += kWordsPerPage) ASSERT_EQ(words[i], 0u) << i;
  EXPECT_EQ(memory->counters().written_bytes, 0u);
  EXPECT_EQ(memory->counters().fetched_bytes, 0u);
  EXPECT_LE(memory->resident_bytes(), kBudget);
}

TEST_P(EngineTest, HoldsMoreThanTheBudget) {
  auto memory = Open();
  constexpr uint64_t kCount = 32 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = i * 3;
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i * 3) << i;
  }
  // The same downwards.
  for (uint64_t i = kCount; i-- > 0;) ASSERT_EQ(words[i], i * 3) << i;
  EXPECT_LE(memory->resident_bytes(), kBudget);
  EXPECT_GE(memory->counters().fetched_bytes, 2 * 28 * kMiB);
}

TEST_P(EngineTest, PagesThatAreOnlyReadAreNeverWrittenBack) {
  auto memory = Open();
  constexpr uint64_t kCount = 16 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = ~i;
  ASSERT_TRUE(memory->Flush(words, kCount * 8).ok());  // all pages; Evict leaves alone pages that are leaving
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());
  const uint64_t written = memory->counters().written_bytes;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], ~i);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t at = random() % kCount;
    ASSERT_EQ(words[at], ~at);
  }
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());
  // Pages that are evicted at random while they are filled are fetched again by streams that write, and a reader may
  // meet such a stream later: a few of its windows are mapped writable.
  const uint64_t guessed = GetParam() == Policy::kRandom ? kMiB : 0;
  EXPECT_LE(memory->counters().written_bytes, written + guessed);
}

TEST_P(EngineTest, OnlyChunksThatChangeAreWrittenBack) {
  auto memory = Open();
  constexpr uint64_t kPages = 800;
  auto* const words = Words(memory.get(), kPages * kPageBytes);
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) words[i] = i;
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());  // pages of streams are sent whole
  std::mt19937_64 random(7);
  std::vector<uint64_t> order(kPages);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  // Each page is written to at its first touch, or only after a read. The write changes a word in one chunk, or
  // nothing.
  for (const bool read_first : {false, true}) {
    for (const uint64_t plus : {1, 0}) {
      ASSERT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
      const uint64_t before = memory->counters().written_bytes;
      for (const uint64_t page : order) {
        volatile uint64_t* const word = words + page * kWordsPerPage + page % kWordsPerPage;
        const uint64_t i = page * kWordsPerPage + page % kWordsPerPage;
        const uint64_t now = read_first ? *word : i + (plus == 1 ? 0 : 1);
        *word = now + plus;
      }
      ASSERT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
      // The sums of a few pages are forgotten.
      EXPECT_LE(memory->counters().written_bytes - before, kPages * (plus * kChunkBytes + kPageBytes / 20));
    }
  }
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) {
    const uint64_t page = i / kWordsPerPage;
    ASSERT_EQ(words[i], i + (i % kWordsPerPage == page % kWordsPerPage ? 2 : 0)) << i;
  }
}

// Once a page is sent, its noted sums are not the servers' data any more: a word that changes back must be sent.
TEST_P(EngineTest, WordsThatAreAgainWhatTheyWereAreWritten) {
  auto memory = Open();
  constexpr uint64_t kPages = 2048;
  auto* const words = Words(memory.get(), kPages * kPageBytes);
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) words[i] = 1;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t mine = 0; mine < 4; ++mine) {
    threads.emplace_back([&, mine] {
      std::mt19937_64 random(mine);
      std::vector<bool> flipped(kPages);
      for (int i = 0; i < 6'000; ++i) {
        const uint64_t page = random() % kPages;
        const uint64_t at = page * kWordsPerPage + mine * 64;
        if (words[at] != (flipped[page] ? 0 : 1)) ++wrong;
        for (uint64_t times = 1 + random() % 3; times > 0; --times) {
          flipped[page] = !flipped[page];
          words[at] = flipped[page] ? 0 : 1;
          if (random() % 8 == 0 && !memory->Flush(words + at, 8).ok()) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(EngineTest, ReadThenWriteInOrder) {
  auto memory = Open();
  constexpr uint64_t kCount = 16 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = i;
  for (uint64_t i = 0; i < kCount; ++i) words[i] += 7;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i + 7) << i;
  // Not every page that is read and then written costs a write fault.
  EXPECT_LT(memory->counters().write_faults, kCount / kWordsPerPage / 2);
}

TEST_P(EngineTest, SystemCallsReachPagesThatAreElsewhere) {
  auto memory = Open();
  auto* const bytes = reinterpret_cast<char*>(Words(memory.get(), 8 * kMiB));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  for (uint64_t at = 4000; at < 8 * kMiB; at += 300'000) {
    snprintf(bytes + at, 100, "text at %lu", at);
    ASSERT_TRUE(memory->Evict(bytes, 8 * kMiB).ok());
    // Out of a remote page, and into one.
    ASSERT_EQ(write(ends[0], bytes + at, 100), 100);
    ASSERT_EQ(read(ends[1], bytes + at + 5000, 100), 100);
    ASSERT_STREQ(bytes + at, bytes + at + 5000);
    ASSERT_TRUE(memory->Evict(bytes, 8 * kMiB).ok());
    ASSERT_STREQ(bytes + at, bytes + at + 5000);
  }
  close(ends[0]);
  close(ends[1]);
}

TEST_P(EngineTest, Advice) {
  auto memory = Open();
  constexpr uint64_t kCount = 8 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = i;
  ASSERT_TRUE(memory->Flush(words, kCount * 8).ok());
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());

  // A prefetched page costs no demand fault.
  ASSERT_TRUE(memory->Prefetch(words, kMiB).ok());
  for (uint64_t i = 0; i < kMiB / 8; ++i) ASSERT_EQ(words[i], i);

  // Dropped pages are zeros, also on servers; the rest of a page that is dropped in part remains.
  ASSERT_TRUE(memory->Drop(words + 100, kMiB).ok());
  EXPECT_EQ(words[100], 100u);
  EXPECT_EQ(words[kWordsPerPage], 0u);
  EXPECT_EQ(words[kMiB / 8], kMiB / 8);
  ASSERT_TRUE(memory->Drop(words, kCount * 8).ok());
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], 0u);

  // A pinned page remains local, whatever happens.
  words[0] = 42;
  ASSERT_TRUE(memory->Pin(words, 64 * kKiB).ok());
  for (uint64_t i = kMiB / 8; i < kCount; ++i) words[i] = i;
  unsigned char here[16];
  ASSERT_EQ(mincore(words, 64 * kKiB, here), 0);
  for (const unsigned char page : here) EXPECT_EQ(page & 1, 1);
  EXPECT_EQ(memory->Pin(words, kCount * 8).code(), absl::StatusCode::kOutOfRange);
  ASSERT_TRUE(memory->Unpin(words, 64 * kKiB).ok());
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());
  ASSERT_EQ(mincore(words, 64 * kKiB, here), 0);
  for (const unsigned char page : here) EXPECT_EQ(page & 1, 0);
  EXPECT_EQ(words[0], 42u);

  int local = 0;
  EXPECT_EQ(memory->Flush(&local, 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->Flush(words, kCount * 8 + 1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineTest, LargerPages) {
  for (const uint64_t page_bytes : {8 * kKiB, 12 * kKiB, 64 * kKiB}) {
    MemoryOptions options = Options();
    options.page_bytes = page_bytes;
    options.budget_bytes = 2 * kBudget;
    auto memory = Open(options);
    constexpr uint64_t kCount = 12 * kMiB / 8;
    uint64_t* const words = Words(memory.get(), kCount * 8);
    for (uint64_t i = 0; i < kCount; ++i) words[i] = i ^ page_bytes;
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i ^ page_bytes) << i;
    EXPECT_LE(memory->resident_bytes(), 2 * kBudget);
  }
}

TEST_P(EngineTest, BadInputIsRefused) {
  MemoryOptions options = Options();
  options.budget_bytes = 100 * kKiB;
  EXPECT_THAT(std::string(Memory::Open(options).status().message()), HasSubstr("4.00 MiB or more"));
  options = Options();
  options.page_bytes = 5000;
  EXPECT_THAT(std::string(Memory::Open(options).status().message()), HasSubstr("multiple of 4096"));
  options = Options();
  options.handlers = 0;
  EXPECT_EQ(Memory::Open(options).status().code(), absl::StatusCode::kInvalidArgument);

  auto memory = Open();
  EXPECT_EQ(memory->Map({.length = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->Map({.length = 100 * kGiB}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory->Map({.length = kMiB, .keep = true}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->Map({.name = "none", .kind = MapKind::kAttach}).status().code(), absl::StatusCode::kNotFound);
  int local = 0;
  EXPECT_EQ(memory->Unmap(&local).code(), absl::StatusCode::kInvalidArgument);
  // The refused mapping has taken nothing: nearly everything can still be mapped.
  EXPECT_TRUE(memory->Map({.length = 380 * kMiB}).ok());
}

TEST_P(EngineTest, UnmapGivesEverythingBack) {
  auto memory = Open();
  for (int round = 0; round < 8; ++round) {
    uint64_t* const words = Words(memory.get(), 64 * kMiB);
    ASSERT_NE(words, nullptr);
    for (uint64_t i = 0; i < 64 * kMiB / 8; i += kWordsPerPage) words[i] = i;
    ASSERT_TRUE(memory->Unmap(words).ok());
  }
  EXPECT_EQ(memory->mapped_bytes(), 0u);
  const uint64_t buffers = memory->resident_bytes();
  EXPECT_LT(buffers, kBudget / 4);
}

TEST_P(EngineTest, NamedRegionsAreSeenByOthers) {
  auto writer = Open();
  auto base = writer->Map({.length = 10 * kMiB, .name = "table"});
  ASSERT_TRUE(base.ok()) << base.status();
  auto* words = reinterpret_cast<uint64_t*>(*base);
  for (uint64_t i = 0; i < 10 * kMiB / 8; ++i) words[i] = i;
  ASSERT_TRUE(writer->Flush(words, 10 * kMiB).ok());
  EXPECT_EQ(writer->Map({.length = kMiB, .name = "table"}).status().code(), absl::StatusCode::kAlreadyExists);

  auto reader = Open();
  auto seen = reader->Map({.name = "table", .kind = MapKind::kReadOnly});
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(reader->LengthOf(*seen), 10 * kMiB);
  for (uint64_t i = 0; i < 10 * kMiB / 8; ++i) ASSERT_EQ(reinterpret_cast<uint64_t*>(*seen)[i], i);
  EXPECT_EQ(reader->Map({.name = "table", .kind = MapKind::kAttach}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(reader->Unmap(*seen).ok());
  ASSERT_TRUE(writer->Unmap(words).ok());
  EXPECT_EQ(reader->Map({.name = "table", .kind = MapKind::kReadOnly}).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(EngineTest, KeptRegionsOutliveTheirWriter) {
  {
    auto writer = Open();
    auto base = writer->Map({.length = 8 * kMiB, .name = "kept", .keep = true});
    ASSERT_TRUE(base.ok()) << base.status();
    for (uint64_t i = 0; i < 8 * kMiB / 8; ++i) reinterpret_cast<uint64_t*>(*base)[i] = i + 1;
    ASSERT_TRUE(writer->Close().ok());
  }
  auto later = Open();
  auto base = later->Map({.name = "kept", .kind = MapKind::kAttach});
  ASSERT_TRUE(base.ok()) << base.status();
  auto* words = reinterpret_cast<uint64_t*>(*base);
  for (uint64_t i = 0; i < 8 * kMiB / 8; ++i) ASSERT_EQ(words[i], i + 1);
  for (uint64_t i = 0; i < 8 * kMiB / 8; i += 512) words[i] = 5;
  for (uint64_t i = 0; i < 8 * kMiB / 8; ++i) ASSERT_EQ(words[i], i % 512 == 0 ? 5 : i + 1);
  // It is attached without keep, so the region is destroyed.
  ASSERT_TRUE(later->Unmap(words).ok());
  EXPECT_EQ(later->Map({.name = "kept", .kind = MapKind::kAttach}).status().code(), absl::StatusCode::kNotFound);
}

// A process that attaches a region for writing shuts out the former writer, itself included.
TEST_P(EngineTest, ANameIsMappedForWritingOnce) {
  auto memory = Open();
  auto base = memory->Map({.length = kMiB, .name = "once", .keep = true});
  ASSERT_TRUE(base.ok()) << base.status();
  const auto attach = [&] { return memory->Map({.name = "once", .kind = MapKind::kAttach, .keep = true}); };
  for (const uint64_t word : {1, 2}) {
    EXPECT_EQ(attach().status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(memory->Map({.length = kMiB, .name = "once"}).status().code(), absl::StatusCode::kAlreadyExists);
    auto* const words = reinterpret_cast<uint64_t*>(*base);
    EXPECT_EQ(words[0], word - 1);
    words[0] = word;
    const absl::Status flushed = memory->Flush(words, kMiB);
    ASSERT_TRUE(flushed.ok()) << flushed;
    auto seen = memory->Map({.name = "once", .kind = MapKind::kReadOnly});
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(*seen), word);
    ASSERT_TRUE(memory->Unmap(*seen).ok());
    ASSERT_TRUE(memory->Unmap(*base).ok());
    base = attach();
    ASSERT_TRUE(base.ok()) << base.status();
  }
}

// A page may be under eviction when it is pinned. When Pin returns, the page has been evicted, or it remains.
TEST_P(EngineTest, PinnedPagesDoNotLeave) {
  auto memory = Open();
  constexpr uint64_t kPages = 16;
  uint64_t* const words = Words(memory.get(), kPages * kPageBytes);
  std::atomic<bool> done{false};
  std::thread evictor([&] {
    while (!done) EXPECT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
  });
  std::thread writer([&] {
    for (uint64_t i = 0; !done; ++i) words[i % kPages * kWordsPerPage] = i;
  });
  // A yield costs others' turns on a busy machine.
  const int64_t enough_ns = DeadlineAfterMs(20'000);
  for (int i = 0; i < 500 && (i < 20 || MonotonicNs() < enough_ns) && !HasFailure(); ++i) {
    EXPECT_TRUE(memory->Pin(words, kPages * kPageBytes).ok());
    for (int look = 0; look < 20; ++look) {
      unsigned char here[kPages];
      EXPECT_EQ(mincore(words, kPages * kPageBytes, here), 0);
      for (const unsigned char page : here) EXPECT_EQ(page & 1, 1) << i;
    }
    EXPECT_TRUE(memory->Unpin(words, kPages * kPageBytes).ok());
    const uint64_t evicted = memory->counters().evicted_pages;
    while (memory->counters().evicted_pages == evicted) std::this_thread::yield();
    for (int turn = i * 7919 % 400; turn > 0; --turn) std::this_thread::yield();  // at any moment of the next eviction
  }
  done = true;
  evictor.join();
  writer.join();
}

TEST_P(EngineTest, PinnedMemoryCountsAsDirty) {
  auto memory = Open();
  uint64_t* const words = Words(memory.get(), kMiB);
  words[0] = 1;
  ASSERT_TRUE(memory->Pin(words, kPageBytes).ok());
  // A device writes to the page without the page tables' knowledge: each flush must send it.
  for (int i = 0; i < 3; ++i) {
    const uint64_t written = memory->counters().written_bytes;
    ASSERT_TRUE(memory->Flush(words, kMiB).ok());
    EXPECT_GT(memory->counters().written_bytes, written);
  }
  ASSERT_TRUE(memory->Unpin(words, kPageBytes).ok());
  ASSERT_TRUE(memory->Evict(words, kMiB).ok());
  EXPECT_EQ(words[0], 1u);
}

// Each thread owns every n-th page; now and then a thread gives advice about all pages.
TEST_P(EngineTest, RandomOperationsFromManyThreads) {
  const uint64_t seed = TestSeed();
  MemoryOptions options = Options();
  auto memory = Open(options);
  constexpr int kThreads = 4;
  constexpr uint64_t kPages = 4096;  // four times the budget
  uint64_t* const words = Words(memory.get(), kPages * kPageBytes);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(t));
      std::vector<uint64_t> model(kPages, 0);
      const auto check = [&](uint64_t page) {
        const uint64_t* const at = words + page * kWordsPerPage;
        const uint64_t where = random() % kWordsPerPage;
        const uint64_t expected = model[page] == 0 ? 0 : model[page] + where;
        if (at[where] != expected && ++failures < 10) {
          ADD_FAILURE() << "seed " << seed << ": page " << page << " word " << where << " is " << at[where] << ", not "
                        << expected;
        }
      };
      for (int step = 0; step < 3000; ++step) {
        const uint64_t start = random() % (kPages / kThreads) * kThreads + static_cast<uint64_t>(t);
        const uint64_t run = random() % 4 == 0 ? random() % 64 : 1;
        const uint64_t kind = random() % 100;
        for (uint64_t k = 0, page = start; k < run && page < kPages; ++k, page += kThreads) {
          if (kind < 45) {
            check(page);
          } else if (kind < 90) {
            if (random() % 2 == 0) check(page);
            model[page] = random() | 1;
            for (uint64_t i = 0; i < kWordsPerPage; ++i) words[page * kWordsPerPage + i] = model[page] + i;
          } else if (kind < 94) {
            if (!memory->Drop(words + page * kWordsPerPage, kPageBytes).ok()) ++failures;
            model[page] = 0;
          } else if (kind < 96) {
            // Evict pages of all threads.
            if (!memory->Evict(words + page * kWordsPerPage, std::min(kPages - page, random() % 64 + 1) * kPageBytes)
                     .ok()) {
              ++failures;
            }
          } else if (kind < 98) {
            if (!memory->Flush(words + page * kWordsPerPage, kPageBytes).ok()) ++failures;
          } else {
            if (!memory->Prefetch(words + page * kWordsPerPage, std::min(kPages - page, random() % 64 + 1) * kPageBytes)
                     .ok()) {
              ++failures;
            }
          }
        }
      }
      for (uint64_t page = static_cast<uint64_t>(t); page < kPages; page += kThreads) check(page);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0) << "seed " << seed;
  EXPECT_LE(memory->resident_bytes(), kBudget);
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineTest, kPolicies, PolicyName);

}  // namespace
}  // namespace nram
