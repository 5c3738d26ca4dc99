#ifndef NRAM_CLIENT_MEMORY_GHOST_FILTER_H_
#define NRAM_CLIENT_MEMORY_GHOST_FILTER_H_

#include <glog/logging.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace nram {

// Remembers, roughly, the last pages that were noted. Two bit tables take `generation` notes in turn, so that it knows
// the last `generation` to 2 x `generation` pages. For a page that was not noted it says yes in about one case of
// eight; for a page that was noted it never says no. The idea of ghost entries is 2Q's (Johnson and Shasha, VLDB 1994).
// Both tables together take a byte for each page of a generation. Thread-safe, without locks.
class GhostFilter {
 public:
  explicit GhostFilter(uint64_t generation)
      : generation_(generation),
        words_(WordsFor(generation)),
        tables_(static_cast<std::atomic<uint64_t>*>(calloc(2 * words_, sizeof(uint64_t)))) {
    CHECK(tables_ != nullptr) << "no memory for " << 2 * words_ * sizeof(uint64_t) << " bytes";
  }
  ~GhostFilter() { free(tables_); }
  GhostFilter(const GhostFilter&) = delete;
  GhostFilter& operator=(const GhostFilter&) = delete;

  void Note(uintptr_t page) {
    const uint64_t count = noted_.fetch_add(1, std::memory_order_relaxed);
    const uint64_t table = count / generation_ % 2;
    if (count % generation_ == 0) {
      for (size_t i = 0; i < words_; ++i) tables_[table * words_ + i].store(0, std::memory_order_relaxed);
    }
    const uint64_t bit = BitOf(page);
    tables_[table * words_ + bit / 64].fetch_or(uint64_t{1} << (bit % 64), std::memory_order_relaxed);
  }
  bool Knows(uintptr_t page) const {
    const uint64_t bit = BitOf(page);
    const uint64_t mask = uint64_t{1} << (bit % 64);
    return ((tables_[bit / 64].load(std::memory_order_relaxed) |
             tables_[words_ + bit / 64].load(std::memory_order_relaxed)) &
            mask) != 0;
  }
  size_t memory_bytes() const { return 2 * words_ * sizeof(uint64_t); }

 private:
  // A byte a page a table.
  static size_t WordsFor(uint64_t generation) { return static_cast<size_t>(generation * 8 / 64 + 1); }
  uint64_t BitOf(uintptr_t page) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(page / 4096 * 0x9E3779B97F4A7C15) * (words_ * 64)) >>
                                 64);
  }

  const uint64_t generation_;
  const size_t words_;
  std::atomic<uint64_t>* const tables_;  // zeros, taken as they are used
  std::atomic<uint64_t> noted_{0};
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_GHOST_FILTER_H_
