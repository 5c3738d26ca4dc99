// Pages that the kernel has no memory for. The test plays the kernel by an ioctl(2) of its own.

#include "client/memory/page_placer.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "gtest/gtest.h"

namespace {

// Copies to these addresses find no memory, this number of times.
std::atomic<uintptr_t> no_room_begin{0}, no_room_end{0};
std::atomic<int> no_room_left{0}, no_room_told{0};

}  // namespace

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (request == UFFDIO_COPY) {
    auto* const copy = static_cast<uffdio_copy*>(argument);
    if (copy->dst < no_room_end && copy->dst + copy->len > no_room_begin && no_room_left > 0) {
      --no_room_left;
      ++no_room_told;
      copy->copy = -ENOMEM;
      errno = ENOMEM;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

namespace nram {
namespace {

constexpr uint64_t kPages = 8;
constexpr int kAlways = std::numeric_limits<int>::max();

class PagePlacerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Userfault>> opened = Userfault::Open();
    if (!opened.ok()) GTEST_SKIP() << opened.status();
    userfault_ = *std::move(opened);
    segment_ = std::make_unique<Segment>(*Mapping::Anonymous(kPages * kPageBytes), *Mapping::Anonymous(kPageBytes),
                                         kPageBytes, nullptr);
    ASSERT_TRUE(userfault_->Register(segment_->base(), segment_->length(), /*writable=*/true).ok());
    residency_ = Residency::New(Policy::kFifo, kPages, kPages, kPages, nullptr).value();
    sums_ = ChunkSums::New(kPageBytes, kPages).value();
    placer_ = std::make_unique<PagePlacer>(
        kPageBytes, [this](void* address, size_t, const std::string&) { lost_.push_back(address); }, &gate_,
        userfault_.get(), residency_.get(), sums_.get(), &counters_);
    for (uint64_t page = 0; page < kPages; ++page) {
      memset(data_ + page * kPageBytes, static_cast<int>(page + 1), kPageBytes);
      ASSERT_TRUE(segment_->word(page).Change(PageState::kEmpty, PageState::kRemote));
    }
  }
  void TearDown() override {
    no_room_left = 0;
    if (segment_ != nullptr) userfault_->Unregister(segment_->base(), segment_->length());
  }

  void NoRoomFor(uint64_t page, uint64_t count, int times) {
    no_room_begin = segment_->key(page);
    no_room_end = segment_->key(page) + count * kPageBytes;
    no_room_left = times;
    no_room_told = 0;
  }
  void Place(uint64_t page, uint64_t count, std::optional<uint64_t> demanded) {
    ASSERT_EQ(placer_->Claim(*segment_, {page, count, 1}, PageState::kRemote), count);
    ASSERT_TRUE(placer_->TakeBudget(count, MonotonicNs()).ok());
    placer_->Place(SegmentRef(segment_.get()), page, count, data_ + page * kPageBytes, /*writable=*/false,
                   /*empty=*/false, demanded);
  }
  void ExpectPlaced(uint64_t page) {
    ASSERT_EQ(segment_->word(page).state(), PageState::kClean) << page;
    EXPECT_EQ(memcmp(segment_->address(page), data_ + page * kPageBytes, kPageBytes), 0) << page;
  }

  PublishGate gate_;
  Counters counters_;
  std::unique_ptr<Userfault> userfault_;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<ChunkSums> sums_;
  std::unique_ptr<PagePlacer> placer_;
  std::vector<void*> lost_;
  std::byte data_[kPages * kPageBytes];
};

TEST_F(PagePlacerTest, RoomThatComesSoonIsWaitedFor) {
  NoRoomFor(2, 1, 5);
  Place(0, kPages, /*demanded=*/0);
  EXPECT_EQ(no_room_told, 5);
  for (uint64_t page = 0; page < kPages; ++page) ExpectPlaced(page);
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(residency_->resident_pages(), kPages);
}

TEST_F(PagePlacerTest, PagesThatNobodyHasAskedForStayRemote) {
  NoRoomFor(2, 2, kAlways);
  Place(0, kPages, /*demanded=*/0);
  EXPECT_GT(no_room_told, 2);
  EXPECT_TRUE(lost_.empty());
  for (const uint64_t page : {2, 3}) EXPECT_EQ(segment_->word(page).state(), PageState::kRemote);
  for (const uint64_t page : {0, 1, 4, 5, 6, 7}) ExpectPlaced(page);
  EXPECT_EQ(residency_->resident_pages(), kPages - 2);
  // They are placed when there is memory.
  no_room_left = 0;
  Place(2, 2, /*demanded=*/2);
  for (const uint64_t page : {2, 3}) ExpectPlaced(page);
  EXPECT_EQ(residency_->resident_pages(), kPages);
}

TEST_F(PagePlacerTest, ThePageOfTheFaultIsLost) {
  if (!userfault_->Poison(segment_->address(7), kPageBytes).ok()) GTEST_SKIP() << "Linux 6.6 or newer is needed";
  NoRoomFor(1, 2, kAlways);
  Place(0, 4, /*demanded=*/1);
  EXPECT_EQ(lost_, std::vector<void*>{segment_->address(1)});
  EXPECT_EQ(segment_->word(1).state(), PageState::kLost);
  EXPECT_EQ(segment_->word(2).state(), PageState::kRemote);
  for (const uint64_t page : {0, 3}) ExpectPlaced(page);
  EXPECT_EQ(residency_->resident_pages(), 2u);
}

}  // namespace
}  // namespace nram
