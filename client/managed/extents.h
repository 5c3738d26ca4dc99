#ifndef NRAM_CLIENT_MANAGED_EXTENTS_H_
#define NRAM_CLIENT_MANAGED_EXTENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace nram {

// Free ranges of a line of numbers: offsets of a region, or addresses. The smallest that fits is taken, the lowest of
// those. Not thread-safe; pure.
class Extents {
 public:
  // The range becomes free. It must not overlap another free one; neighbours become one.
  void Give(uint64_t begin, uint64_t length) {
    if (length == 0) return;
    auto after = free_.lower_bound(begin);
    if (after != free_.begin()) {
      if (const auto before = std::prev(after); before->first + before->second == begin) {
        begin = before->first;
        length += before->second;
        Erase(before);
      }
    }
    if (after != free_.end() && begin + length == after->first) {
      length += after->second;
      Erase(after);
    }
    Insert(begin, length);
  }

  // Takes `length` of the free space. Its offset; nothing if no free range is that long.
  std::optional<uint64_t> Take(uint64_t length) {
    const auto found = by_length_.lower_bound({length, 0});
    if (found == by_length_.end()) return std::nullopt;
    const auto [whole, begin] = *found;
    Erase(free_.find(begin));
    if (whole > length) Insert(begin + length, whole - length);
    return begin;
  }

  // The end of the shortest free range, up to `most` bytes, is taken. Some must be free.
  struct Range {
    uint64_t begin = 0;
    uint64_t length = 0;
  };
  Range TakeOfShortest(uint64_t most) {
    const auto [length, begin] = *by_length_.begin();
    const uint64_t taken = std::min(length, most);
    Erase(free_.find(begin));
    if (length > taken) Insert(begin, length - taken);
    return {begin + length - taken, taken};
  }

  // Of the longest free range; 0: nothing is free.
  uint64_t longest() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  uint64_t free() const { return sum_; }
  size_t count() const { return free_.size(); }

 private:
  void Insert(uint64_t begin, uint64_t length) {
    free_.emplace(begin, length);
    by_length_.emplace(length, begin);
    sum_ += length;
  }
  void Erase(std::map<uint64_t, uint64_t>::iterator at) {
    by_length_.erase({at->second, at->first});
    sum_ -= at->second;
    free_.erase(at);
  }

  std::map<uint64_t, uint64_t> free_;                  // by begin
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // length, begin
  uint64_t sum_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_EXTENTS_H_
