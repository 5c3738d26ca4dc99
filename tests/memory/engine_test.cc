// Memory's engine on real servers: contents, residency, eviction, advice, losses, and random operations from many
// threads against a model.

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
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
#include "client/memory/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBudget = 4 * kMiB;

class EngineTest : public ::testing::TestWithParam<Policy> {
 protected:
  MemoryOptions Options() const {
    MemoryOptions options;
    options.pool = servers_.Options();
    options.budget_bytes = kBudget;
    options.policy = GetParam();
    return options;
  }
  std::unique_ptr<Memory> Open() { return Open(Options()); }
  std::unique_ptr<Memory> Open(const MemoryOptions& options) {
    auto memory = Memory::Open(options);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }
  static uint64_t* Words(Memory* memory, uint64_t bytes) {
    auto base = memory->Map({.length = bytes});
    EXPECT_TRUE(base.ok()) << base.status();
    return base.ok() ? reinterpret_cast<uint64_t*>(*base) : nullptr;
  }

  TestPool servers_{2, 256 * kMiB};
};

constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);

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
  // And downwards.
  for (uint64_t i = kCount; i-- > 0;) ASSERT_EQ(words[i], i * 3) << i;
  EXPECT_LE(memory->resident_bytes(), kBudget);
  EXPECT_GE(memory->counters().fetched_bytes, 2 * 28 * kMiB);
}

TEST_P(EngineTest, PagesThatAreOnlyReadAreNeverWrittenBack) {
  auto memory = Open();
  constexpr uint64_t kCount = 16 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = ~i;
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());
  const uint64_t written = memory->counters().written_bytes;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], ~i);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t at = random() % kCount;
    ASSERT_EQ(words[at], ~at);
  }
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());
  EXPECT_EQ(memory->counters().written_bytes, written);
}

TEST_P(EngineTest, OnlyChunksThatChangeAreWrittenBack) {
  auto memory = Open();
  constexpr uint64_t kPages = 800;
  auto* const words = Words(memory.get(), kPages * kPageBytes);
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) words[i] = i;
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());  // pages that seem to be streams' go whole
  std::mt19937_64 random(7);
  std::vector<uint64_t> order(kPages);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  // Written to when they come, and only after they were read; a word in one chunk; then what they hold already.
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
      // A few of them are forgotten.
      EXPECT_LE(memory->counters().written_bytes - before, kPages * (plus * kChunkBytes + kPageBytes / 20));
    }
  }
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) {
    const uint64_t page = i / kWordsPerPage;
    ASSERT_EQ(words[i], i + (i % kWordsPerPage == page % kWordsPerPage ? 2 : 0)) << i;
  }
}

// What servers have is not what was noted of a page once it has been sent: a word that is again what it was must go.
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
  // Not a fault for each page that is read and then written.
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
    // Out of a page that is away, and into one.
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

  // A prefetched page is no demand fault any more.
  ASSERT_TRUE(memory->Prefetch(words, kMiB).ok());
  for (uint64_t i = 0; i < kMiB / 8; ++i) ASSERT_EQ(words[i], i);

  // Dropped pages are zeros, also those on servers; the rest of a page that is dropped in part stays.
  ASSERT_TRUE(memory->Drop(words + 100, kMiB).ok());
  EXPECT_EQ(words[100], 100u);
  EXPECT_EQ(words[kWordsPerPage], 0u);
  EXPECT_EQ(words[kMiB / 8], kMiB / 8);
  ASSERT_TRUE(memory->Drop(words, kCount * 8).ok());
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], 0u);

  // A pinned page stays where it is whatever comes.
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
  // What was refused has taken nothing: nearly everything can be mapped still.
  EXPECT_TRUE(memory->Map({.length = 400 * kMiB}).ok());
}

TEST_P(EngineTest, UnmapGivesEverythingBack) {
  auto memory = Open();
  for (int round = 0; round < 20; ++round) {
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
  // Attached without keep: it goes.
  ASSERT_TRUE(later->Unmap(words).ok());
  EXPECT_EQ(later->Map({.name = "kept", .kind = MapKind::kAttach}).status().code(), absl::StatusCode::kNotFound);
}

sigjmp_buf after_signal;
std::atomic<void*> signal_address;

void OnSignal(int, siginfo_t* info, void*) {
  signal_address = info->si_addr;
  siglongjmp(after_signal, 1);
}

// The address whose read raised SIGBUS; null if it did not.
void* AddressOfSigbus(const volatile uint64_t* at) {
  struct sigaction action = {}, before;
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &before);
  signal_address = nullptr;
  if (sigsetjmp(after_signal, 1) == 0) (void)*at;
  sigaction(SIGBUS, &before, nullptr);
  return signal_address;
}

TEST_P(EngineTest, PagesOfALostServerAreSigbusNeverZeros) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  options.pool.fail_fast_after_ms = 300;
  std::atomic<int> losses{0};
  options.on_loss = [&](void*, size_t, const std::string&) { ++losses; };
  auto memory = Open(options);
  constexpr uint64_t kCount = 16 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());
  for (uint64_t i = 0; i < kCount; ++i) words[i] = i + 1;
  ASSERT_TRUE(memory->Evict(words, kCount * 8).ok());
  servers_.StopServer(0);
  int lost = 0, kept = 0;
  // A page of every MiB: about half of them were on the server.
  for (uint64_t i = 0; i < kCount; i += kMiB / 8) {
    if (void* const at = AddressOfSigbus(&words[i]); at != nullptr) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) / 4096, reinterpret_cast<uintptr_t>(&words[i]) / 4096);
      // Again, and at once.
      EXPECT_NE(AddressOfSigbus(&words[i]), nullptr);
      ++lost;
    } else {
      ASSERT_EQ(words[i], i + 1);
      ++kept;
    }
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(kept, 0);
  EXPECT_EQ(losses, lost);
  EXPECT_EQ(memory->counters().lost_pages, static_cast<uint64_t>(lost));
}

