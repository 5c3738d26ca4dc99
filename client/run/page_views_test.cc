// Views of one store that are copied, written and ended at random, against a model.

#include "client/run/page_views.h"

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/test_seed.h"
#include "base/units.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// One word stands for a page.
class FakeStore : public PageStore {
 public:
  absl::Status ReadPages(uint64_t page, absl::Span<std::byte> to) override {
    for (uint64_t i = 0; i < to.size() / kPageBytes; ++i) {
      if (!pages.contains(page + i)) return absl::InternalError("a page that was never written");
      memcpy(to.data() + i * kPageBytes, &pages[page + i], sizeof(uint64_t));
    }
    return absl::OkStatus();
  }
  absl::Status WritePages(absl::Span<const Write> writes) override {
    for (const Write& write : writes) {
      for (uint64_t i = 0; i < write.data.size() / kPageBytes; ++i) {
        memcpy(&pages[write.page + i], write.data.data() + i * kPageBytes, sizeof(uint64_t));
      }
    }
    return absl::OkStatus();
  }
  void Forget(uint64_t page, uint64_t count) override {
    pages.erase(pages.lower_bound(page), pages.lower_bound(page + count));
  }
  std::map<uint64_t, uint64_t> pages;
};

struct Program {
  std::unique_ptr<PageViews::View> view;
  std::map<uint64_t, uint64_t> model;
};

class PageViewsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kHomes = 1100;

  void Write(Program* program, uint64_t home, uint64_t count) {
    std::vector<std::byte> data(count * kPageBytes);
    for (uint64_t i = 0; i < count; ++i) {
      memcpy(data.data() + i * kPageBytes, &++last_, sizeof(last_));
      program->model[home + i] = last_;
    }
    const PageStore::Write write = {home, data};
    ASSERT_TRUE(program->view->WritePages({&write, 1}).ok());
  }
  void Forget(Program* program, uint64_t home, uint64_t count) {
    program->view->Forget(home, count);
    program->model.erase(program->model.lower_bound(home), program->model.lower_bound(home + count));
  }
  Program Copy(const Program& program, uint64_t without = kHomes) {
    std::vector<PageRun> stored;
    std::vector<PageRun> seen;
    Program copy;
    for (const auto& [home, value] : program.model) {
      stored.push_back({home, 1});
      if (home == without) continue;
      seen.push_back({home, 1});
      copy.model[home] = value;
    }
    copy.view = program.view->Copy(stored, seen);
    return copy;
  }
  void Verify(const Program& program) {
    for (auto at = program.model.begin(); at != program.model.end();) {
      const uint64_t first = at->first;
      std::vector<uint64_t> expected;
      for (; at != program.model.end() && at->first == first + expected.size(); ++at) expected.push_back(at->second);
      std::vector<std::byte> data(expected.size() * kPageBytes);
      ASSERT_TRUE(program.view->ReadPages(first, absl::MakeSpan(data)).ok());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(memcmp(data.data() + i * kPageBytes, &expected[i], sizeof(uint64_t)), 0) << first + i;
      }
    }
  }

  uint64_t last_ = 0;
  FakeStore store_;
  PageViews views_{&store_};
};

TEST_F(PageViewsTest, OneViewIsTheStore) {
  Program program{views_.Make(), {}};
  Write(&program, 10, 3);
  EXPECT_EQ(store_.pages, program.model);
  program.view->Release();
  EXPECT_TRUE(store_.pages.empty());
}

TEST_F(PageViewsTest, CopiesDoNotSeeOneAnothersWrites) {
  Program parent{views_.Make(), {}};
  Write(&parent, 0, 20);
  Program child = Copy(parent, /*without=*/7);
  EXPECT_EQ(store_.pages.size(), 20u);
  Write(&parent, 0, 10);
  Write(&child, 5, 10);
  Verify(parent);
  Verify(child);
  // A view that ends frees the pages that it alone has seen.
  child.view->Release();
  child = {};
  Verify(parent);
  EXPECT_EQ(store_.pages.size(), 20u);
  parent.view->Release();
  EXPECT_TRUE(store_.pages.empty());
}

TEST_F(PageViewsTest, ManyAtRandom) {
  std::mt19937_64 random(TestSeed());
  std::vector<Program> programs;
  programs.push_back({views_.Make(), {}});
  for (int step = 0; step < 3000; ++step) {
    const size_t who = random() % programs.size();
    const uint64_t home = random() % kHomes;
    const uint64_t count = 1 + random() % std::min<uint64_t>(kHomes - home, 40);
    const uint64_t what = random() % 40;
    if (what == 0 && programs.size() < 6) {
      programs.push_back(Copy(programs[who]));
    } else if (what == 1 && programs.size() > 1) {
      programs[who].view->Release();
      programs.erase(programs.begin() + static_cast<ptrdiff_t>(who));
    } else if (what == 2) {
      Verify(programs[who]);
    } else if (what < 10) {
      Forget(&programs[who], home, count);
    } else {
      Write(&programs[who], home, count);
    }
    if (HasFatalFailure()) return;
  }
  for (const Program& program : programs) Verify(program);
  for (const Program& program : programs) program.view->Release();
  EXPECT_TRUE(store_.pages.empty());
}

}  // namespace
}  // namespace nram
