// Memory's engine in trouble: lost servers, signals, forks, no addresses left, and a program's changes to its mappings.

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/memory/engine_fixture.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

std::atomic<uint64_t*> signal_words{nullptr};
std::atomic<uint64_t> signals_taken{0};
std::atomic<uint64_t> signals_wrong{0};

// Touches remote pages, while the thread waits for a fault or in a system call.
void OnTimer(int) {
  uint64_t* const words = signal_words;
  const uint64_t at = signals_taken.fetch_add(1) * 7919 % 1024 * kWordsPerPage;
  if (words[at] != at) ++signals_wrong;
}

std::vector<std::string> Lines(const std::string& path) { return absl::StrSplit(ReadFile(path).value_or(""), '\n'); }

// Flips a bit in a server's copy of the page that has this first word.
bool Damage(TestPool* servers, uint64_t first_word) {
  bool done = false;
  for (size_t i = 0; i < servers->size(); ++i) {
    PageStore& store = servers->server(static_cast<int>(i)).store();
    for (const RegionDescription& region : store.List(0, 0, 100, false, false)) {
      for (uint64_t page = 0; page < 4096 && !done; ++page) {
        const PageStore::ReadArgs args{.region = {region.id, 0}, .range = {page * kChunksPerPage, kChunksPerPage}};
        store.ReadInPlace(args, [&](const PageStore::Stored& stored) {
          if (stored.chunks.empty() || *static_cast<uint64_t*>(stored.chunks[0].iov_base) != first_word) return;
          static_cast<std::byte*>(stored.chunks[0].iov_base)[100] ^= std::byte{1};
          done = true;
        });
      }
    }
  }
  return done;
}

// If a donor's memory flips a bit, the page is lost, unless it is still local: then it is sent whole, though only a
// word of it has changed.
TEST_P(EngineTest, PagesThatServersHaveDamagedAreSentWholeWhileTheyAreHere) {
  auto memory = Open();
  constexpr uint64_t kPages = 64;
  uint64_t* const words = Words(memory.get(), kPages * kPageBytes);
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) words[i] = i + 1;
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());  // pages of streams are sent whole
  ASSERT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
  for (const uint64_t page : {9, 30}) ASSERT_EQ(words[page * kWordsPerPage + 200], page * kWordsPerPage + 201);
  for (const uint64_t page : {9, 30}) words[page * kWordsPerPage + 200] = 0;
  ASSERT_TRUE(Damage(&servers_, 9 * kWordsPerPage + 1));
  const uint64_t written = memory->counters().written_bytes;
  const absl::Status flushed = memory->Evict(words, kPages * kPageBytes);
  EXPECT_TRUE(flushed.ok()) << flushed;
  EXPECT_EQ(memory->counters().written_bytes - written, 2 * kChunkBytes + kPageBytes) << "the damaged one twice";
  for (uint64_t i = 0; i < kPages * kWordsPerPage; ++i) {
    const bool changed = i == 9 * kWordsPerPage + 200 || i == 30 * kWordsPerPage + 200;
    ASSERT_EQ(words[i], changed ? 0 : i + 1) << i;
  }
}

