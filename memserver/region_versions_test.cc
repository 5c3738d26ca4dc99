// A region's versions against a model: for each version a map of its pages.

#include "memserver/region_versions.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nram {
namespace {

using Held = RegionVersions::Held;
using Sealed = RegionVersions::Sealed;

struct Value {
  uint32_t id = 0;  // in the frame, the checksum and the seal
  ChunkMask mask = 0;
  bool operator==(const Value&) const = default;
};

struct ModelState {
  std::map<uint64_t, Value> pages;
  std::map<uint64_t, SpanGeneration> spans;
  std::map<uint64_t, uint64_t> touched;  // when each page was written or trimmed last
};

struct ModelVersion : ModelState {
  VersionKeep keep{};
  uint64_t sealed_at = 0;
  std::set<LeaseId> holds;
  bool ends = false;  // is dropped with its last hold
};

struct Mode {
  PageIndex::Pages pages;
  bool tight;  // versions yield for want of room
};

// Fixed seeds, so that a failure comes from the change under test. NRAM_SEED=N runs N alone, NRAM_SEEDS=N that many
// from it on.
std::vector<uint64_t> Seeds() {
  const char* const first = std::getenv("NRAM_SEED");
  const char* const count = std::getenv("NRAM_SEEDS");
  std::vector<uint64_t> seeds(count != nullptr ? std::strtoull(count, nullptr, 0) : first != nullptr ? 1 : 3);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = (first != nullptr ? std::strtoull(first, nullptr, 0) : 1) + i;
  return seeds;
}

// One region under PageStore's operations: four full spans, and far away many with few pages, so that walks take
// several steps.
class Region {
 public:
  static constexpr uint64_t kFar = uint64_t{1} << 30;
  static constexpr uint64_t kNearSpans = 4, kFarSpans = 150, kFarPages = 32;
  static constexpr uint64_t kTightBytes = 11 * kMiB;
  static constexpr RegionVersions::Limits kLimits{.versions = 12, .holds = 3, .places = 40};

