#ifndef NRAM_CLIENT_RUN_RANGE_MAP_H_
#define NRAM_CLIENT_RUN_RANGE_MAP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/units.h"

namespace nram {

// Pages at [begin, begin + pages * 4096) whose homes are [home, home + pages). A home is a page's number in the pool,
// and does not change when the program moves the page.
struct HomeRange {
  uint64_t begin = 0;
  uint64_t pages = 0;
  uint64_t home = 0;

  uint64_t end() const { return begin + pages * kPageBytes; }
  friend bool operator==(const HomeRange&, const HomeRange&) = default;
};

// Which addresses of a program have which homes. Parts can be taken out and put in elsewhere. Not thread-safe.
class RangeMap {
 public:
  // Neither the addresses nor the homes may be there.
  void Add(const HomeRange& range);
  // Takes [begin, end) out and returns its former ranges, by address.
  std::vector<HomeRange> Remove(uint64_t begin, uint64_t end);
  // The ranges in [begin, end), cut to it.
  std::vector<HomeRange> Within(uint64_t begin, uint64_t end) const;
  bool Overlaps(uint64_t begin, uint64_t end) const;

  std::optional<uint64_t> HomeOf(uint64_t address) const;
  std::optional<uint64_t> AddressOf(uint64_t home) const;
  // How many pages follow `home`, itself included, whose addresses follow, too; 0 if it has no address.
  uint64_t RunFrom(uint64_t home) const;
  // How many end with `home`, itself included; 0 as above.
  uint64_t RunTo(uint64_t home) const;
  uint64_t pages() const { return pages_; }

 private:
  std::map<uint64_t, HomeRange> by_begin_;
  std::map<uint64_t, uint64_t> by_home_;  // the first home of a range, and its begin
  uint64_t pages_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_RANGE_MAP_H_
