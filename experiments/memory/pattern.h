#ifndef NRAM_EXPERIMENTS_MEMORY_PATTERN_H_
#define NRAM_EXPERIMENTS_MEMORY_PATTERN_H_

// The contents of pages, such that every word can be checked without a copy of it.

#include <cstdint>

#include "base/units.h"

namespace nram {

inline constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);

inline uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// The value of word `word` of page `page` after `generation` writes. It is not zero, but by chance: a page of zeros is
// noticed.
inline uint64_t PageWord(uint64_t seed, uint64_t page, uint64_t word, uint64_t generation) {
  return Mix(Mix(seed) ^ page << 12 ^ generation) + (word + 1) * 0x9E3779B97F4A7C15u;
}

inline void FillPages(uint64_t* words, uint64_t pages, uint64_t seed) {
  for (uint64_t page = 0; page < pages; ++page) {
    const uint64_t first = PageWord(seed, page, 0, 0);
    uint64_t* at = words + page * kWordsPerPage;
    for (uint64_t i = 0; i < kWordsPerPage; ++i) at[i] = first + i * 0x9E3779B97F4A7C15u;
  }
}

}  // namespace nram

#endif  // NRAM_EXPERIMENTS_MEMORY_PATTERN_H_
