#ifndef NRAM_TESTS_UTIL_PATTERN_H_
#define NRAM_TESTS_UTIL_PATTERN_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

namespace nram {

// Words, none of them zero, the same for the same seed.
inline std::string Pattern(size_t bytes, uint64_t seed) {
  std::string data(bytes, '\0');
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random() | 1;
    memcpy(&data[i], &word, 8);
  }
  return data;
}

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_PATTERN_H_
