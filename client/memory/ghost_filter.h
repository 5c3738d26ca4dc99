#ifndef NRAM_CLIENT_MEMORY_GHOST_FILTER_H_
#define NRAM_CLIENT_MEMORY_GHOST_FILTER_H_

#include <glog/logging.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/mapping.h"
#include "base/units.h"

namespace nram {

// Remembers, roughly, the last pages that were noted. Two bit tables take `generation` notes in turn, so that it knows
// the last `generation` to 2 x `generation` pages. For a page that was not noted it says yes in about one case of
// eight; for a page that was noted it never says no, unless the generation has changed since. The idea of ghost entries
// is 2Q's (Johnson and Shasha, VLDB 1994). Both tables together take two bytes for each page of a generation.
// Thread-safe, without locks.
class GhostFilter {
 public:
  // `most`: the longest generation there may ever be.
  GhostFilter(uint64_t generation, uint64_t most) : stride_(RoundUp(WordsFor(most), kPageBytes / sizeof(uint64_t))) {
    auto memory = Mapping::Untouched(2 * stride_ * sizeof(uint64_t));
    CHECK(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    tables_ = reinterpret_cast<std::atomic<uint64_t>*>(memory_.data());
    Resize(generation);
  }
  GhostFilter(const GhostFilter&) = delete;
  GhostFilter& operator=(const GhostFilter&) = delete;

  // Forgets most pages.
  void Resize(uint64_t generation) {
    const size_t words = WordsFor(generation);
    generation_.store(generation, std::memory_order_relaxed);
    words_.store(words, std::memory_order_relaxed);
    noted_.store(0, std::memory_order_relaxed);
    const size_t used = RoundUp(words, kPageBytes / sizeof(uint64_t));
    if (used == stride_) return;
    // A thread that has loaded the former size may still write there: that sets one bit too many.
    for (size_t table = 0; table < 2; ++table) {
      madvise(tables_ + table * stride_ + used, (stride_ - used) * sizeof(uint64_t), MADV_DONTNEED);
    }
  }
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  void Note(uintptr_t page) {
    const uint64_t generation = generation_.load(std::memory_order_relaxed);
    const size_t words = words_.load(std::memory_order_relaxed);
    const uint64_t count = noted_.fetch_add(1, std::memory_order_relaxed);
    std::atomic<uint64_t>* const table = tables_ + count / generation % 2 * stride_;
    if (count % generation == 0) {
      for (size_t i = 0; i < words; ++i) table[i].store(0, std::memory_order_relaxed);
    }
    const uint64_t bit = BitOf(page, words);
    table[bit / 64].fetch_or(uint64_t{1} << (bit % 64), std::memory_order_relaxed);
  }
  bool Knows(uintptr_t page) const {
    const uint64_t bit = BitOf(page, words_.load(std::memory_order_relaxed));
    const uint64_t mask = uint64_t{1} << (bit % 64);
    return ((tables_[bit / 64].load(std::memory_order_relaxed) |
             tables_[stride_ + bit / 64].load(std::memory_order_relaxed)) &
            mask) != 0;
  }
  size_t memory_bytes() const { return 2 * words_.load(std::memory_order_relaxed) * sizeof(uint64_t); }

 private:
  // A byte for each page in each table.
  static size_t WordsFor(uint64_t generation) { return static_cast<size_t>(generation * 8 / 64 + 1); }
  static uint64_t BitOf(uintptr_t page, size_t words) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(page / 4096 * 0x9E3779B97F4A7C15) * (words * 64)) >>
                                 64);
  }

  const size_t stride_;  // words from table to table
  Mapping memory_;
  std::atomic<uint64_t>* tables_ = nullptr;  // zeros, taken as they are used
  std::atomic<uint64_t> generation_{1};
  std::atomic<size_t> words_{1};
  std::atomic<uint64_t> noted_{0};
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_GHOST_FILTER_H_
