#ifndef NRAM_TESTS_MEMORY_CPP_FACE_UTIL_H_
#define NRAM_TESTS_MEMORY_CPP_FACE_UTIL_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "client/memory/nram.hpp"
#include "tests/util/test_pool.h"

namespace nram {

// The smallest budget allowed.
inline constexpr uint64_t kBudget = 4 * kMiB;

inline std::string PoolText(const TestPool& servers) {
  std::string text;
  for (const auto& server : servers.Options().servers) {
    absl::StrAppend(&text, text.empty() ? "" : ",", server.ToString());
  }
  return text;
}

inline memory::Memory Open(const TestPool& servers) {
  nram_options options = memory::DefaultOptions();
  options.budget_bytes = kBudget;
  return memory::Memory(PoolText(servers).c_str(), options);
}

}  // namespace nram

#endif  // NRAM_TESTS_MEMORY_CPP_FACE_UTIL_H_