TEST_P(EngineTest, WhatCannotBeWrittenBackStaysHere) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  options.pool.fail_fast_after_ms = 300;
  options.on_loss = [](void*, size_t, const std::string&) {};
  auto memory = Open(options);
  uint64_t* const words = Words(memory.get(), 2 * kMiB);
  for (uint64_t i = 0; i < 2 * kMiB / 8; ++i) words[i] = i;
  servers_.StopServer(0);
  servers_.StopServer(1);
  EXPECT_FALSE(memory->Flush(words, 2 * kMiB).ok());
  for (uint64_t i = 0; i < 2 * kMiB / 8; ++i) ASSERT_EQ(words[i], i);
  for (uint64_t i = 0; i < 2 * kMiB / 8; ++i) words[i] = ~i;
  for (uint64_t i = 0; i < 2 * kMiB / 8; ++i) ASSERT_EQ(words[i], ~i);
}

// The evictor takes dirty pages, fails, and takes them again, all the time: a flush must not take that for success.
TEST_P(EngineTest, FlushDoesNotTrustTheEvictor) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 500;
  options.pool.fail_fast_after_ms = 200;
  options.on_loss = [](void*, size_t, const std::string&) {};
  auto memory = Open(options);
  uint64_t* const words = Words(memory.get(), 64 * kMiB);
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());
  servers_.StopServer(0);
  servers_.StopServer(1);
  // More than the evictor leaves alone, less than the budget.
  constexpr uint64_t kPages = 860;
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = page + 1;
  for (int i = 0; i < 5; ++i) {
    for (uint64_t page = 0; page < kPages; page += 97) {
      EXPECT_FALSE(memory->Flush(words + page * kWordsPerPage, kPageBytes).ok()) << page;
    }
  }
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(words[page * kWordsPerPage], page + 1);
}

// A window that lies on a dead server in part must not cost the pages of the others.
TEST_P(EngineTest, OnlyPagesOfTheDeadServerAreLost) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  options.pool.fail_fast_after_ms = 100;
  options.budget_bytes = 64 * kMiB;  // windows of half a MiB
  options.on_loss = [](void*, size_t, const std::string&) {};
  auto memory = Open(options);
  constexpr uint64_t kPages = 4096;
  uint64_t* const words = Words(memory.get(), kPages * kPageBytes);
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = page + 1;
  ASSERT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
  servers_.StopServer(1);
  uint64_t lost = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    if (AddressOfSigbus(words + page * kWordsPerPage) != nullptr) {
      ++lost;
      // The span is lost; on to the next.
      while (page % kPagesPerSpan != kPagesPerSpan - 1) ++page;
    } else {
      ASSERT_EQ(words[page * kWordsPerPage], page + 1);
    }
  }
  EXPECT_GE(lost, 4u);
  EXPECT_LE(lost, 12u) << "of 16 spans, half of which were on the dead server";
}

TEST_P(EngineTest, PinnedMemoryCountsAsDirty) {
  auto memory = Open();
  uint64_t* const words = Words(memory.get(), kMiB);
  words[0] = 1;
  ASSERT_TRUE(memory->Pin(words, kPageBytes).ok());
  // A device writes to it where no page table tells: each flush must send it.
  for (int i = 0; i < 3; ++i) {
    const uint64_t written = memory->counters().written_bytes;
    ASSERT_TRUE(memory->Flush(words, kMiB).ok());
    EXPECT_GT(memory->counters().written_bytes, written);
  }
  ASSERT_TRUE(memory->Unpin(words, kPageBytes).ok());
  ASSERT_TRUE(memory->Evict(words, kMiB).ok());
  EXPECT_EQ(words[0], 1u);
}

TEST_P(EngineTest, TheProgramsOwnMadviseAndMlockDoNoHarm) {
  auto memory = Open();
  constexpr uint64_t kCount = 8 * kMiB / 8;
  uint64_t* const words = Words(memory.get(), kCount * 8);
  // Splits the range in the kernel, in the middle of windows.
  ASSERT_EQ(madvise(words + 37 * kWordsPerPage, 101 * kPageBytes, MADV_DONTDUMP), 0);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = i;
  ASSERT_EQ(mlock2(words, 64 * kPageBytes, MLOCK_ONFAULT), 0);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i);
  }
  ASSERT_TRUE(memory->Drop(words, kMiB).ok());
  EXPECT_EQ(words[0], 0u);
}

TEST_P(EngineTest, AChildDoesNotSeeZeros) {
  auto memory = Open();
  uint64_t* const words = Words(memory.get(), kMiB);
  words[0] = 1;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(static_cast<int>(*static_cast<volatile uint64_t*>(words)));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(words[0], 1u);
}

// Each thread owns every n-th page; now and then all of it is advised about by somebody.
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
            // Of everybody's pages.
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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const auto kPolicies = ::testing::Values(Policy::kSecondChance);  // they differ in one line; the sanitizers are slow
#else
const auto kPolicies = ::testing::Values(Policy::kSecondChance, Policy::kFifo, Policy::kRandom);
#endif
INSTANTIATE_TEST_SUITE_P(Policies, EngineTest, kPolicies, [](const auto& info) {
  return info.param == Policy::kSecondChance ? "SecondChance" : info.param == Policy::kFifo ? "Fifo" : "Random";
});

}  // namespace
}  // namespace nram
