#include "client/run/range_map.h"

#include <glog/logging.h>

#include <algorithm>

namespace nram {

void RangeMap::Add(const HomeRange& range) {
  if (range.pages == 0) return;
  CHECK(!Overlaps(range.begin, range.end()));
  HomeRange whole = range;
  // Neighbours in both become one: a heap that grows by small steps remains one range.
  if (const auto after = by_begin_.find(range.end());
      after != by_begin_.end() && after->second.home == range.home + range.pages) {
    whole.pages += after->second.pages;
    by_home_.erase(after->second.home);
    by_begin_.erase(after);
  }
  auto before = by_begin_.lower_bound(range.begin);
  if (before != by_begin_.begin()) {
    --before;
    if (before->second.end() == whole.begin && before->second.home + before->second.pages == whole.home) {
      before->second.pages += whole.pages;
      pages_ += range.pages;
      return;
    }
  }
  by_begin_[whole.begin] = whole;
  CHECK(by_home_.emplace(whole.home, whole.begin).second);
  pages_ += range.pages;
}

std::vector<HomeRange> RangeMap::Within(uint64_t begin, uint64_t end) const {
  std::vector<HomeRange> found;
  auto at = by_begin_.upper_bound(begin);
  if (at != by_begin_.begin()) --at;
  for (; at != by_begin_.end() && at->first < end; ++at) {
    HomeRange cut = at->second;
    if (cut.end() <= begin) continue;
    if (cut.begin < begin) {
      const uint64_t skip = (begin - cut.begin) / kPageBytes;
      cut = {begin, cut.pages - skip, cut.home + skip};
    }
    if (cut.end() > end) cut.pages = (end - cut.begin) / kPageBytes;
    found.push_back(cut);
  }
  return found;
}

bool RangeMap::Overlaps(uint64_t begin, uint64_t end) const {
  auto at = by_begin_.lower_bound(end);
  return at != by_begin_.begin() && (--at)->second.end() > begin;
}

std::vector<HomeRange> RangeMap::Remove(uint64_t begin, uint64_t end) {
  const std::vector<HomeRange> found = Within(begin, end);
  for (const HomeRange& cut : found) {
    auto at = std::prev(by_begin_.upper_bound(cut.begin));
    const HomeRange whole = at->second;
    by_home_.erase(whole.home);
    by_begin_.erase(at);
    pages_ -= cut.pages;
    const auto keep = [this](const HomeRange& rest) {
      if (rest.pages == 0) return;
      by_begin_[rest.begin] = rest;
      by_home_[rest.home] = rest.begin;
    };
    const uint64_t head = (cut.begin - whole.begin) / kPageBytes;
    keep({whole.begin, head, whole.home});
    keep({cut.end(), whole.pages - head - cut.pages, cut.home + cut.pages});
  }
  return found;
}

std::optional<uint64_t> RangeMap::HomeOf(uint64_t address) const {
  auto at = by_begin_.upper_bound(address);
  if (at == by_begin_.begin()) return std::nullopt;
  const HomeRange& range = (--at)->second;
  if (address >= range.end()) return std::nullopt;
  return range.home + (address - range.begin) / kPageBytes;
}

std::optional<uint64_t> RangeMap::AddressOf(uint64_t home) const {
  auto at = by_home_.upper_bound(home);
  if (at == by_home_.begin()) return std::nullopt;
  const HomeRange& range = by_begin_.at((--at)->second);
  if (home - range.home >= range.pages) return std::nullopt;
  return range.begin + (home - range.home) * kPageBytes;
}

uint64_t RangeMap::RunFrom(uint64_t home) const {
  auto at = by_home_.upper_bound(home);
  if (at == by_home_.begin()) return 0;
  const HomeRange& range = by_begin_.at((--at)->second);
  return home - range.home >= range.pages ? 0 : range.home + range.pages - home;
}

uint64_t RangeMap::RunTo(uint64_t home) const {
  auto at = by_home_.upper_bound(home);
  if (at == by_home_.begin()) return 0;
  const HomeRange& range = by_begin_.at((--at)->second);
  return home - range.home >= range.pages ? 0 : home - range.home + 1;
}

}  // namespace nram
