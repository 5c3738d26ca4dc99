#ifndef NRAM_CLIENT_RUN_ENGINE_FIXTURE_H_
#define NRAM_CLIENT_RUN_ENGINE_FIXTURE_H_

// An address space and a store that are maps, for tests of RunEngine.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/run/address_space.h"
#include "client/run/engine.h"
#include "client/run/page_store.h"
#include "gtest/gtest.h"

namespace nram {

inline constexpr uint64_t kBase = 0x10000000;
inline constexpr int64_t kPatienceMs = 60'000;
using Bytes = std::array<std::byte, kPageBytes>;

class FakeStore : public PageStore {
 public:
  absl::Status ReadPages(uint64_t page, absl::Span<std::byte> to) override {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    for (uint64_t i = 0; i < to.size() / kPageBytes; ++i) {
      if (page + i == lost_) return absl::DataLossError("lost");
      const auto at = pages_.find(page + i);
      if (at == pages_.end()) return absl::InternalError(absl::StrCat("page ", page + i, " was never written"));
      memcpy(to.data() + i * kPageBytes, at->second.data(), kPageBytes);
    }
    return absl::OkStatus();
  }
  absl::Status WritePages(absl::Span<const Write> writes) override {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    for (const Write& write : writes) {
      for (uint64_t i = 0; i < write.data.size() / kPageBytes; ++i) {
        memcpy(pages_[write.page + i].data(), write.data.data() + i * kPageBytes, kPageBytes);
      }
    }
    written_.SignalAll();
    return absl::OkStatus();
  }
  void Forget(uint64_t page, uint64_t count) override {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < count; ++i) pages_.erase(page + i);
  }
  void FailFromNowOn(const absl::Status& status) {
    MutexLock lock(&mu_);
    failure_ = status;
  }
  // No read succeeds that includes the page with this first word. Waits until it is written.
  void Lose(uint64_t word) {
    const int64_t deadline_ns = DeadlineAfterMs(kPatienceMs);
    MutexLock lock(&mu_);
    while (true) {
      for (const auto& [page, bytes] : pages_) {
        if (memcmp(bytes.data(), &word, sizeof word) == 0) lost_ = page;
      }
      if (lost_ != ~uint64_t{0}) return;
      ASSERT_LT(MonotonicNs(), deadline_ns);
      written_.WaitUntil(&mu_, deadline_ns);
    }
  }
  size_t size() {
    MutexLock lock(&mu_);
    return pages_.size();
  }

 private:
  Mutex mu_;
  CondVar written_;
  std::map<uint64_t, Bytes> pages_ ABSL_GUARDED_BY(mu_);
  uint64_t lost_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0};
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// A program's memory. Its threads call Access, which faults as they would.
class FakeSpace : public AddressSpace {
 public:
  absl::Status Copy(uint64_t to, absl::Span<const std::byte> data, bool protect) override {
    MutexLock lock(&mu_);
    ++works_;
    for (uint64_t i = 0; i < data.size() / kPageBytes; ++i) {
      const uint64_t address = to + i * kPageBytes;
      if (pages_.contains(address)) return absl::AlreadyExistsError(absl::StrCat(address));
      Page& page = pages_[address];
      memcpy(page.bytes.data(), data.data() + i * kPageBytes, kPageBytes);
      page.is_protected = protect;
    }
    peak_ = std::max(peak_, pages_.size());
    WakeLocked();
    return absl::OkStatus();
  }
  void Unprotect(uint64_t begin, uint64_t pages) override {
    MutexLock lock(&mu_);
    ++works_;
    for (uint64_t i = 0; i < pages; ++i) {
      if (const auto at = pages_.find(begin + i * kPageBytes); at != pages_.end()) at->second.is_protected = false;
    }
    WakeLocked();
  }
  void Wake(uint64_t, uint64_t) override {
    MutexLock lock(&mu_);
    WakeLocked();
  }
  absl::Status Take(absl::Span<const AddressRun> runs, absl::Span<std::byte> to, std::vector<bool>* taken) override {
    MutexLock lock(&mu_);
    ++works_;
    taken->clear();
    for (const AddressRun& run : runs) {
      for (uint64_t i = 0; i < run.pages; ++i) {
        const uint64_t address = run.begin + i * kPageBytes;
        const auto at = pages_.find(address);
        EXPECT_TRUE(at != pages_.end()) << "a page is taken that is not there";
        const bool can = at != pages_.end() && !held_.contains(address);
        if (can) {
          memcpy(to.data() + taken->size() * kPageBytes, at->second.bytes.data(), kPageBytes);
          pages_.erase(at);
        }
        taken->push_back(can);
      }
    }
    return absl::OkStatus();
  }
  absl::Status Drop(absl::Span<const AddressRun> runs, std::vector<bool>* taken) override {
    MutexLock lock(&mu_);
    ++works_;
    taken->clear();
    for (const AddressRun& run : runs) {
      for (uint64_t i = 0; i < run.pages; ++i) {
        const uint64_t address = run.begin + i * kPageBytes;
        const auto at = pages_.find(address);
        EXPECT_TRUE(at != pages_.end() && at->second.is_protected) << "a page is dropped that could be written to";
        taken->push_back(at != pages_.end() && !held_.contains(address) && !at->second.is_shared);
        if (taken->back()) pages_.erase(at);
      }
    }
    return absl::OkStatus();
  }

