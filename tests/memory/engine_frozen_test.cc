// Memory's engine with a server that is there and answers nothing: a stopped process of its own.

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/memory/memory.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/server_process.h"

namespace nram {
namespace {

constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);

TEST(EngineFrozenTest, PagesOfOtherServersComeAndGo) {
  ServerProcess servers[2];
  constexpr int64_t kTimeoutMs = 60'000;
  MemoryOptions options;
  for (const ServerProcess& server : servers) {
    ASSERT_NE(server.port(), 0);
    options.pool.servers.push_back({"127.0.0.1", server.port(), ""});
  }
  options.pool.open_timeout_ms = 60'000;
  options.pool.io_timeout_ms = options.pool.fail_fast_after_ms = kTimeoutMs;
  options.budget_bytes = 16 * kMiB;
  options.on_loss = [](void*, size_t, const std::string& reason) { ADD_FAILURE() << reason; };
  auto memory = Memory::Open(options).value();
  constexpr uint64_t kSpans = 64;
  auto* const words =
      reinterpret_cast<uint64_t*>(memory->Map({.length = kSpans * kSpanBytes, .name = "spans"}).value());
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());
  const auto word = [&](uint64_t span, uint64_t page) { return words + (span * kPagesPerSpan + page) * kWordsPerPage; };

  // Write a page of each span, so that each span is placed.
  for (uint64_t span = 0; span < kSpans; ++span) *word(span, 0) = 1;
  ASSERT_TRUE(memory->Flush(words, kSpans * kSpanBytes).ok());
  std::vector<uint64_t> frozen, other;
  {
    auto pool = Pool::Open(options.pool).value();
    const auto region = pool->AttachRegion("spans", AttachMode::kReadOnly).value();
    for (uint64_t span = 0; span < kSpans; ++span) {
      (region->ServersOf(span * kSpanBytes) == Region::Servers{0} ? frozen : other).push_back(span);
    }
  }
  ASSERT_GE(frozen.size(), 16u);
  ASSERT_GE(other.size(), 16u);

  // A quarter of the budget cannot leave. Each of its pages is a run of its own, and older than the pages that can.
  servers[0].Freeze();
  const int64_t deadline_ns = DeadlineAfterMs(kTimeoutMs);
  constexpr uint64_t kFrozenPages = 64;
  for (uint64_t span = 0; span < 16; ++span) {
    for (uint64_t page = 0; page < kFrozenPages; ++page) *word(frozen[span], 2 * page + 1) = page + 1;
  }
  for (const uint64_t round : {1, 2}) {
    for (uint64_t span = 0; span < 16; ++span) {
      for (uint64_t page = 1; page < kPagesPerSpan; ++page) {
        ASSERT_EQ(*word(other[span], page), round == 1 ? 0 : page);
        *word(other[span], page) = page + round - 1;
      }
    }
  }
  EXPECT_LT(MonotonicNs(), deadline_ns) << "before any operation on the frozen server could end";
  EXPECT_EQ(memory->counters().lost_pages, 0u);
  servers[0].Thaw();
  for (uint64_t span = 0; span < 16; ++span) {
    for (uint64_t page = 0; page < kFrozenPages; ++page) ASSERT_EQ(*word(frozen[span], 2 * page + 1), page + 1);
  }
}

}  // namespace
}  // namespace nram
