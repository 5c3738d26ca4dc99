// The parts of publishing memory that need no pool and no faults: copies of bound pages, and the waits of a flush.

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "client/memory/advice.h"
#include "client/memory/bound_copies.h"
#include "client/memory/counters.h"
#include "client/memory/page_out.h"
#include "client/memory/publish_gate.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr int64_t kPatienceMs = 60'000;

class PublishPartsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 1'024;

  PublishPartsTest() {
    index_.Add(std::make_unique<Segment>(*Mapping::Anonymous(16 * kPageBytes), *Mapping::Anonymous(4096), kPageBytes,
                                         nullptr));
    segment_ = index_.Find(reinterpret_cast<uintptr_t>(index_.First()));
    segment_->publishable = true;
  }
  PageWord& word(uint64_t page) { return segment_->word(page); }

  SegmentIndex index_;
  SegmentRef segment_;
  PublishGate gate_;
  Counters counters_;
  std::unique_ptr<Residency> residency_ = Residency::New(Policy::kFifo, kLimit, 16, kLimit, &index_).value();
};

TEST_F(PublishPartsTest, AThreadThatComesTooLateForACopyEndsNothing) {
  const auto copies =
      BoundCopies::New(kPageBytes, kLimit, &gate_, nullptr, residency_.get(), nullptr, &counters_).value();
  ASSERT_TRUE(word(0).Change(PageState::kEmpty, PageState::kBound));
  uint64_t copied = 1;
  std::thread late;
  {
    const GateAlone alone(&gate_);
    late = std::thread([&] { copied = copies->Copy(segment_, {0, 1, 1}, /*note=*/false); });
    // It has its memory, and waits for the gate.
    EXPECT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 1, [&] { return residency_->resident_pages() == 1; }));
    // The version is given up.
    EXPECT_TRUE(word(0).Change(PageState::kBound, PageState::kDirty));
    copies->Trim();
  }
  late.join();
  EXPECT_EQ(copied, 0u);
  EXPECT_EQ(word(0).state(), PageState::kDirty);
  EXPECT_EQ(residency_->resident_pages(), 0u);
  copies->Trim();
}

TEST_F(PublishPartsTest, AFlushKnowsOfPagesWhoseCopiesAreOnTheirWay) {
  PageOut out(&gate_, nullptr, residency_.get(), nullptr, &counters_, 1);
  ASSERT_TRUE(word(1).Change(PageState::kEmpty, PageState::kDirtyCopied));
  ASSERT_TRUE(word(3).Change(PageState::kEmpty, PageState::kWriting));
  out.Add(segment_, 0, 16, PageOut::After::kKeep);
  EXPECT_EQ(out.TakePassed(), (std::vector<uint64_t>{1, 3}));
  EXPECT_TRUE(out.Finish().ok());
}

TEST_F(PublishPartsTest, AFlushWaitsForAVersionAsLongAsThatTakes) {
  Advice advice(/*io_timeout_ms=*/1, &gate_, nullptr, residency_.get(), nullptr, nullptr, &counters_);
  const SegmentRef published[] = {segment_.Share()};
  ASSERT_TRUE(gate_.BeginPublish(published, DeadlineAfterMs(kPatienceMs)).ok());
  absl::Status status;
  std::atomic<bool> ended{false};
  std::thread flush([&] {
    status = advice.Flush({segment_.Share(), 0, 16});
    ended = true;
  });
  EXPECT_FALSE(PollUntil(DeadlineAfterMs(50), 1, [&] { return ended.load(); }));
  gate_.EndPublish(published);
  flush.join();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace nram
