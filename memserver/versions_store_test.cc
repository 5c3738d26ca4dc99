// Versions of a stored region against a model: after any writes and trims, each version reads as it was sealed.

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/plant.h"
#include "gtest/gtest.h"
#include "memserver/compactor.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

struct Mode {
  PageStore::Frames frames;
  bool tight;
};

class VersionsStoreTest : public PageStoreTest, public ::testing::WithParamInterface<Mode> {
 protected:
#ifdef NRAM_PLANT
  VersionsStoreTest() {
    const char* const bug = std::getenv("NRAM_PLANT");
    EXPECT_TRUE(bug == nullptr || SetPlanted(bug));
  }
  ~VersionsStoreTest() override { planted = Plant::none; }
#endif
  static constexpr uint64_t kSpans = 3;
  static constexpr uint64_t kChunks = kSpans * kPagesPerSpan * kChunksPerPage;
  static constexpr uint64_t kTightBytes = 5 * kMiB;
  // The filling of each chunk; 0: zeros. And each span's generation.
  struct State {
    std::string chunks = std::string(kChunks, '\0');
    std::array<uint32_t, kSpans> generations{};
  };

  uint64_t Random(uint64_t below) { return random_() % below; }
  // Within one span.
  ChunkRange RandomRange() {
    const uint64_t span = Random(kSpans);
    const uint64_t span_chunks = kPagesPerSpan * kChunksPerPage;
    uint64_t first = Random(span_chunks);
    uint64_t count = 1 + Random(Random(3) == 0 ? 400 : 12);
    if (Random(2) == 0) {
      first = first / kChunksPerPage * kChunksPerPage;
      count = RoundUp(count, kChunksPerPage);
    }
    return {span * span_chunks + first, std::min(count, span_chunks - first)};
  }
  static uint64_t SpanOf(const ChunkRange& range) { return range.first_page() / kPagesPerSpan; }

  void WriteSome() {
    const ChunkRange range = RandomRange();
    uint32_t* const generation = &head_.generations[SpanOf(range)];
    if (*generation == 0 || Random(12) == 0) *generation += 2;
    generation_ = SpanGeneration{*generation};
    absent_ = known_[SpanOf(range)] ? PageStore::IfAbsent::kRefuse : PageStore::IfAbsent::kCreate;
    std::string fills(range.count, '\0');
    for (char& fill : fills) fill = Random(6) == 0 ? '\0' : static_cast<char>(1 + Random(255));
    if (Random(8) == 0) fills = head_.chunks.substr(range.first, range.count);  // the same again
    std::string data;
    for (const char fill : fills) data.append(kChunkBytes, fill);
    const bool had_frames = HasFrames(range);
    const Reason reason = Write(range, data);
    if (reason == Reason::kOk) stored_pages_ = range.pages();
    if (reason != Reason::kOk) {
      ASSERT_EQ(reason, Reason::kFull);
      ASSERT_TRUE(GetParam().tight && !(frames_ == PageStore::Frames::kWhole && had_frames));
      if (!known_[SpanOf(range)]) known_[SpanOf(range)] = ReadSpan(SpanOf(range));
      if (!known_[SpanOf(range)]) *generation = 0;
    } else {
      known_[SpanOf(range)] = true;
    }
    const uint64_t end = std::min(range.end(), (range.first_page() + stored_pages_) * kChunksPerPage);
    for (uint64_t chunk = range.first; chunk < end; ++chunk) {
      head_.chunks[chunk] = fills[chunk - range.first];
      if (fills[chunk - range.first] != 0) framed_[chunk / kChunksPerPage] = true;
    }
  }
  bool HasFrames(const ChunkRange& range) const {
    for (uint64_t i = 0; i < range.pages(); ++i) {
      if (!framed_[range.first_page() + i]) return false;
    }
    return true;
  }
  bool ReadSpan(uint64_t span) { return !Read({span * kPagesPerSpan * kChunksPerPage, 8}).empty(); }

