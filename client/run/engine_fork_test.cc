// Engines of programs that are copies of one another by fork(2), over address spaces and a store that are maps.

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "client/run/engine.h"
#include "client/run/engine_fixture.h"
#include "client/run/page_views.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// Programs that are copies of one another: all have one store.
class RunEngineForkTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBudget = RunOptions::kBudgetPagesMin;
  static constexpr uint64_t kPages = 2 * kBudget;

  struct Program {
    std::unique_ptr<PageViews::View> view;
    FakeSpace space;
    std::unique_ptr<RunEngine> engine;
    std::vector<std::byte> buffer;
  };

  std::unique_ptr<Program> Make(std::unique_ptr<PageViews::View> view) {
    auto program = std::make_unique<Program>();
    program->view = std::move(view);
    program->engine =
        std::make_unique<RunEngine>(options_, &program->space, program->view.get(), &counters_,
                                    [](const absl::Status& status) { ADD_FAILURE() << "an engine fails: " << status; });
    program->buffer.resize(options_.window_pages * kPageBytes);
    return program;
  }
  std::unique_ptr<Program> MakeFirst() {
    std::unique_ptr<Program> program = Make(views_.Make());
    program->engine->Attach(kBase, kPages);
    program->engine->Start();
    return program;
  }
  std::unique_ptr<Program> Fork(Program* parent) {
    EXPECT_TRUE(parent->engine->Freeze());
    const uint64_t works = parent->space.works();
    const RunEngine::Stored stored = parent->engine->stored();
    std::unique_ptr<Program> child = Make(parent->view->Copy(stored.all, stored.remote));
    parent->space.ForkTo(&child->space);
    child->engine->CopyFrom(*parent->engine);
    child->engine->Start();
    EXPECT_EQ(parent->space.works(), works) << "something is done to memory that is being copied";
    parent->engine->Thaw();
    return child;
  }
  void End(std::unique_ptr<Program> program) {
    program->engine->Stop();
    program->view->Release();
  }
  static void Put(Program* program, uint64_t page, uint64_t value) {
    Put(program, page, value, absl::MakeSpan(program->buffer), 0);
  }
  static void Put(Program* program, uint64_t page, uint64_t value, absl::Span<std::byte> buffer, uint64_t word) {
    ASSERT_TRUE(program->space.Access(program->engine.get(), kBase + page * kPageBytes + word * 8, true, buffer,
                                      [&](std::byte* at) { memcpy(at, &value, sizeof(value)); }));
  }
  static uint64_t Get(Program* program, uint64_t page, uint64_t word = 0) {
    uint64_t value = ~uint64_t{0};
    EXPECT_TRUE(program->space.Access(program->engine.get(), kBase + page * kPageBytes + word * 8, false,
                                      absl::MakeSpan(program->buffer),
                                      [&](std::byte* at) { memcpy(&value, at, sizeof(value)); }));
    return value;
  }
  static void Fill(Program* program, uint64_t salt) {
    for (uint64_t page = 0; page < kPages; ++page) Put(program, page, page + salt);
  }
  static void Verify(Program* program, uint64_t salt) {
    for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(Get(program, page), page + salt) << page;
  }

  const RunOptions options_{.budget_pages = kBudget};
  FakeStore store_;
  PageViews views_{&store_};
  RunCounters counters_;
};

TEST_F(RunEngineForkTest, EachHasItsOwnFromThenOn) {
  std::unique_ptr<Program> parent = MakeFirst();
  Fill(parent.get(), 1000);
  Verify(parent.get(), 1000);  // some are clean now
  std::unique_ptr<Program> child = Fork(parent.get());
  Fill(parent.get(), 2000);
  Verify(child.get(), 1000);
  std::unique_ptr<Program> grandchild = Fork(child.get());
  Fill(child.get(), 3000);
  Verify(grandchild.get(), 1000);
  End(std::move(child));
  Fill(grandchild.get(), 4000);
  Verify(parent.get(), 2000);
  Verify(grandchild.get(), 4000);
  for (Program* const program : {parent.get(), grandchild.get()}) {
    EXPECT_LE(program->space.peak(), kBudget);
    EXPECT_LE(program->engine->resident_pages(), kBudget);
  }
  End(std::move(parent));
  Verify(grandchild.get(), 4000);
  End(std::move(grandchild));
  EXPECT_EQ(store_.size(), 0u);
}

// Both have the page in memory, and it is clean: it is not evicted before it is copied.
TEST_F(RunEngineForkTest, CleanPagesThatAreSharedLeave) {
  std::unique_ptr<Program> parent = MakeFirst();
  Fill(parent.get(), 1000);
  for (int round = 0; round < 3; ++round) Verify(parent.get(), 1000);
  std::unique_ptr<Program> child = Fork(parent.get());
  const uint64_t written = counters_.written_pages;
  Verify(parent.get(), 1000);
  EXPECT_GT(counters_.written_pages, written) << "nothing that was shared has left";
  Verify(child.get(), 1000);
  Verify(parent.get(), 1000);
  EXPECT_LE(parent->space.peak(), kBudget);
  End(std::move(child));
  End(std::move(parent));
}

// An unused copy has no lasting cost: the child that executes another program at once.
TEST_F(RunEngineForkTest, AChildThatEndsAtOnceLeavesNothing) {
  std::unique_ptr<Program> parent = MakeFirst();
  Fill(parent.get(), 1000);
  const size_t stored = store_.size();
  for (int round = 0; round < 20; ++round) End(Fork(parent.get()));
  EXPECT_LE(store_.size(), stored + kBudget);
  Verify(parent.get(), 1000);
  End(std::move(parent));
  EXPECT_EQ(store_.size(), 0u);
}

// Threads write to words of their own all the time. A child sees each word as it was at the fork.
TEST_F(RunEngineForkTest, ThreadsAndForksAtOnce) {
  constexpr uint64_t kThreads = 2;
  std::unique_ptr<Program> parent = MakeFirst();
  std::vector<std::atomic<uint64_t>> written(kThreads * kPages);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(TestSeed() + thread);
      std::vector<std::byte> buffer(options_.window_pages * kPageBytes);
      while (!stop) {
        const uint64_t page = random() % kPages;
        std::atomic<uint64_t>& last = written[thread * kPages + page];
        Put(parent.get(), page, last + 1, absl::MakeSpan(buffer), thread);
        ++last;
      }
    });
  }
  for (int round = 0; round < 4; ++round) {
    const std::vector<uint64_t> before(written.begin(), written.end());
    std::unique_ptr<Program> child = Fork(parent.get());
    for (uint64_t i = 0; i < before.size(); ++i) {
      const uint64_t seen = Get(child.get(), i % kPages, i / kPages);
      EXPECT_GE(seen, before[i]) << i;
      EXPECT_LE(seen, written[i] + 1) << i;
      Put(child.get(), i % kPages, seen, absl::MakeSpan(child->buffer), kThreads + i / kPages);
    }
    for (uint64_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(Get(child.get(), i % kPages, i / kPages), Get(child.get(), i % kPages, kThreads + i / kPages)) << i;
    }
    EXPECT_LE(child->space.peak(), kBudget);
    End(std::move(child));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (uint64_t i = 0; i < written.size(); ++i) EXPECT_EQ(Get(parent.get(), i % kPages, i / kPages), written[i]) << i;
  EXPECT_LE(parent->space.peak(), kBudget);
  End(std::move(parent));
}

}  // namespace
}  // namespace nram