  Region(FrameArena* arena, Mode mode, uint64_t seed)
      : arena_(arena),
        index_before_(arena->usage().index_bytes),
        mode_(mode),
        random_(seed),
        account_(arena),
        head_(&account_, mode.pages) {
    if (mode.tight) account_.SetLimit(kTightBytes);
    versions_ = RegionVersions::Make(&account_, mode.pages, kLimits);
  }

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      ++now_;
      Step();
      ASSERT_NO_FATAL_FAILURE(FollowYields());
      if (i % 150 == 0) {
        ASSERT_NO_FATAL_FAILURE(CheckAll());
      }
      if (::testing::Test::HasFailure()) return;
    }
    ASSERT_NO_FATAL_FAILURE(CheckAll());
    if (mode_.tight) {
      EXPECT_GT(yields_seen_, yields_asked_);
    } else {
      EXPECT_EQ(yields_seen_, yields_asked_);
    }
    EXPECT_GT(versions_checked_, 50);
    EXPECT_GT(seals_, 4 * kLimits.places);  // places were renumbered
  }

  // All is removed; the account must be as in the beginning.
  void End() {
    if (random_() % 2 == 0) {
      versions_->Drop(VersionNumber{0}, kVersionNumberMax, /*force=*/true);
      FinishSteps();
      EXPECT_EQ(versions_->pages(), 0);
      EXPECT_EQ(versions_->chunks(), 0);
      EXPECT_EQ(account_.bytes(), HeadBytes() + BytesWithoutDeltas());
    }
    while (!versions_->FreeAll()) {
    }
    versions_ = nullptr;
    EXPECT_EQ(account_.bytes(), HeadBytes());
    head_.ForgetGenerations();
    head_.Visit(0, 2 * kFar, ~uint64_t{0}, [&](uint64_t, PageEntry* entry) {
      account_.Free(entry->frame);
      entry->mask = 0;
    });
    EXPECT_EQ(account_.bytes(), 0);
  }

 private:
  uint64_t Random(uint64_t below) { return random_() % below; }
  uint64_t RandomPage() {
    if (Random(4) > 0) return Random(kNearSpans * kPagesPerSpan);
    return kFar + Random(kFarSpans) * kPagesPerSpan + Random(kFarPages);
  }

  void Step() {
    switch (Random(32)) {
      case 0:
        return Seal();
      case 1:
        return Drop();
      case 2:
        return TrimPages(RandomPage(), 1 + Random(90), Random(4) == 0);
      case 3:
        return Random(4) == 0 ? Recreate(RandomPage() / kPagesPerSpan) : void();
      case 4:
        return Hold();
      case 5:
        if (Random(20) == 0) Yield();
        return;
      case 6:
        if (Random(30) == 0) EndOwner();
        if (mode_.tight && Random(20) == 0) WriteWithoutRoom();
        return;
      case 7:
        if (Random(8) == 0) Compact();
        return;
      case 8:
      case 9:
      case 10:
        versions_->Step(&head_);
        return;
      default:
        Write();
    }
  }

  // --- The store's operations.

  PageSeal SealOf(uint32_t id) const {
    PageSeal seal{};
    memcpy(seal.tag.data(), &id, sizeof id);
    return seal;
  }
  const PageSeal* SealFor(PageSeal* seal) const { return head_.sealed() ? seal : nullptr; }

  // The span's generation becomes `generation`. False: there is no room for the span's leaf.
  bool Raise(uint64_t page, SpanGeneration generation) {
    if (head_.GenerationOf(page) == generation) return true;
    versions_->NoteGeneration(head_, page);
    if (!head_.PrepareSome(page, 0)) return false;
    head_.SetGeneration(page, generation);
    model_.spans[page / kPagesPerSpan] = generation;
    return true;
  }
  SpanGeneration Raised(uint64_t page, bool raises) {
    const uint32_t present = Raw(head_.GenerationOf(page));
    return SpanGeneration{present + (present == 0 || raises ? 1 : 0)};
  }

  void Write() {
    const uint64_t page = RandomPage();
    const uint64_t most = page < kFar && Random(4) == 0 ? 64 : 3;
    const uint64_t pages = 1 + Random(std::min(most, kPagesPerSpan - page % kPagesPerSpan));
    if (!Raise(page, Raised(page, Random(16) == 0))) return;
    versions_->PrepareKept(head_, page, pages);
    for (uint64_t i = 0; i < pages; ++i) WritePage(page + i);
    head_.DropIfEmpty(page);
  }

  // Others have taken all memory.
  void WriteWithoutRoom() {
    account_.SetLimit(0);
    Write();
    account_.SetLimit(kTightBytes);
  }

  void WritePage(uint64_t page) {
    const auto mask = static_cast<ChunkMask>(Random(3) == 0 ? 1 + Random(255) : 255);
    const PageEntry old = head_.Find(page);
    PageSeal old_seal = head_.SealOf(page);
    if (!head_.PrepareSome(page, 1)) return;
    FrameLoc frame = kNoFrame;
    const bool fits = old.mask != 0 && arena_->ChunksIn(old.frame) >= std::popcount(mask);
    while (!(fits && !versions_->Keeps(old)) || (frame == kNoFrame && Random(2) == 0)) {
      frame = account_.Allocate(std::popcount(mask));
      if (frame != kNoFrame || !versions_->YieldStep()) break;
    }
    const bool keeps = versions_->Keeps(old);
    // A page that fits its frame can be written over whatever versions there are.
    ASSERT_TRUE(frame != kNoFrame || !fits || !keeps);
    if (frame == kNoFrame && !fits) return;
    if (keeps) {
      versions_->Keep(page, old, SealFor(&old_seal));
    } else if (old.mask != 0 && frame != kNoFrame) {
      account_.Free(old.frame);
    }
    if (frame == kNoFrame) frame = old.frame;
    const Value value{++id_, mask};
    memcpy(arena_->Data(frame), &value.id, sizeof value.id);
    PageSeal seal = SealOf(value.id);
    head_.Set(page, {frame, mask, value.id, versions_->birth()}, SealFor(&seal));
    model_.pages[page] = value;
    model_.touched[page] = now_;
  }

  void TrimPages(uint64_t page, uint64_t pages, bool raises) {
    const uint64_t end = page + pages;
    while (page < end) {
      const uint64_t block = std::min({end - page, kPagesPerSpan - page % kPagesPerSpan, uint64_t{64}});
      if (head_.GenerationOf(page) != SpanGeneration{}) {
        ASSERT_TRUE(Raise(page, Raised(page, raises)));
        versions_->PrepareKept(head_, page, block);
      }
      for (uint64_t i = 0; i < block; ++i) TrimPage(page + i);
      head_.DropIfEmpty(page);
      page += block;
    }
  }

  void TrimPage(uint64_t page) {
    const PageEntry old = head_.Find(page);
    if (old.mask == 0) return;
    PageSeal old_seal = head_.SealOf(page);
    if (versions_->Keeps(old)) {
      versions_->Keep(page, old, SealFor(&old_seal));
    } else {
      account_.Free(old.frame);
    }
    head_.Erase(page);
    model_.pages.erase(page);
    model_.touched[page] = now_;
  }

  // A former copy is emptied, and the span gets another generation.
  void Recreate(uint64_t span) {
    if (head_.GenerationOf(span * kPagesPerSpan) == SpanGeneration{}) return;
    TrimPages(span * kPagesPerSpan, kPagesPerSpan, true);
  }

  // --- Versions.

  void Seal() {
    ++seals_;
    number_ = VersionNumber{Raw(number_) + 1 + static_cast<uint32_t>(Random(3))};
    const VersionKeep keep = Random(2) == 0 ? VersionKeep::kWithOwner : VersionKeep::kUntilDropped;
    const Sealed sealed = versions_->Seal(&head_, number_, keep);
    ASSERT_NE(sealed, Sealed::kOld);
    if (sealed == Sealed::kOk) {
      ModelVersion version{model_};
      version.keep = keep;
      version.sealed_at = now_;
      model_versions_[number_] = version;
      ASSERT_EQ(versions_->Seal(&head_, number_, keep), Sealed::kOk);
      ASSERT_EQ(versions_->Seal(&head_, VersionNumber{Raw(number_) - 1}, keep), Sealed::kOld);
    } else if (sealed == Sealed::kNoRoom) {
      ASSERT_TRUE(mode_.tight);
      ASSERT_EQ(versions_->newest(), VersionNumber{});
    } else if (sealed == Sealed::kTooMany) {
      Drop();
    }
  }

  VersionNumber RandomVersion() {
    if (model_versions_.empty()) return VersionNumber{1};
    return std::next(model_versions_.begin(), static_cast<ptrdiff_t>(Random(model_versions_.size())))->first;
  }

  void Drop() {
    const VersionNumber first = RandomVersion();
    const VersionNumber last{Raw(first) + static_cast<uint32_t>(Random(6) == 0 ? Random(10) : 0)};
    const bool force = Random(3) == 0;
    size_t dropped = 0;
    size_t held = 0;
    for (auto it = model_versions_.begin(); it != model_versions_.end();) {
      const bool in = it->first >= first && it->first <= last;
      const bool goes = in && (force || it->second.holds.empty());
      dropped += goes;
      held += in && !goes;
      it->second.ends |= in;
      it = goes ? model_versions_.erase(it) : std::next(it);
    }
    const RegionVersions::Dropped result = versions_->Drop(first, last, force);
    ASSERT_EQ(result.dropped, dropped);
    ASSERT_EQ(result.held, held);
  }

  std::map<VersionNumber, ModelVersion>::iterator Release(std::map<VersionNumber, ModelVersion>::iterator at,
                                                          LeaseId lease) {
    const bool goes = at->second.holds.erase(lease) > 0 && at->second.ends && at->second.holds.empty();
    return goes ? model_versions_.erase(at) : std::next(at);
  }

  void Hold() {
    const LeaseId lease{1 + Random(5)};
    const VersionNumber number = RandomVersion();
    const auto it = model_versions_.find(number);
    const auto action = Random(4);
    if (action == 0) {
      versions_->ReleaseAll(lease);
      for (auto at = model_versions_.begin(); at != model_versions_.end();) at = Release(at, lease);
    } else if (action == 1) {
      versions_->Release(number, lease);
      if (it != model_versions_.end()) Release(it, lease);
    } else {
      const Held held = versions_->Hold(number, lease);
      if (it == model_versions_.end()) {
        ASSERT_EQ(held, Held::kUnknown);
      } else if (!it->second.holds.contains(lease) && it->second.holds.size() == kLimits.holds) {
        ASSERT_EQ(held, Held::kTooMany);
      } else {
        ASSERT_TRUE(held == Held::kOk || mode_.tight);
        if (held == Held::kOk) it->second.holds.insert(lease);
      }
    }
  }

  void EndOwner() {
    std::erase_if(model_versions_, [](const auto& version) {
      return version.second.keep == VersionKeep::kWithOwner && version.second.holds.empty();
    });
    ASSERT_EQ(versions_->EndOwner(1), !model_versions_.empty());
  }

  void Yield() {
    const size_t before = versions_->List().size();
    versions_->YieldStep();
    yields_asked_ += before - versions_->List().size();
  }

  // The oldest ones may have yielded, and no others.
  void FollowYields() {
    const std::vector<StoredVersion> list = versions_->List();
    while (model_versions_.size() > list.size()) {
      ASSERT_LE(model_versions_.begin()->first, versions_->yielded());
      model_versions_.erase(model_versions_.begin());
      ++yields_seen_;
    }
    ASSERT_EQ(list.size(), model_versions_.size());
    auto it = model_versions_.begin();
    for (const StoredVersion& stored : list) {
      ASSERT_EQ(stored.number, it->first);
      ASSERT_EQ(stored.keep, it->second.keep);
      ASSERT_EQ(stored.holds, it->second.holds.size());
      ++it;
    }
    ASSERT_EQ(versions_->newest(), list.empty() ? VersionNumber{} : list.back().number);
  }

  void FinishSteps() {
    while (!versions_->Step(&head_)) {
    }
  }

  // --- The compactor.

  FrameLoc Move(FrameLoc frame, ChunkMask mask) {
    if (Random(10) == 0) return kNoFrame;
    const FrameLoc to = Random(2) == 0 ? account_.Allocate(arena_->ChunksIn(frame)) : kNoFrame;
    moved_.insert(frame);
    if (to == kNoFrame) return frame;
    memcpy(arena_->Data(to), arena_->Data(frame), std::popcount(mask) * kChunkBytes);
    retired_.push_back(frame);  // so that no other page gets it in this walk
    return to;
  }

  void Compact() {
    const auto move = [&](FrameLoc frame, ChunkMask mask) { return Move(frame, mask); };
    moved_.clear();
    FinishSteps();
    const uint64_t pages = head_.pages() + versions_->pages();
    for (uint64_t page = 0; page != PageIndex::kNoPage;) {
      uint64_t looks_left = Random(100);
      page = head_.MoveFrames(page, &looks_left, move);
    }
    RegionVersions::DeltaCursor cursor;
    uint64_t looks_left = 0;
    while (!versions_->MoveFrames(&cursor, &looks_left, move)) looks_left = Random(100);
    // Without room some merges wait, and their nameless versions are seen too.
    ASSERT_EQ(moved_.size(), pages);
    for (const FrameLoc frame : retired_) account_.Free(frame);
    retired_.clear();
  }

  // --- Checks.

  void CheckEntry(const std::map<uint64_t, Value>& expected, uint64_t page, const PageEntry& entry,
                  const PageSeal& seal) {
    const auto it = expected.find(page);
    ASSERT_EQ(entry.mask, it != expected.end() ? it->second.mask : 0) << "page " << page;
    if (it == expected.end()) return;
    uint32_t id = 0;
    memcpy(&id, arena_->Data(entry.frame), sizeof id);
    ASSERT_EQ(entry.crc, it->second.id) << "page " << page;
    ASSERT_EQ(id, it->second.id) << "page " << page;
    ASSERT_TRUE(seal == (head_.sealed() ? SealOf(it->second.id) : PageSeal())) << "page " << page;
    ASSERT_TRUE(frames_.insert(entry.frame).second || &expected != &model_.pages) << "two entries have a frame";
  }

  void CheckAll() {
    frames_.clear();
    for (const auto& [page, value] : model_.pages) {
      ASSERT_NO_FATAL_FAILURE(CheckEntry(model_.pages, page, head_.Find(page), head_.SealOf(page)));
    }
    ASSERT_EQ(head_.pages(), model_.pages.size());
    for (const auto& [number, version] : model_versions_) {
      SCOPED_TRACE("version " + std::to_string(Raw(number)));
      ASSERT_NO_FATAL_FAILURE(CheckVersion(number, version));
      const VersionNumber to = RandomVersion();
      if (to > number) {
        ASSERT_NO_FATAL_FAILURE(CheckChanges(number, to));
      }
    }
    ASSERT_FALSE(versions_->Has(VersionNumber{Raw(number_) + 1}));
    ASSERT_FALSE(versions_->GenerationAt(VersionNumber{Raw(number_) + 1}, head_, 0).has_value());
  }

  void CheckPages(VersionNumber number, const ModelVersion& version, uint64_t first_page, uint64_t pages) {
    PageEntry entries[64];
    PageSeal seals[64];
    ASSERT_TRUE(versions_->Resolve(number, head_, first_page, pages, entries, seals));
    for (uint64_t i = 0; i < pages; ++i) {
      ASSERT_NO_FATAL_FAILURE(CheckEntry(version.pages, first_page + i, entries[i], seals[i]));
    }
  }

  void CheckVersion(VersionNumber number, const ModelVersion& version) {
    ASSERT_TRUE(versions_->Has(number));
    ++versions_checked_;
    for (uint64_t done = 0; done < kNearSpans * kPagesPerSpan;) {
      const uint64_t pages = 1 + Random(64);
      ASSERT_NO_FATAL_FAILURE(CheckPages(number, version, done, pages));
      done += pages;
    }
    for (uint64_t span = 0; span < kFarSpans; ++span) {
      ASSERT_NO_FATAL_FAILURE(CheckPages(number, version, kFar + span * kPagesPerSpan, 64));
    }
    std::map<uint64_t, SpanGeneration> spans;
    for (uint64_t span = 0; span != PageIndex::kNoSpan;) {
      uint64_t looks_left = Random(500);
      span = versions_->VisitSpans(number, head_, span, &looks_left,
                                   [&](uint64_t at, SpanGeneration generation) { spans[at] = generation; });
    }
    ASSERT_TRUE(spans == version.spans);
    for (const auto& [span, generation] : version.spans) {
      ASSERT_EQ(versions_->GenerationAt(number, head_, span * kPagesPerSpan), generation);
    }
  }

  // Every difference is told, and no untouched page.
  void CheckChanges(VersionNumber from, VersionNumber to) {
    const ModelVersion& older = model_versions_.at(from);
    const ModelVersion& newer = model_versions_.at(to);
    std::set<uint64_t> told;
    for (uint64_t span = 0; span != PageIndex::kNoSpan;) {
      uint64_t looks_left = Random(500);
      span = versions_->VisitChanges(from, to, head_, span, &looks_left,
                                     [&](uint64_t at, const PageIndex::SpanPages& pages) {
                                       for (uint64_t i = 0; i < kPagesPerSpan; ++i) {
                                         if ((pages[i / 64] >> (i % 64) & 1) != 0) told.insert(at * kPagesPerSpan + i);
                                       }
                                     });
    }
    for (const uint64_t page : told) {
      const auto it = newer.touched.find(page);
      ASSERT_TRUE(it != newer.touched.end() && it->second > older.sealed_at) << "page " << page;
    }
    for (const auto& [page, when] : newer.touched) {
      const auto before = older.pages.find(page);
      const auto after = newer.pages.find(page);
      const bool same = (before == older.pages.end()) == (after == newer.pages.end()) &&
                        (before == older.pages.end() || before->second == after->second);
      ASSERT_TRUE(same || told.contains(page)) << "page " << page << " of " << Raw(from) << " and " << Raw(to);
    }
  }

  // The bytes of an index and of frames like the head's.
  uint64_t HeadBytes() {
    ArenaAccount account(arena_);
    uint64_t bytes = 0;
    for (const auto& [page, value] : model_.pages) {
      const uint64_t before = account.bytes();
      const FrameLoc frame = account.Allocate(arena_->ChunksIn(head_.Find(page).frame));
      bytes += account.bytes() - before;
      account.Free(frame);
    }
    return bytes + arena_->usage().index_bytes - index_before_ - BytesBesideHead();
  }
  // The index bytes that are not the head's, once deltas are dropped.
  uint64_t BytesBesideHead() const { return versions_ != nullptr ? BytesWithoutDeltas() : 0; }
  uint64_t BytesWithoutDeltas() const {
    ArenaAccount account(arena_);
    const auto empty = RegionVersions::Make(&account, mode_.pages, kLimits);
    return account.bytes();
  }

  FrameArena* const arena_;
  const uint64_t index_before_;
  const Mode mode_;
  std::mt19937_64 random_;
  ArenaAccount account_;
  PageIndex head_;
  std::unique_ptr<RegionVersions> versions_;
  ModelState model_;
  std::map<VersionNumber, ModelVersion> model_versions_;
  VersionNumber number_{};
  uint32_t id_ = 0;
  uint64_t now_ = 0;
  int seals_ = 0, versions_checked_ = 0;
  size_t yields_asked_ = 0, yields_seen_ = 0;
  std::set<FrameLoc> moved_, frames_;
  std::vector<FrameLoc> retired_;
};

class RegionVersionsTest : public ::testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(Modes, RegionVersionsTest,
                         ::testing::Values(Mode{PageIndex::Pages::kPlain, false}, Mode{PageIndex::Pages::kPlain, true},
                                           Mode{PageIndex::Pages::kSealed, false},
                                           Mode{PageIndex::Pages::kSealed, true}),
                         [](const auto& info) {
                           return std::string(info.param.pages == PageIndex::Pages::kSealed ? "Sealed" : "Plain") +
                                  (info.param.tight ? "Tight" : "");
                         });

TEST_P(RegionVersionsTest, AgreesWithAModel) {
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE("NRAM_SEED=" + std::to_string(seed));
    auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
    const uint64_t index_before = arena->usage().index_bytes;
    {
      Region region(arena.get(), GetParam(), seed);
      ASSERT_NO_FATAL_FAILURE(region.Run(8'000));
      if (HasFailure()) return;
      region.End();
    }
    EXPECT_EQ(arena->usage().index_bytes, index_before);
    EXPECT_EQ(arena->usage().frame_bytes, 0);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace nram
