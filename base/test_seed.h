#ifndef NRAM_BASE_TEST_SEED_H_
#define NRAM_BASE_TEST_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace nram {

// The seed of a random test: $NRAM_SEED if set (replay a failure with `--test_env=NRAM_SEED=...`, or `--seed=` where a
// test has its own main), else a fresh one. Printed either way.
inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("NRAM_SEED");
    const uint64_t chosen = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    std::cerr << "seed " << chosen << " (replay: NRAM_SEED=" << chosen << ")" << std::endl;
    return chosen;
  }();
  return seed;
}

}  // namespace nram

#endif  // NRAM_BASE_TEST_SEED_H_
