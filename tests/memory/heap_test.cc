// nram_malloc and its kin on real servers, through the C API: contents under many threads, errors, and misuse.

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/test_seed.h"
#include "client/memory/nram.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class HeapTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(0); }
  void TearDown() override {
    if (n_ != nullptr) {
      EXPECT_EQ(nram_close(n_), 0) << nram_error();
    }
  }
  void Open(uint64_t local_below) {
    if (n_ != nullptr) {
      ASSERT_EQ(nram_close(n_), 0);
    }
    nram_options options;
    nram_options_init(&options);
    options.budget_bytes = 4 << 20;
    options.local_below = local_below;
    n_ = nram_open(Spec().c_str(), &options);
    ASSERT_NE(n_, nullptr) << nram_error();
  }
  std::string Spec() const { return Spec(servers_); }
  static std::string Spec(const TestPool& servers) {
    std::string spec;
    for (const Endpoint& server : servers.Options().servers) {
      absl::StrAppend(&spec, spec.empty() ? "" : ",", server.host, ":", server.port);
    }
    return spec;
  }
  nram_stats Stats() const {
    nram_stats stats;
    stats.size = sizeof(stats);
    EXPECT_EQ(nram_get_stats(n_, &stats), 0);
    return stats;
  }

  TestPool servers_{2, 256 * kMiB};
  nram_t* n_ = nullptr;
};

TEST_F(HeapTest, BlocksOfAllSizes) {
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  size_t size = 0;
  for (int i = 0; i < 200; ++i, size = size * 9 / 8 + 3) {
    auto* block = static_cast<unsigned char*>(nram_malloc(n_, size % (2 << 20)));
    ASSERT_NE(block, nullptr) << nram_error();
    EXPECT_GE(nram_usable_size(n_, block), size % (2 << 20));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 8, 0u);
    memset(block, i, size % (2 << 20));
    blocks.push_back({block, size % (2 << 20)});
    if (i % 3 == 2) {
      nram_free(n_, blocks[i / 2].first);
      blocks[i / 2] = {nullptr, 0};
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t k = 0; k < blocks[i].second; k += 1000) ASSERT_EQ(blocks[i].first[k], i % 256);
    nram_free(n_, blocks[i].first);
  }
}