// A thread that waits for a page takes its signals, and handlers may fault too.
TEST_P(EngineTest, SignalsComeWhileAPageIsWaitedFor) {
  auto memory = Open();
  constexpr uint64_t kPages = 4096;
  uint64_t* const words = Words(memory.get(), kPages * kPageBytes);
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = page * kWordsPerPage;
  signal_words = words;
  signals_taken = signals_wrong = 0;
  struct sigaction action = {}, before;
  action.sa_handler = OnTimer;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<bool> done{false};
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&, i] {
      std::mt19937_64 random(i);
      while (!done) {
        const uint64_t at = random() % kPages * kWordsPerPage;
        if (words[at] != at) ++signals_wrong;
        words[at + 8 + i] = random();
      }
    });
  }
  const int64_t deadline_ns = DeadlineAfterMs(60'000);
  for (int i = 0; i < 3'000 && MonotonicNs() < deadline_ns; ++i) {
    pthread_kill(workers[i % 3].native_handle(), SIGUSR1);
    // One signal at a time, because pending signals of one thread merge.
    while (signals_taken <= static_cast<uint64_t>(i) && MonotonicNs() < deadline_ns) std::this_thread::yield();
  }
  done = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(signals_taken, 3'000u);
  EXPECT_EQ(signals_wrong, 0u);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_P(EngineTest, NoAddressesLeftIsAnErrorAndCostsNothing) {
  auto memory = Open();
  uint64_t* const words = Words(memory.get(), kMiB);
  words[0] = 7;
  const uint64_t pages = std::strtoull(ReadLine("/proc/self/statm").c_str(), nullptr, 10);
  ASSERT_GT(pages, 0u);
  rlimit limit, small;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  small = limit;
  small.rlim_cur = pages * kPageBytes + 64 * kMiB;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  absl::Status status;
  for (int i = 0; i < 10; ++i) status = memory->Map({.length = 128 * kMiB}).status();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no address space is left in this process for 128 MiB"));
  EXPECT_EQ(memory->mapped_bytes(), kMiB);
  EXPECT_EQ(words[0], 7u);
  // The servers have not kept room reserved either.
  ASSERT_NE(Words(memory.get(), 384 * kMiB), nullptr);
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
  // One page of every MiB: about half of them were on the server.
  for (uint64_t i = 0; i < kCount; i += kMiB / 8) {
    if (void* const at = AddressOfSigbus(&words[i]); at != nullptr) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) / 4096, reinterpret_cast<uintptr_t>(&words[i]) / 4096);
      // The second access fails too, and at once.
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

// A thread that writes lost pages to a pipe holds the pipe's lock until the page is here or lost. If stderr is that
// pipe too, the line about the loss has to wait for that thread. The thread must not have to wait for the line.
TEST_P(EngineTest, TheLineAboutALostPageHoldsNobodyUp) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  options.pool.fail_fast_after_ms = 300;
  auto memory = Open(options);
  uint64_t* const words = Words(memory.get(), kMiB);
  words[0] = 1;
  ASSERT_TRUE(memory->Evict(words, kMiB).ok());
  servers_.StopServer(0);
  servers_.StopServer(1);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]), in(ends[1]), stderr_before(dup(STDERR_FILENO));
  ASSERT_EQ(dup2(in.get(), STDERR_FILENO), STDERR_FILENO);
  EXPECT_EQ(write(in.get(), words, 100), -1);
  const int error = errno;
  std::string lines;
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  pollfd readable = {.fd = out.get(), .events = POLLIN, .revents = 0};
  while (lines.find("cannot be fetched") == std::string::npos && MonotonicNs() < deadline_ns) {
    char text[4096];
    if (poll(&readable, 1, 100) > 0) lines.append(text, static_cast<size_t>(read(out.get(), text, sizeof(text))));
  }
  ASSERT_EQ(dup2(stderr_before.get(), STDERR_FILENO), STDERR_FILENO);
  EXPECT_EQ(error, EFAULT);
  EXPECT_THAT(lines, HasSubstr("cannot be fetched"));
}

// If the servers do not answer, the drop has not done even the part that needs no server.
TEST_P(EngineTest, ADropThatFailsLosesNothingThatIsHere) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  options.pool.fail_fast_after_ms = 300;
  options.on_loss = [](void*, size_t, const std::string&) {};
  auto memory = Open(options);
  constexpr uint64_t kPages = 512;
  uint64_t* const words = Words(memory.get(), kPages * kPageBytes);
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());  // pages of streams have no sums
  for (uint64_t i = 0; i < kPages / 2 * kWordsPerPage; ++i) words[i] = i + 1;
  // The first quarter of the pages is remote, the second clean or dirty with sums, and the rest is new.
  ASSERT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
  for (uint64_t page = kPages / 4; page < kPages / 2; ++page) {
    ASSERT_EQ(words[page * kWordsPerPage], page * kWordsPerPage + 1);
    if (page % 2 == 0) words[page * kWordsPerPage] = 3;
  }
  for (uint64_t i = kPages / 2 * kWordsPerPage; i < kPages * kWordsPerPage; ++i) words[i] = i + 1;
  servers_.StopServer(0);
  servers_.StopServer(1);
  EXPECT_FALSE(memory->Drop(words, kPages * kPageBytes).ok());
  for (const uint64_t plus : {1, 2}) {
    for (uint64_t i = kPages / 4 * kWordsPerPage; i < kPages * kWordsPerPage; ++i) {
      const bool changed = i < kPages / 2 * kWordsPerPage && i % (2 * kWordsPerPage) == 0;
      ASSERT_EQ(words[i], changed && plus == 1 ? 3 : i + plus) << i;
      words[i] = i + 2;
    }
  }
  EXPECT_EQ(memory->counters().lost_pages, 0u);
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
  // More pages than the evictor leaves alone, fewer than the budget.
  constexpr uint64_t kPages = 860;
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = page + 1;
  for (int i = 0; i < 5; ++i) {
    for (uint64_t page = 0; page < kPages; page += 97) {
      EXPECT_FALSE(memory->Flush(words + page * kWordsPerPage, kPageBytes).ok()) << page;
    }
  }
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(words[page * kWordsPerPage], page + 1);
}

