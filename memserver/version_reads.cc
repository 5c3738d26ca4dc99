// Reading of versions: the former state of a page or a span, and the changes.

#include <glog/logging.h>

#include <algorithm>
#include <bit>

#include "memserver/region_versions.h"

namespace nram {

void RegionVersions::FindFrom(size_t at, const PageIndex& head, uint64_t first_page, uint64_t* wanted,
                              PageEntry* entries, PageSeal* seals) const {
  for (; at < versions_.size() && *wanted != 0; ++at) versions_[at]->delta.FindSome(first_page, wanted, entries, seals);
  if (*wanted != 0) head.FindSome(first_page, wanted, entries, seals);
}

bool RegionVersions::Resolve(VersionNumber version, const PageIndex& head, uint64_t first_page, uint64_t pages,
                             PageEntry* entries, PageSeal* seals) const {
  DCHECK_LE(pages, 64);
  const size_t at = FindNamed(version);
  if (at == kNone) return false;
  std::fill_n(entries, pages, PageEntry());
  if (seals != nullptr) std::fill_n(seals, pages, PageSeal());
  for (uint64_t done = 0; done < pages;) {
    const uint64_t page = first_page + done;
    const uint64_t in_span = std::min(pages - done, kPagesPerSpan - page % kPagesPerSpan);
    uint64_t wanted = ~uint64_t{0} >> (64 - in_span);
    FindFrom(at, head, page, &wanted, entries + done, seals != nullptr ? seals + done : nullptr);
    done += in_span;
  }
  for (uint64_t i = 0; i < pages; ++i) {
    if (entries[i].mask == 0 || order_.PlaceOf(entries[i].born) < versions_[at]->place) continue;
    entries[i] = {};
    if (seals != nullptr) seals[i] = {};
  }
  return true;
}

SpanGeneration RegionVersions::GenerationFrom(size_t at, const PageIndex& head, uint64_t page) const {
  if (order_.PlaceOf(head.BirthOf(page)) >= versions_[at]->place) return SpanGeneration{};
  for (; at < versions_.size(); ++at) {
    const SpanGeneration noted = versions_[at]->delta.GenerationOf(page);
    if (noted != SpanGeneration{}) return noted;
  }
  return head.GenerationOf(page);
}

std::optional<SpanGeneration> RegionVersions::GenerationAt(VersionNumber version, const PageIndex& head,
                                                           uint64_t page) const {
  const size_t at = FindNamed(version);
  if (at == kNone) return std::nullopt;
  return GenerationFrom(at, head, page);
}

uint64_t RegionVersions::VisitSpans(VersionNumber version, const PageIndex& head, uint64_t from_span,
                                    uint64_t* looks_left,
                                    absl::FunctionRef<void(uint64_t span, SpanGeneration generation)> visit) const {
  const size_t at = FindNamed(version);
  CHECK(at != kNone);
  const uint64_t looks = versions_.size() - at + 1;
  uint64_t next = PageIndex::kNoSpan;
  bool is_first = true;
  head.VisitSpans(from_span, [&](uint64_t span, SpanGeneration) {
    if (!is_first && *looks_left < looks) {
      next = span;
      return false;
    }
    is_first = false;
    *looks_left -= std::min(*looks_left, looks);
    const SpanGeneration generation = GenerationFrom(at, head, span * kPagesPerSpan);
    if (generation != SpanGeneration{}) visit(span, generation);
    return true;
  });
  return next;
}

uint64_t RegionVersions::VisitChanges(
    VersionNumber from, VersionNumber to, const PageIndex& head, uint64_t from_span, uint64_t* looks_left,
    absl::FunctionRef<void(uint64_t span, const PageIndex::SpanPages& pages)> visit) const {
  const size_t from_at = FindNamed(from);
  const size_t to_at = FindNamed(to);
  CHECK(from_at != kNone && to_at != kNone && from_at <= to_at);
  const uint16_t from_place = versions_[from_at]->place;
  const uint16_t to_place = versions_[to_at]->place;
  const uint64_t looks = versions_.size() - from_at + 1;
  uint64_t next = PageIndex::kNoSpan;
  bool is_first = true;
  head.VisitSpans(from_span, [&](uint64_t span, SpanGeneration) {
    if (!is_first && *looks_left < looks) {
      next = span;
      return false;
    }
    is_first = false;
    *looks_left -= std::min(*looks_left, looks);
    // Pages that were displaced between the two, and pages of `to` that were born between them.
    PageIndex::SpanPages changed{};
    for (size_t at = from_at; at < to_at; ++at) {
      const PageIndex::SpanPages displaced = versions_[at]->delta.PagesOf(span);
      for (size_t i = 0; i < changed.size(); ++i) changed[i] |= displaced[i];
    }
    for (size_t block = 0; block < changed.size(); ++block) {
      PageEntry entries[64];
      const uint64_t asked = ~changed[block];
      uint64_t missing = asked;
      FindFrom(to_at, head, span * kPagesPerSpan + block * 64, &missing, entries, nullptr);
      for (uint64_t rest = asked & ~missing; rest != 0; rest &= rest - 1) {
        const int i = std::countr_zero(rest);
        const uint16_t place = order_.PlaceOf(entries[i].born);
        if (place >= from_place && place < to_place) changed[block] |= uint64_t{1} << i;
      }
    }
    if (changed != PageIndex::SpanPages{}) visit(span, changed);
    return true;
  });
  return next;
}

}  // namespace nram