  void TrimSome() {
    const ChunkRange range = RandomRange();
    if (!known_[SpanOf(range)]) return;
    uint32_t* const generation = &head_.generations[SpanOf(range)];
    if (Random(8) == 0) *generation += 2;
    ArenaReservation* const reservation = Random(2) == 0 ? &lease_->reservation : nullptr;
    uint64_t kept_bytes = 0;
    ASSERT_EQ(store_.Trim(lease_.get(),
                          {.region = kRegion,
                           .epoch = 1,
                           .range = range,
                           .frames = frames_,
                           .reservation = reservation,
                           .generation = SpanGeneration{*generation}},
                          &kept_bytes),
              Reason::kOk);
    // The bytes that the trim reports as added to the reservation are there.
    if (reservation != nullptr) {
      ASSERT_EQ(kept_bytes - kept_bytes_, arena_->left_bytes(*reservation));
      kept_bytes_ = kept_bytes;
    }
    for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
      head_.chunks[chunk] = 0;
      if (MaskOfPage(range, chunk / kChunksPerPage) == kAllChunks) framed_[chunk / kChunksPerPage] = false;
    }
    arena_->Unreserve(1'000'000, &lease_->reservation);
  }

  // A span of another copy's generation is emptied.
  void Recreate() {
    const uint64_t span = Random(kSpans);
    if (!known_[span]) return;
    head_.generations[span] += 2;
    generation_ = SpanGeneration{head_.generations[span]};
    absent_ = PageStore::IfAbsent::kCreate;
    const uint64_t page = span * kPagesPerSpan;
    const ChunkMask none = 0;
    ASSERT_EQ(Write({page * kChunksPerPage, 8}, std::string(kPageBytes, 'x'), {&none, 1}), Reason::kOk);
    for (uint64_t i = page; i < page + kPagesPerSpan; ++i) framed_[i] = false;
    std::fill_n(head_.chunks.begin() + static_cast<ptrdiff_t>(page * kChunksPerPage), kPagesPerSpan * kChunksPerPage,
                0);
  }

  void Seal() {
    number_ = VersionNumber{Raw(number_) + 1 + static_cast<uint32_t>(Random(2))};
    const Reason reason = store_.SealVersion(lease_.get(), {kRegion, 1, number_});
    ASSERT_TRUE(reason == Reason::kOk || (GetParam().tight && reason == Reason::kFull));
    if (reason == Reason::kOk) versions_[number_] = head_;
  }

  void Drop(size_t most) {
    while (versions_.size() > most) {
      const auto it = std::next(versions_.begin(), static_cast<ptrdiff_t>(Random(versions_.size())));
      RegionVersions::Dropped dropped;
      ASSERT_EQ(store_.DropVersions(lease_.get(), {kRegion, 1, it->first, it->first}, &dropped), Reason::kOk);
      ASSERT_EQ(dropped.dropped, 1);
      versions_.erase(it);
    }
  }

  // The oldest ones may have yielded.
  void FollowYields() {
    const std::vector<StoredVersion> list = store_.ListVersions({kRegion, 0}).value_or(std::vector<StoredVersion>());
    ASSERT_TRUE(list.size() >= versions_.size() || GetParam().tight);
    while (versions_.size() > list.size()) {
      versions_.erase(versions_.begin());
      ++yields_;
    }
    ASSERT_EQ(list.size(), versions_.size());
    auto it = versions_.begin();
    for (const StoredVersion& stored : list) ASSERT_EQ(stored.number, (it++)->first);
  }

  void Check(VersionNumber version, const State& state) {
    version_ = version;
    for (uint64_t span = 0; span < kSpans; ++span) {
      if (state.generations[span] == 0) continue;
      generation_ = SpanGeneration{state.generations[span]};
      for (uint64_t page = 0; page < kPagesPerSpan; page += 64) {
        const ChunkRange range{(span * kPagesPerSpan + page) * kChunksPerPage, 64 * kChunksPerPage};
        const std::string data = Read(range);
        ASSERT_EQ(data.size(), range.bytes()) << Raw(version) << " span " << span << " " << data;
        for (uint64_t i = 0; i < range.count; ++i) {
          const std::string_view chunk = std::string_view(data).substr(i * kChunkBytes, kChunkBytes);
          ASSERT_EQ(chunk.find_first_not_of(state.chunks[range.first + i]), std::string_view::npos)
              << "version " << Raw(version) << " chunk " << range.first + i;
        }
      }
    }
    version_ = VersionNumber{};
  }

  void Step() {
    switch (Random(24)) {
      case 0:
        return Seal();
      case 1:
        return Drop(Random(8));
      case 2:
      case 3:
        return TrimSome();
      case 4:
        return Random(6) == 0 ? Recreate() : void();
      case 5:
        if (Random(5) == 0) compactor_.Run(64 * kMiB, std::numeric_limits<int64_t>::max());
        return;
      case 6:
        store_.StepVersions(std::numeric_limits<int64_t>::max());
        return;
      default:
        WriteSome();
    }
  }

  std::mt19937_64 random_;
  State head_;
  std::array<bool, kSpans> known_{};
  std::array<bool, kSpans * kPagesPerSpan> framed_{};  // in a region of whole frames: the page surely has one
  std::map<VersionNumber, State> versions_;
  VersionNumber number_{};
  size_t yields_ = 0;
  uint64_t kept_bytes_ = 0;  // of all trims so far
  Compactor compactor_{arena_.get(), &store_, &landing_};
};