TEST_F(HeapTest, LargerThanTheBudgetAndBack) {
  std::vector<uint64_t*> blocks;
  for (uint64_t i = 0; i < 2000; ++i) {
    auto* block = static_cast<uint64_t*>(nram_malloc(n_, 10'000));
    ASSERT_NE(block, nullptr) << nram_error();
    for (int k = 0; k < 1250; ++k) block[k] = i * k;
    blocks.push_back(block);
  }
  EXPECT_GT(Stats().written_bytes, uint64_t{10} << 20);
  for (uint64_t i = 0; i < 2000; ++i) {
    for (int k = 0; k < 1250; ++k) ASSERT_EQ(blocks[i][k], i * k);
  }
  for (uint64_t* block : blocks) nram_free(n_, block);
  // The memory returns to the pool without a call.
  uint64_t pages = 0;
  for (const int64_t until_ns = DeadlineAfterMs(20'000); MonotonicNs() < until_ns; usleep(20'000)) {
    pages = servers_.server(0).store().counters().pages + servers_.server(1).store().counters().pages;
    if (pages < 500) break;
  }
  EXPECT_LT(pages, 500u);
}

TEST_F(HeapTest, CallocIsZeroAlsoWhereOthersHaveBeen) {
  for (int round = 0; round < 3; ++round) {
    std::vector<unsigned char*> blocks;
    for (int i = 0; i < 100; ++i) {
      auto* block = static_cast<unsigned char*>(nram_calloc(n_, 100, 1000));
      ASSERT_NE(block, nullptr);
      for (int k = 0; k < 100'000; k += 7) ASSERT_EQ(block[k], 0);
      memset(block, 0xEE, 100'000);
      blocks.push_back(block);
    }
    for (unsigned char* block : blocks) nram_free(n_, block);
  }
}

// jemalloc's pages are smaller than these pages: if jemalloc takes memory for zeros, it must be zeros.
TEST_F(HeapTest, CallocIsZeroWithLargePages) {
  ASSERT_EQ(nram_close(n_), 0);
  nram_options options;
  nram_options_init(&options);
  options.budget_bytes = 8 << 20;
  options.page_bytes = 64 << 10;
  n_ = nram_open(Spec().c_str(), &options);
  ASSERT_NE(n_, nullptr) << nram_error();
  for (int round = 0; round < 3; ++round) {
    std::vector<unsigned char*> blocks;
    for (int i = 0; i < 200; ++i) {
      auto* block = static_cast<unsigned char*>(nram_calloc(n_, 40, 1024));
      ASSERT_NE(block, nullptr) << nram_error();
      for (int k = 0; k < 40 * 1024; k += 11) ASSERT_EQ(block[k], 0);
      memset(block, 0xEE, 40 * 1024);
      blocks.push_back(block);
    }
    for (unsigned char* block : blocks) nram_free(n_, block);
    // Wait until unused memory has been given back.
    const uint64_t before = servers_.server(0).store().counters().pages;
    for (const int64_t until_ns = DeadlineAfterMs(4'000); MonotonicNs() < until_ns; usleep(20'000)) {
      if (before == 0 || servers_.server(0).store().counters().pages < before / 2) break;
    }
  }
}

TEST_F(HeapTest, ThreadsThatEndLeaveTheirCachesToOthers) {
  uint64_t before = 0;
  for (int i = 0; i < 5'000; ++i) {
    std::thread([this] { nram_free(n_, nram_malloc(n_, 100)); }).join();
    if (i == 100) before = ReadProcessMemory().resident_bytes;
  }
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)  // they keep memory of ended threads
  EXPECT_LT(ReadProcessMemory().resident_bytes, before + (16 << 20));
#endif
  EXPECT_GT(before, 0u);
}

TEST_F(HeapTest, BlocksAreNoMappings) {
  void* const block = nram_malloc(n_, 100);
  const auto base = reinterpret_cast<uintptr_t>(block) >> 21 << 21;
  for (uintptr_t at = base; at <= reinterpret_cast<uintptr_t>(block); at += 4096) {
    EXPECT_EQ(nram_munmap(n_, reinterpret_cast<void*>(at)), -1);
    EXPECT_EQ(nram_length(n_, reinterpret_cast<void*>(at)), 0u);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(nram_malloc(n_, 1)) % 16, 0u);
  nram_free(n_, block);
}

TEST_F(HeapTest, ReallocKeepsContents) {
  auto* block = static_cast<uint64_t*>(nram_realloc(n_, nullptr, 8));
  block[0] = 0;
  size_t count = 1;
  while (count < 3'000'000) {
    const size_t more = count * 2;
    block = static_cast<uint64_t*>(nram_realloc(n_, block, more * 8));
    ASSERT_NE(block, nullptr) << nram_error();
    for (size_t i = count; i < more; ++i) block[i] = i;
    count = more;
  }
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(block[i], i);
  block = static_cast<uint64_t*>(nram_realloc(n_, block, 80));
  for (size_t i = 0; i < 10; ++i) ASSERT_EQ(block[i], i);
  EXPECT_EQ(nram_realloc(n_, block, 0), nullptr);
}

TEST_F(HeapTest, Alignment) {
  for (size_t align = 1; align <= 4 << 20; align *= 4) {
    void* const block = nram_aligned_alloc(n_, align, 100);
    ASSERT_NE(block, nullptr) << nram_error();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % align, 0u);
    nram_free(n_, block);
  }
  EXPECT_EQ(nram_aligned_alloc(n_, 24, 100), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(HeapTest, FullIsEnomemAndNothingIsLost) {
  std::vector<uint64_t*> blocks;
  while (auto* block = static_cast<uint64_t*>(nram_malloc(n_, 16 << 20))) {
    block[0] = blocks.size();
    block[(2 << 20) - 1] = ~blocks.size();
    blocks.push_back(block);
    ASSERT_LT(blocks.size(), 100u);
  }
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_THAT(nram_error(), HasSubstr("pool"));
  EXPECT_GT(blocks.size(), 10u);
  for (size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(blocks[i][0], i);
    ASSERT_EQ(blocks[i][(2 << 20) - 1], ~i);
  }
  EXPECT_EQ(nram_malloc(n_, SIZE_MAX / 2), nullptr);
  EXPECT_EQ(nram_calloc(n_, SIZE_MAX / 2, 3), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  for (uint64_t* block : blocks) nram_free(n_, block);
}

TEST_F(HeapTest, SmallOnesMayStayLocal) {
  Open(4096);
  const uint64_t mapped = Stats().mapped_bytes;
  std::vector<void*> blocks;
  for (int i = 0; i < 10'000; ++i) {
    blocks.push_back(nram_malloc(n_, 100));
    memset(blocks.back(), i, 100);
  }
  EXPECT_EQ(Stats().mapped_bytes, mapped);
  // Grows beyond local memory, with its contents.
  auto* block = static_cast<unsigned char*>(nram_realloc(n_, blocks[5], 1 << 20));
  ASSERT_NE(block, nullptr);
  for (int k = 0; k < 100; ++k) ASSERT_EQ(block[k], 5);
  EXPECT_GT(Stats().mapped_bytes, mapped);
  blocks[5] = block;
  for (void* at : blocks) nram_free(n_, at);
}

TEST_F(HeapTest, WrongArgumentsAreRefused) {
  int local = 0;
  EXPECT_EQ(nram_mmap(n_, 0, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(nram_mmap(n_, 1 << 20, nullptr, NRAM_MAP_KEEP), nullptr);
  EXPECT_EQ(nram_mmap(n_, 1 << 20, "x", NRAM_MAP_KEEP | NRAM_MAP_READ_ONLY), nullptr);
  EXPECT_EQ(nram_munmap(n_, &local), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(nram_malloc(nullptr, 10), nullptr);
  EXPECT_EQ(errno, EINVAL);
  nram_options options;
  memset(&options, 0, sizeof(options));
  EXPECT_EQ(nram_open(Spec().c_str(), &options), nullptr);
  EXPECT_THAT(nram_error(), HasSubstr("nram_options_init"));
  EXPECT_EQ(nram_open("/nowhere/hosts", nullptr), nullptr);
  EXPECT_EQ(errno, ENOENT);
}

class CopiesTest : public HeapTest {
 protected:
  void TearDown() override {
    unsetenv("NRAM_COPIES");
    HeapTest::TearDown();
  }
  nram_t* OpenWith(uint32_t copies) { return OpenOn(servers_, copies); }
  static nram_t* OpenOn(const TestPool& servers, uint32_t copies) {
    nram_options options;
    nram_options_init(&options);
    options.budget_bytes = 4 << 20;
    options.copies = copies;
    return nram_open(Spec(servers).c_str(), &options);
  }
};

TEST_F(CopiesTest, OneToFour) {
  EXPECT_EQ(OpenWith(5), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("nram_options.copies is 5: expected 1 to 4"));
  for (const char* const wrong : {"0", "5", "two", "-1"}) {
    setenv("NRAM_COPIES", wrong, 1);
    EXPECT_EQ(OpenWith(0), nullptr) << wrong;
    EXPECT_EQ(errno, EINVAL);
    EXPECT_THAT(nram_error(), HasSubstr(absl::StrCat("$NRAM_COPIES: \"", wrong, "\""))) << wrong;
    EXPECT_THAT(nram_error(), HasSubstr("from 1 to 4")) << wrong;
  }
  // The option counts more than the environment.
  nram_t* const n = OpenWith(1);
  ASSERT_NE(n, nullptr) << nram_error();
  EXPECT_NE(nram_mmap(n, 1 << 20, nullptr, 0), nullptr) << nram_error();
  EXPECT_EQ(nram_close(n), 0);
}

// Both servers are on this host.
TEST_F(CopiesTest, FewerHostsThanCopiesAreAnErrorAtOnce) {
  EXPECT_EQ(OpenWith(2), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_THAT(nram_error(), HasSubstr("nram_options.copies=2: each copy needs its own host, and the pool has 1 host:"));
  setenv("NRAM_COPIES", "3", 1);
  EXPECT_EQ(OpenWith(0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_THAT(nram_error(), HasSubstr("$NRAM_COPIES=3: each copy needs its own host, and the pool has 1 host:"));
}

TEST_F(CopiesTest, RegionsWithANameHaveAsManyAsOthers) {
  TestPool hosts(2, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended);
  setenv("NRAM_COPIES", "2", 1);
  nram_t* const n = OpenOn(hosts, 0);
  ASSERT_NE(n, nullptr) << nram_error();
  const auto pages_of = [&hosts](int i) -> int64_t { return hosts.server(i).store().counters().pages; };
  for (const auto& [name, flags] : {std::pair<const char*, int>{nullptr, 0}, {"named", 0}, {"kept", NRAM_MAP_KEEP}}) {
    const int64_t before = std::min(pages_of(0), pages_of(1));
    void* const mapped = nram_mmap(n, 1 << 20, name, flags);
    ASSERT_NE(mapped, nullptr) << nram_error();
    memset(mapped, 7, 1 << 20);
    EXPECT_EQ(nram_flush(n, mapped, 1 << 20), 0) << nram_error();
    EXPECT_GE(std::min(pages_of(0), pages_of(1)), before + 256) << (name == nullptr ? "without a name" : name);
  }
  EXPECT_EQ(nram_close(n), 0);
}

TEST_F(CopiesTest, KeptRegionsHaveTwoOnlyWhereThereAreTwoHosts) {
  nram_t* const n = OpenWith(0);
  ASSERT_NE(n, nullptr) << nram_error();
  auto* const kept = static_cast<char*>(nram_mmap(n, 1 << 20, "kept", NRAM_MAP_KEEP));
  ASSERT_NE(kept, nullptr) << nram_error();
  kept[0] = 1;
  EXPECT_EQ(nram_munmap(n, kept), 0) << nram_error();
  EXPECT_EQ(nram_mmap(n, 1 << 20, "kept", NRAM_MAP_ACCEPT_LOSS), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(nram_close(n), 0);
}

// The options of a program that was built before there were copies end with its last known field.
TEST_F(CopiesTest, OlderProgramsLeaveThemToTheEnvironment) {
  nram_options options;
  nram_options_init(&options);
  options.budget_bytes = 4 << 20;
  options.size = offsetof(nram_options, copies);
  options.copies = 77;  // beyond their structure
  nram_t* const n = nram_open(Spec().c_str(), &options);
  ASSERT_NE(n, nullptr) << nram_error();
  EXPECT_EQ(nram_close(n), 0);
}

class KeyFileTest : public HeapTest {
 protected:
  KeyFileTest() {
    const char* const given = getenv("TEST_TMPDIR");
    directory_ = absl::StrCat(given == nullptr ? "/tmp" : given, "/keys-XXXXXX");
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    unsetenv("NRAM_KEY_FILE");
    unsetenv("NRAM_SEAL");
    HeapTest::TearDown();
  }
  std::string WriteKey(const std::string& name, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << name << " is the secret of this file";
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  nram_t* OpenWith(const char* key_file) {
    nram_options options;
    nram_options_init(&options);
    options.budget_bytes = 4 << 20;
    options.key_file = key_file;
    return nram_open(Spec().c_str(), &options);
  }

  std::string directory_;
};

TEST_F(KeyFileTest, WhatIsKeptIsReadWithTheSameKeyFileAlone) {
  const std::string one = WriteKey("one", 0600);
  nram_t* n = OpenWith(one.c_str());
  ASSERT_NE(n, nullptr) << nram_error();
  constexpr size_t kBytes = 8 << 20;  // more than the budget
  auto* const kept = static_cast<char*>(nram_mmap(n, kBytes, "kept", NRAM_MAP_KEEP));
  ASSERT_NE(kept, nullptr) << nram_error();
  for (size_t at = 0; at < kBytes; at += 4096) kept[at] = static_cast<char>(at / 4096 % 100 + 1);
  ASSERT_EQ(nram_close(n), 0) << nram_error();
  for (const std::string& other : {std::string(), WriteKey("other", 0600)}) {
    n = OpenWith(other.empty() ? nullptr : other.c_str());
    ASSERT_NE(n, nullptr) << nram_error();
    for (const int flag : {NRAM_MAP_ATTACH, NRAM_MAP_READ_ONLY}) {
      EXPECT_EQ(nram_mmap(n, 0, "kept", flag), nullptr);
      EXPECT_EQ(errno, EBUSY);
      EXPECT_THAT(nram_error(), HasSubstr("key file"));
    }
    EXPECT_EQ(nram_close(n), 0);
  }
  setenv("NRAM_KEY_FILE", one.c_str(), 1);
  for (const int flags : {static_cast<int>(NRAM_MAP_READ_ONLY), NRAM_MAP_ATTACH | NRAM_MAP_KEEP}) {
    n = OpenWith(nullptr);
    ASSERT_NE(n, nullptr) << nram_error();
    auto* const back = static_cast<char*>(nram_mmap(n, 0, "kept", flags));
    ASSERT_NE(back, nullptr) << nram_error();
    EXPECT_EQ(nram_length(n, back), kBytes);
    for (size_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(back[at], static_cast<char>(at / 4096 % 100 + 1)) << at;
    EXPECT_EQ(nram_close(n), 0) << nram_error();
  }
}

TEST_F(KeyFileTest, OneThatOthersMayChangeIsRefused) {
  EXPECT_EQ(OpenWith(WriteKey("open", 0666).c_str()), nullptr);
  EXPECT_EQ(errno, EPERM);
  EXPECT_THAT(nram_error(), HasSubstr("chmod 600"));
  EXPECT_EQ(OpenWith("/nowhere/key"), nullptr);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_THAT(nram_error(), HasSubstr("key file /nowhere/key"));
}

TEST_F(KeyFileTest, ASealThatIsAskedForNeedsOne) {
  setenv("NRAM_SEAL", "1", 1);
  nram_t* const n = OpenWith(nullptr);
  ASSERT_NE(n, nullptr) << nram_error();
  EXPECT_EQ(nram_mmap(n, 1 << 20, "kept", NRAM_MAP_KEEP), nullptr);
  EXPECT_THAT(nram_error(), HasSubstr("NRAM_KEY_FILE"));
  EXPECT_NE(nram_mmap(n, 1 << 20, nullptr, 0), nullptr) << nram_error();
  EXPECT_EQ(nram_close(n), 0);
}

// Runs in its own process, because it ends: the test below runs it.
TEST_F(HeapTest, DISABLED_FreesTwice) {
  void* const block = nram_malloc(n_, 100);
  nram_free(n_, block);
  nram_free(n_, block);
}
TEST_F(HeapTest, DISABLED_FreesWhatReallocMoved) {
  void* const block = nram_malloc(n_, 100);
  ASSERT_NE(nram_realloc(n_, block, 1 << 20), block);
  nram_free(n_, block);
}
TEST_F(HeapTest, DISABLED_FreesAMapping) { nram_free(n_, nram_mmap(n_, 1 << 20, nullptr, 0)); }
TEST_F(HeapTest, DISABLED_FreesForeign) {
  void* const block = malloc(100);
  nram_free(n_, block);
}

void ExpectAborts(const std::string& test, const std::string& message) {
  const std::string command = absl::StrCat("/proc/", getpid(), "/exe --gtest_also_run_disabled_tests --gtest_filter=*",
                                           test, " 2>&1; echo status $?");
  FILE* const out = popen(command.c_str(), "r");
  std::string text;
  char line[512];
  while (fgets(line, sizeof(line), out) != nullptr) text += line;
  pclose(out);
  EXPECT_THAT(text, HasSubstr(message));
  EXPECT_THAT(text, HasSubstr("status 134"));
}

TEST(HeapMisuseTest, ASecondFreeIsNoticed) { ExpectAborts("DISABLED_FreesTwice", "was freed before"); }
TEST(HeapMisuseTest, AFreeOfWhatReallocMovedIsNoticed) {
  ExpectAborts("DISABLED_FreesWhatReallocMoved", "was freed before");
}
TEST(HeapMisuseTest, AFreeOfAMappingIsNoticed) { ExpectAborts("DISABLED_FreesAMapping", "nram_munmap() is for those"); }
TEST(HeapMisuseTest, AForeignPointerIsNoticed) {
  ExpectAborts("DISABLED_FreesForeign", "is no block of this handle's heap");
}

TEST_F(HeapTest, AChildMayNotUseTheHandleButMayExec) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  GTEST_SKIP() << "fork takes all of jemalloc's locks, more than ThreadSanitizer can count; run without it";
#endif
  auto* block = static_cast<char*>(nram_malloc(n_, 100));
  strcpy(block, "text");
  const pid_t child = fork();  // bare: the test is about fork
  if (child == 0) {
    const bool refused = nram_malloc(n_, 10) == nullptr && errno == ENOTSUP && nram_close(n_) == -1;
    _exit(refused ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  // A shell reads the command from a page that may be remote.
  EXPECT_EQ(nram_advise(n_, block, 100, NRAM_DONT_NEED), 0) << nram_error();
  EXPECT_EQ(system(absl::StrCat("test ", block, " = text").c_str()), 0);
  EXPECT_STREQ(block, "text");
  nram_free(n_, block);
}

TEST_F(HeapTest, ManyThreadsAgainstAModel) {
  const uint64_t seed = TestSeed();
  constexpr int kThreads = 4;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(t));
      struct Block {
        unsigned char* data;
        size_t size;
        unsigned char value;
      };
      std::vector<Block> blocks;
      const auto check = [&](const Block& block) {
        for (size_t i = 0; i < block.size; i += std::max<size_t>(1, block.size / 8)) {
          failures += block.data[i] != block.value;
        }
      };
      for (int step = 0; step < 4000; ++step) {
        const uint64_t kind = random() % 10;
        if (blocks.empty() || (kind < 5 && blocks.size() < 400)) {
          const size_t size = random() % (random() % 8 == 0 ? 200'000 : 2'000) + 1;
          Block block{static_cast<unsigned char*>(nram_malloc(n_, size)), size, static_cast<unsigned char>(random())};
          if (block.data == nullptr) {
            ++failures;
            continue;
          }
          memset(block.data, block.value, size);
          blocks.push_back(block);
          continue;
        }
        Block& block = blocks[random() % blocks.size()];
        check(block);
        if (kind < 7) {
          const size_t size = random() % 100'000 + 1;
          auto* const moved = static_cast<unsigned char*>(nram_realloc(n_, block.data, size));
          if (moved == nullptr) {
            ++failures;
            continue;
          }
          if (size > block.size) memset(moved + block.size, block.value, size - block.size);
          block.data = moved;
          block.size = size;
          check(block);
        } else {
          nram_free(n_, block.data);
          block = blocks.back();
          blocks.pop_back();
        }
      }
      for (const Block& block : blocks) {
        check(block);
        nram_free(n_, block.data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0) << "seed " << seed;
}

}  // namespace
}  // namespace nram
