#include "memserver/region_versions.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/clock.h"

namespace nram {

std::unique_ptr<RegionVersions> RegionVersions::Make(ArenaAccount* account, PageIndex::Pages pages, Limits limits,
                                                     VersionTotals* server, VersionTotals* tenant) {
  constexpr size_t kAllocatorBytes = 2 * sizeof(size_t);
  static_assert(sizeof(RegionVersions) + kAllocatorBytes + VersionedRegions::kBytesPerRegion <= kBytes);
  static_assert(sizeof(Version) + kAllocatorBytes + 4 * sizeof(VersionPtr) + sizeof(uint16_t) <= kVersionBytes);
  CHECK(limits.versions < limits.places && limits.places <= SealOrder::kPlacesMax);
  if (!account->ChargeIndex(kBytes)) return nullptr;
  return std::unique_ptr<RegionVersions>(new RegionVersions(account, pages, limits, server, tenant));
}

RegionVersions::~RegionVersions() {
  Unlink(versions_.size());
  account_->ReleaseIndex(kBytes + unlinked_.size() * BytesOfVersion());
  AddTotals(0, -bytes_);
}

void RegionVersions::AddTotals(int64_t versions, int64_t bytes) {
  bytes_ += bytes;
  for (VersionTotals* const totals : {server_totals_, tenant_totals_}) {
    if (totals == nullptr) continue;
    totals->versions.fetch_add(versions, std::memory_order_relaxed);
    totals->bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (is_barred_) totals->held_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void RegionVersions::Unname(Version* version) {
  if (!version->named) return;
  if (!version->holds.empty()) account_->ReleaseIndex(version->holds.size() * kHoldBytes);
  version->holds.clear();
  version->named = false;
  ++nameless_;
  AddTotals(-1, 0);
}

void RegionVersions::NoteAge() {
  const std::optional<uint64_t> stamp = StampToYield(/*held=*/true);
  const bool was_barred = is_barred_;
  is_barred_ = stamp.has_value() && !StampToYield(/*held=*/false).has_value();
  place_.SetAge(stamp, is_barred_);
  if (is_barred_ == was_barred) return;
  for (VersionTotals* const totals : {server_totals_, tenant_totals_}) {
    if (totals != nullptr) totals->held_bytes.fetch_add(is_barred_ ? bytes_ : -bytes_, std::memory_order_relaxed);
  }
}

void RegionVersions::NoteYield(VersionNumber number) {
  yielded_ = std::max(yielded_, number);
  for (VersionTotals* const totals : {server_totals_, tenant_totals_}) {
    if (totals != nullptr) Count(&totals->yielded);
  }
}

size_t RegionVersions::FindNamed(VersionNumber version) const {
  const auto it = std::lower_bound(versions_.begin(), versions_.end(), version,
                                   [](const VersionPtr& at, VersionNumber number) { return at->number < number; });
  if (it == versions_.end() || (*it)->number != version || !(*it)->named) return kNone;
  return it - versions_.begin();
}

RegionVersions::Version* RegionVersions::NewestNamed() const {
  for (auto it = versions_.rbegin(); it != versions_.rend(); ++it) {
    if ((*it)->named) return it->get();
  }
  return nullptr;
}

// --- Changes.

VersionNumber RegionVersions::oldest() const {
  for (const VersionPtr& version : versions_) {
    if (version->named) return version->number;
  }
  return VersionNumber{};
}

bool RegionVersions::Keeps(const PageEntry& old) const {
  const Version* const newest = old.mask != 0 ? NewestNamed() : nullptr;
  return newest != nullptr && order_.PlaceOf(old.born) < newest->place;
}

void RegionVersions::PrepareKept(const PageIndex& head, uint64_t page, uint64_t pages) {
  DCHECK(pages >= 1 && pages <= 64 && page / kPagesPerSpan == (page + pages - 1) / kPagesPerSpan);
  if (NewestNamed() == nullptr) return;
  std::array<PageEntry, 64> entries;
  const uint64_t asked = ~uint64_t{0} >> (64 - pages);
  uint64_t missing = asked;
  head.FindSome(page, &missing, entries.data(), nullptr);
  UntilRoom([&](Version* newest) {
    uint64_t kept = 0;
    for (uint64_t rest = asked & ~missing; rest != 0; rest &= rest - 1) {
      const int i = std::countr_zero(rest);
      if (order_.PlaceOf(entries[i].born) < newest->place) kept |= uint64_t{1} << i;
    }
    return kept == 0 || newest->delta.PrepareSome(page, kept);
  });
}

void RegionVersions::Keep(uint64_t page, const PageEntry& old, const PageSeal* seal) {
  Version* const newest = NewestNamed();
  CHECK(newest != nullptr);
  CHECK_EQ(newest->delta.Find(page).mask, 0);
  PageEntry kept = old;
  kept.born = order_.Renewed(old.born);
  newest->delta.Set(page, kept, seal);
  const int chunks = std::popcount(old.mask);
  newest->chunks += chunks;
  chunks_ += chunks;
  ++pages_;
  AddTotals(0, account_->ChunksIn(old.frame) * int64_t{kChunkBytes});
}

bool RegionVersions::KeepsWith(const PageEntry& old, absl::FunctionRef<bool()> take) {
  bool keeps = false;
  UntilRoom([&](Version* newest) {
    if (old.mask == 0 || order_.PlaceOf(old.born) >= newest->place) return true;
    keeps = take();
    return keeps;
  });
  return keeps;
}

void RegionVersions::NoteGeneration(const PageIndex& head, uint64_t page) {
  const SpanGeneration old = head.GenerationOf(page);
  if (old == SpanGeneration{}) return;
  const uint16_t place = order_.PlaceOf(head.BirthOf(page));
  UntilRoom([&](Version* newest) {
    if (place >= newest->place) return true;
    // Newer ones that have lost their name may have a note that is older than this.
    for (auto it = versions_.rbegin(); it != versions_.rend(); ++it) {
      if ((*it)->delta.GenerationOf(page) != SpanGeneration{}) return true;
      if (it->get() == newest) break;
    }
    if (!newest->delta.PrepareSome(page, 0)) return false;
    newest->delta.SetGeneration(page, old);
    return true;
  });
}

void RegionVersions::UntilRoom(absl::FunctionRef<bool(Version* newest)> prepare) {
  for (int step = 0;; ++step) {
    Version* const newest = NewestNamed();
    if (newest == nullptr || prepare(newest)) return;
    if (step < kYieldStepsMax) {
      YieldStep();
    } else {
      for (const VersionPtr& version : versions_) {
        if (version->named) NoteYield(version->number);
      }
      Unlink(versions_.size());
      place_.WakeNow();
    }
  }
}

// --- Versions.

RegionVersions::Sealed RegionVersions::Seal(PageIndex* head, VersionNumber number, VersionKeep keep) {
  CHECK_LE(Raw(number), Raw(kVersionNumberMax));
  DCHECK(head->has_generations() || head->pages() == 0);
  RenumberStep(head);
  if (number != VersionNumber{} && number == highest_ && newest() == number) return Sealed::kOk;
  if (number <= highest_) return Sealed::kOld;
  if (versions_.size() >= limits_.versions) return Sealed::kTooMany;
  if (order_.is_full()) {
    if (order_.renumbers()) return Sealed::kBusy;
    std::vector<uint16_t> places;
    for (size_t i = 0; i < versions_.size(); ++i) {
      places.push_back(std::exchange(versions_[i]->place, static_cast<uint16_t>(i + 1)));
    }
    order_.BeginRenumbering(std::move(places));
    head->SetBirth(order_.birth());
    renumber_at_ = {};
    renumber_end_ = highest_;
    place_.WakeNow();
  }
  while (!account_->ChargeIndex(BytesOfVersion())) {
    if (!YieldStep()) return Sealed::kNoRoom;
  }
  highest_ = number;
  const uint64_t stamp = server_totals_ != nullptr ? server_totals_->seals.fetch_add(1) + 1 : 1;
  versions_.push_back(std::make_unique<Version>(number, order_.Seal(), keep, stamp, account_, pages_are_));
  AddTotals(1, static_cast<int64_t>(BytesOfVersion()));
  head->SetBirth(order_.birth());
  NoteAge();
  return Sealed::kOk;
}

RegionVersions::Dropped RegionVersions::Drop(VersionNumber first, VersionNumber last, bool force) {
  Dropped result;
  for (const VersionPtr& version : versions_) {
    if (!version->named || version->number < first || version->number > last) continue;
    if (!version->holds.empty() && !force) {
      ++result.held;
      version->ends = true;
      continue;
    }
    Unname(version.get());
    ++result.dropped;
  }
  NoteAge();
  if (has_work()) place_.WakeNow();
  return result;
}

bool RegionVersions::EndOwner(int64_t now_ns) {
  if (alone_since_ns_ == 0) alone_since_ns_ = now_ns;
  const int64_t alone_s = (now_ns - alone_since_ns_) / kNsPerSecond;
  const auto is_over = [&](VersionKeep keep) {
    return keep != VersionKeep::kUntilDropped && alone_s >= static_cast<int64_t>(keep);
  };
  bool stays = false;
  for (const VersionPtr& version : versions_) {
    if (!version->named) continue;
    if (is_over(version->keep) && version->holds.empty()) {
      Unname(version.get());
      place_.WakeNow();
      continue;
    }
    stays = true;
    // Those that are held wake the region when they are not held any more.
    if (version->keep == VersionKeep::kUntilDropped || !version->holds.empty()) continue;
    place_.Wake(alone_since_ns_ + static_cast<int64_t>(version->keep) * kNsPerSecond);
  }
  NoteAge();
  return stays;
}

RegionVersions::Held RegionVersions::Hold(VersionNumber version, LeaseId lease) {
  const size_t at = FindNamed(version);
  if (at == kNone) return Held::kUnknown;
  absl::btree_set<LeaseId>* const holds = &versions_[at]->holds;
  if (holds->contains(lease)) return Held::kOk;
  if (holds->size() >= limits_.holds) return Held::kTooMany;
  if (!account_->ChargeIndex(kHoldBytes)) return Held::kNoRoom;
  holds->insert(lease);
  NoteAge();
  return Held::kOk;
}

void RegionVersions::Release(VersionNumber version, LeaseId lease) {
  const size_t at = FindNamed(version);
  if (at != kNone) ReleaseOne(versions_[at].get(), lease);
}

void RegionVersions::ReleaseAll(LeaseId lease) {
  for (const VersionPtr& version : versions_) ReleaseOne(version.get(), lease);
}

void RegionVersions::ReleaseOne(Version* version, LeaseId lease) {
  if (version->holds.erase(lease) == 0) return;
  account_->ReleaseIndex(kHoldBytes);
  if (!version->holds.empty()) return;
  if (version->ends) Unname(version);
  NoteAge();
  place_.WakeNow();
}

bool RegionVersions::Holds(LeaseId lease) const {
  return std::any_of(versions_.begin(), versions_.end(),
                     [&](const VersionPtr& version) { return version->holds.contains(lease); });
}

std::vector<StoredVersion> RegionVersions::List() const {
  std::vector<StoredVersion> list;
  for (const VersionPtr& version : versions_) {
    if (!version->named) continue;
    list.push_back({version->number, version->keep, version->holds.size(), version->delta.pages(), version->chunks});
  }
  return list;
}

// --- Freeing.

void RegionVersions::Free(Version* version, const PageEntry& entry) {
  AddTotals(0, -account_->ChunksIn(entry.frame) * int64_t{kChunkBytes});
  account_->Free(entry.frame);
  const int chunks = std::popcount(entry.mask);
  version->chunks -= chunks;
  chunks_ -= chunks;
  --pages_;
}

void RegionVersions::Unlink(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Unname(versions_[i].get());
    versions_[i]->delta.ForgetGenerations();
    unlinked_.push_back(std::move(versions_[i]));
  }
  versions_.erase(versions_.begin(), versions_.begin() + static_cast<ptrdiff_t>(count));
  nameless_ -= count;
  NoteAge();
}

void RegionVersions::UnlinkOldestNamed() {
  // The next one with a name does not see the pages of nameless ones behind this one: they were to be merged into this
  // one.
  size_t count = 0;
  bool has_named = false;
  for (; count < versions_.size(); ++count) {
    if (!versions_[count]->named) continue;
    if (has_named) break;
    has_named = true;
    NoteYield(versions_[count]->number);
  }
  Unlink(count);
}

std::optional<uint64_t> RegionVersions::StampToYield(bool held) const {
  if (!unlinked_.empty()) return 0;
  if (versions_.empty()) return std::nullopt;
  const Version& oldest = *versions_.front();
  if (!oldest.named) return 0;
  if (!held && !oldest.holds.empty()) return std::nullopt;
  return oldest.stamp;
}

bool RegionVersions::YieldStep(bool held) {
  if (!StampToYield(held).has_value()) return false;
  if (unlinked_.empty() && !versions_.front()->named) {
    Unlink(1);  // no reader sees its pages
  } else if (unlinked_.empty()) {
    UnlinkOldestNamed();
  }
  FreeStep(kSpansPerYield);
  place_.WakeNow();  // work may be left, or nothing at all
  return true;
}

bool RegionVersions::FreeAll() {
  Unlink(versions_.size());
  return FreeStep(kSpansPerStep);
}

bool RegionVersions::FreeStep(uint64_t spans_max) {
  if (unlinked_.empty()) return true;
  Version* const version = unlinked_.back().get();
  const uint64_t next = version->delta.Visit(0, kPagesEnd, spans_max, [&](uint64_t, PageEntry* entry) {
    Free(version, *entry);
    entry->mask = 0;
  });
  if (next < kPagesEnd) return false;
  unlinked_.pop_back();
  NoteAge();
  account_->ReleaseIndex(BytesOfVersion());
  AddTotals(0, -static_cast<int64_t>(BytesOfVersion()));
  return unlinked_.empty();
}

bool RegionVersions::Step(PageIndex* head) {
  if (!FreeStep(kSpansPerStep)) return false;
  return MergeStep(*head) && RenumberStep(head);
}

bool RegionVersions::MergeStep(const PageIndex& head) {
  size_t at = 0;
  while (at < versions_.size() && versions_[at]->named) ++at;
  if (at == versions_.size()) return true;
  if (at == 0) {
    Unlink(1);
    return false;
  }
  Version* const from = versions_[at].get();
  Version* const to = versions_[at - 1].get();
  for (uint64_t spans = 0; spans < kSpansPerStep; ++spans) {
    const uint64_t span = from->delta.NextSpan(0);
    if (span == PageIndex::kNoSpan) {
      versions_.erase(versions_.begin() + static_cast<ptrdiff_t>(at));
      --nameless_;
      account_->ReleaseIndex(BytesOfVersion());
      AddTotals(0, -static_cast<int64_t>(BytesOfVersion()));
      return false;
    }
    const uint64_t page = span * kPagesPerSpan;
    if (!MergeNote(head, from, to, page)) return true;
    for (uint64_t block = 0; block < kPagesPerSpan; block += 64) {
      if (!MergeBlock(from, to, page + block)) return true;
    }
    from->delta.DropIfEmpty(page);
  }
  return false;
}

bool RegionVersions::MergeNote(const PageIndex& head, Version* from, Version* to, uint64_t page) {
  const SpanGeneration noted = from->delta.GenerationOf(page);
  if (noted == SpanGeneration{}) return true;
  const bool is_seen = order_.PlaceOf(head.BirthOf(page)) < to->place;
  if (is_seen && to->delta.GenerationOf(page) == SpanGeneration{}) {
    if (!to->delta.PrepareSome(page, 0)) return false;
    to->delta.SetGeneration(page, noted);
  }
  from->delta.SetGeneration(page, SpanGeneration{});
  return true;
}

bool RegionVersions::MergeBlock(Version* from, Version* to, uint64_t first_page) {
  std::array<PageEntry, 64> entries;
  std::array<PageSeal, 64> seals;
  uint64_t missing = ~uint64_t{0};
  from->delta.FindSome(first_page, &missing, entries.data(), seals.data());
  if (missing == ~uint64_t{0}) return true;
  uint64_t kept = 0;
  for (uint64_t rest = ~missing; rest != 0; rest &= rest - 1) {
    const int i = std::countr_zero(rest);
    if (order_.PlaceOf(entries[i].born) < to->place) kept |= uint64_t{1} << i;
  }
  if (kept != 0 && !to->delta.PrepareSome(first_page, kept)) return false;
  from->delta.Visit(first_page, first_page + 64, 1, [&](uint64_t page, PageEntry* entry) {
    const uint64_t i = page - first_page;
    if ((kept >> i & 1) != 0) {
      CHECK_EQ(to->delta.Find(page).mask, 0);
      PageEntry moved = *entry;
      moved.born = order_.Renewed(entry->born);
      to->delta.Set(page, moved, to->delta.sealed() ? &seals[i] : nullptr);
      const int chunks = std::popcount(entry->mask);
      from->chunks -= chunks;
      to->chunks += chunks;
    } else {
      Free(from, *entry);
    }
    entry->mask = 0;
  });
  return true;
}

// --- Walks.

bool RegionVersions::RenumberStep(PageIndex* head) {
  if (!order_.renumbers()) return true;
  const auto renew = [&](uint16_t born) { return order_.Renewed(born); };
  for (const VersionPtr& version : versions_) {
    if (version->number < renumber_at_.number || version->number > renumber_end_) continue;
    const uint64_t page = version->number == renumber_at_.number ? renumber_at_.page : 0;
    const uint64_t next = version->delta.ChangeBirths(page, kSpansPerStep, renew);
    renumber_at_ = {version->number, next};
    if (next == PageIndex::kNoPage) renumber_at_ = {VersionNumber{Raw(version->number) + 1}, 0};
    return false;
  }
  if (renumber_at_.number <= renumber_end_) renumber_at_ = {VersionNumber{Raw(renumber_end_) + 1}, 0};
  renumber_at_.page = head->ChangeBirths(renumber_at_.page, kSpansPerStep, renew);
  if (renumber_at_.page != PageIndex::kNoPage) return false;
  order_.EndRenumbering();
  return true;
}

bool RegionVersions::MoveFrames(DeltaCursor* cursor, uint64_t* looks_left,
                                absl::FunctionRef<FrameLoc(FrameLoc frame, ChunkMask mask)> move) {
  for (const VersionPtr& version : versions_) {
    if (version->number < cursor->number) continue;
    const uint64_t page = version->number == cursor->number ? cursor->page : 0;
    *cursor = {version->number, page};
    if (*looks_left == 0) return false;
    --*looks_left;
    const uint64_t next = version->delta.MoveFrames(page, looks_left, move);
    if (next == PageIndex::kNoPage) continue;
    cursor->page = next;
    return false;
  }
  return true;
}

}  // namespace nram