// A window that lies in part on a dead server must not lose the pages on other servers.
TEST_P(EngineTest, OnlyPagesOfTheDeadServerAreLost) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  options.pool.fail_fast_after_ms = options.pool.io_timeout_ms;  // as nram_open() sets it
  options.budget_bytes = 64 * kMiB;                              // windows of half a MiB
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
      // The span is lost; go on to the next.
      while (page % kPagesPerSpan != kPagesPerSpan - 1) ++page;
    } else {
      ASSERT_EQ(words[page * kWordsPerPage], page + 1);
    }
  }
  EXPECT_GE(lost, 4u);
  EXPECT_LE(lost, 12u) << "of 16 spans, half of which were on the dead server";
}

TEST_P(EngineTest, TheProgramsOwnMadviseAndMlockDoNoHarm) {
  for (const uint64_t page_bytes : {kPageBytes, 64 * kKiB}) {
    MemoryOptions options = Options();
    options.page_bytes = page_bytes;
    options.budget_bytes = 2 * kBudget;
    auto memory = Open(options);
    constexpr uint64_t kCount = 8 * kMiB / 8;
    uint64_t* const words = Words(memory.get(), kCount * 8);
    // Splits the range in the kernel, in the middle of windows and of larger pages.
    ASSERT_EQ(madvise(words + 37 * kWordsPerPage, 101 * kPageBytes, MADV_DONTDUMP), 0);
    for (uint64_t i = 0; i < kCount; ++i) words[i] = i;
    ASSERT_EQ(mlock2(words, 64 * kPageBytes, MLOCK_ONFAULT), 0);
    for (int round = 0; round < 2; ++round) {
      for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], i);
    }
    ASSERT_TRUE(memory->Drop(words, kMiB).ok());
    EXPECT_EQ(words[0], 0u);
  }
}

// With mlockall(MCL_FUTURE) the kernel fills new mappings with zeros: then no fault would ever report their pages.
TEST_P(EngineTest, ProgramsMayLockAllTheirMemory) {
  auto writer = Open();
  auto named = writer->Map({.length = kMiB, .name = "locked"});
  ASSERT_TRUE(named.ok()) << named.status();
  for (uint64_t i = 0; i < kMiB / 8; ++i) reinterpret_cast<uint64_t*>(*named)[i] = i + 1;
  ASSERT_TRUE(writer->Flush(*named, kMiB).ok());

  auto memory = Open();
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this user may not lock memory";
  const absl::Cleanup unlock = [] { munlockall(); };
  const auto seen = memory->Map({.name = "locked", .kind = MapKind::kReadOnly});
  ASSERT_TRUE(seen.ok()) << seen.status();
  for (uint64_t i = 0; i < kMiB / 8; ++i) ASSERT_EQ(reinterpret_cast<uint64_t*>(*seen)[i], i + 1);
  constexpr uint64_t kCount = 16 * kMiB / 8;  // four times the budget
  uint64_t* const words = Words(memory.get(), kCount * 8);
  for (uint64_t i = 0; i < kCount; ++i) words[i] = ~i;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(words[i], ~i);
  EXPECT_GE(memory->counters().written_bytes, 12 * kMiB);
}

// A program may wait for signals in one of its threads. A signal handler on one of nram's threads could wait for a page
// that this very thread has to fetch.
TEST_P(EngineTest, ItsThreadsTakeNoSignals) {
  const auto tasks = [] {
    std::set<std::string> paths;
    for (const std::string& name : ListDirectory("/proc/self/task")) paths.insert("/proc/self/task/" + name);
    return paths;
  };
  const std::set<std::string> before = tasks();
  auto memory = Open();
  int own = 0;
  for (const std::string& path : tasks()) {
    if (before.count(path) > 0) continue;
    std::string name;
    uint64_t blocked = 0;
    for (const std::string& line : Lines(path + "/status")) {
      if (line.rfind("Name:\t", 0) == 0) name = line.substr(6);
      if (line.rfind("SigBlk:\t", 0) == 0) blocked = std::stoull(line.substr(8), nullptr, 16);
    }
    if (name.rfind("nram-", 0) != 0) continue;  // gRPC's threads may take signals
    ++own;
    EXPECT_NE(blocked & (uint64_t{1} << (SIGTERM - 1)), 0u) << name;
  }
  EXPECT_GE(own, 3);
}

TEST_P(EngineTest, AChildDoesNotSeeZeros) {
  auto memory = Open();
  uint64_t* const words = Words(memory.get(), kMiB);
  words[0] = 1;
  const pid_t child = fork();  // bare: the test is about fork
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(static_cast<int>(*static_cast<volatile uint64_t*>(words)));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(words[0], 1u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineTest, kPolicies, PolicyName);

}  // namespace
}  // namespace nram