  // False after a minute: a lost wake-up.
  template <typename Function>
  bool Access(RunEngine* engine, uint64_t address, bool write, absl::Span<std::byte> buffer, Function function) {
    const uint64_t begin = RoundDown(address, kPageBytes);
    const int64_t deadline_ns = DeadlineAfterMs(kPatienceMs);
    while (true) {
      uint64_t seen;
      bool there;
      {
        MutexLock lock(&mu_);
        const auto at = pages_.find(begin);
        there = at != pages_.end();
        if (there && !(write && at->second.is_protected)) {
          at->second.is_shared &= !write;
          function(at->second.bytes.data() + address % kPageBytes);
          return true;
        }
        seen = wakes_;
      }
      engine->HandleFault({address, write, there}, buffer);
      MutexLock lock(&mu_);
      while (wakes_ == seen) {
        if (!woken_.WaitUntil(&mu_, deadline_ns)) return false;
      }
    }
  }
  // As fork(2): the copy has all pages that are there, and none is protected. Both have the same pages, which cannot be
  // dropped; to take them copies them first.
  void ForkTo(FakeSpace* copy) {
    MutexLock lock(&mu_);
    for (auto& [address, page] : pages_) page.is_shared = true;
    MutexLock copy_lock(&copy->mu_);
    copy->pages_ = pages_;
    for (auto& [address, page] : copy->pages_) page.is_protected = false;
  }
  void Hold(uint64_t address) {
    MutexLock lock(&mu_);
    held_.insert(address);
  }
  // As munmap(2) and mremap(2).
  void Unmap(uint64_t begin, uint64_t pages) {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < pages; ++i) pages_.erase(begin + i * kPageBytes);
  }
  void MovePages(uint64_t from, uint64_t to, uint64_t pages) {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < pages; ++i) {
      const auto at = pages_.find(from + i * kPageBytes);
      if (at == pages_.end()) continue;
      Page page = at->second;
      page.is_protected = false;
      pages_.erase(at);
      pages_[to + i * kPageBytes] = page;
    }
  }
  void Fill(uint64_t address, std::byte value) {
    MutexLock lock(&mu_);
    pages_[address].bytes.fill(value);
  }
  bool Has(uint64_t address) {
    MutexLock lock(&mu_);
    return pages_.contains(address);
  }
  bool IsProtected(uint64_t address) {
    MutexLock lock(&mu_);
    const auto at = pages_.find(address);
    return at != pages_.end() && at->second.is_protected;
  }
  size_t peak() {
    MutexLock lock(&mu_);
    return peak_;
  }
  // How often an engine has changed something.
  uint64_t works() {
    MutexLock lock(&mu_);
    return works_;
  }

 private:
  struct Page {
    Bytes bytes = {};
    bool is_protected = false;
    bool is_shared = false;
  };
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++wakes_;
    woken_.SignalAll();
  }

  Mutex mu_;
  CondVar woken_;
  std::map<uint64_t, Page> pages_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mu_);
  uint64_t wakes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t peak_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t works_ ABSL_GUARDED_BY(mu_) = 0;
};

class RunEngineTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBudget = RunOptions::kBudgetPagesMin;

  explicit RunEngineTest(uint64_t homes = RunOptions().homes)
      : options_{.budget_pages = kBudget, .homes = homes}, buffer_(options_.window_pages * kPageBytes) {}

  void Put(uint64_t page, uint64_t value) { Put(page, value, absl::MakeSpan(buffer_)); }
  void Put(uint64_t page, uint64_t value, absl::Span<std::byte> buffer, uint64_t word = 0) {
    ASSERT_TRUE(space_.Access(&engine_, kBase + page * kPageBytes + word * 8, true, buffer,
                              [&](std::byte* at) { memcpy(at, &value, sizeof(value)); }));
  }
  uint64_t Get(uint64_t page) { return Get(page, absl::MakeSpan(buffer_)); }
  uint64_t Get(uint64_t page, absl::Span<std::byte> buffer, uint64_t word = 0) {
    uint64_t value = ~uint64_t{0};
    EXPECT_TRUE(space_.Access(&engine_, kBase + page * kPageBytes + word * 8, false, buffer,
                              [&](std::byte* at) { memcpy(&value, at, sizeof(value)); }));
    return value;
  }
  uint64_t Address(uint64_t page) const { return kBase + page * kPageBytes; }

  const RunOptions options_;
  FakeSpace space_;
  FakeStore store_;
  RunCounters counters_;
  absl::Status failure_;
  RunEngine engine_{options_, &space_, &store_, &counters_, [this](const absl::Status& status) { failure_ = status; }};
  std::vector<std::byte> buffer_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_ENGINE_FIXTURE_H_