INSTANTIATE_TEST_SUITE_P(Modes, VersionsStoreTest,
                         ::testing::Values(Mode{PageStore::Frames::kFitted, false},
                                           Mode{PageStore::Frames::kFitted, true},
                                           Mode{PageStore::Frames::kWhole, false},
                                           Mode{PageStore::Frames::kWhole, true}),
                         [](const auto& info) {
                           return std::string(info.param.frames == PageStore::Frames::kWhole ? "Whole" : "Fitted") +
                                  (info.param.tight ? "Tight" : "");
                         });

// The head has nothing any more; the frames are scattered.
TEST_P(VersionsStoreTest, WhatVersionsKeepMovesTogether) {
  frames_ = GetParam().frames;
  constexpr uint64_t kWritten = 4'000;
  const auto trim = [&](uint64_t page, uint64_t pages) {
    ASSERT_EQ(store_.Trim(lease_.get(), {.region = kRegion,
                                         .epoch = 1,
                                         .range = {page * kChunksPerPage, pages * kChunksPerPage},
                                         .generation = SpanGeneration{2}}),
              Reason::kOk);
  };
  const auto data_of = [](uint64_t page) { return std::string(kPageBytes, static_cast<char>(1 + page % 200)); };
  generation_ = SpanGeneration{2};
  absent_ = PageStore::IfAbsent::kCreate;
  for (uint64_t page = 0; page < kWritten; ++page) {
    absent_ = page % kPagesPerSpan == 0 ? PageStore::IfAbsent::kCreate : PageStore::IfAbsent::kRefuse;
    ASSERT_EQ(Write({page * kChunksPerPage, kChunksPerPage}, data_of(page)), Reason::kOk);
  }
  for (uint64_t page = 0; page < kWritten; ++page) {
    if (page % 4 != 0) trim(page, 1);
  }
  ASSERT_EQ(store_.SealVersion(lease_.get(), {kRegion, 1, VersionNumber{1}}), Reason::kOk);
  trim(0, kWritten);
  const uint64_t before = arena_->usage().extent_bytes;
  compactor_.Run(64 * kMiB, std::numeric_limits<int64_t>::max());
  EXPECT_LT(arena_->usage().extent_bytes, before / 2);
  EXPECT_GT(compactor_.counters().pages_moved.load(), kWritten / 8);
  version_ = VersionNumber{1};
  for (uint64_t page = 0; page < kWritten; ++page) {
    const std::string expected = page % 4 == 0 ? data_of(page) : std::string(kPageBytes, '\0');
    ASSERT_EQ(Read({page * kChunksPerPage, kChunksPerPage}), expected);
  }
}

TEST_P(VersionsStoreTest, AgreesWithAModel) {
  const char* const given = std::getenv("NRAM_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : 1;
  SCOPED_TRACE("NRAM_SEED=" + std::to_string(seed));
  random_.seed(seed);
  frames_ = GetParam().frames;
  const ArenaUsage before = arena_->usage();
  const uint64_t account_before = tenant_.account.bytes();
  if (GetParam().tight) tenant_.account.SetLimit(kTightBytes);
  int checked = 0;
  for (int i = 0; i < 6'000; ++i) {
    ASSERT_NO_FATAL_FAILURE(Step());
    ASSERT_NO_FATAL_FAILURE(FollowYields());
    if (i % 100 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(Check(VersionNumber{}, head_));
    for (const auto& [number, state] : versions_) {
      ASSERT_NO_FATAL_FAILURE(Check(number, state));
      ++checked;
    }
  }
  EXPECT_GT(checked, 50);
  EXPECT_EQ(yields_ > 0, GetParam().tight);
  if (frames_ == PageStore::Frames::kFitted) Drop(0);
  EXPECT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kOk);
  EXPECT_EQ(tenant_.account.bytes(), account_before);
  EXPECT_EQ(arena_->usage().frame_bytes, before.frame_bytes);
  EXPECT_EQ(arena_->usage().index_bytes, before.index_bytes);
  EXPECT_EQ(store_.counters().pages.load(), 0);
  EXPECT_EQ(store_.counters().chunks.load(), 0);
}

}  // namespace
}  // namespace nram
