#ifndef NRAM_SORT_COMPARE_TEXT_H_
#define NRAM_SORT_COMPARE_TEXT_H_

// The order of two texts, as sort(1) has it in the C locale. Pure functions.

#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace nram {

// How the text of a key is compared.
struct KeyHow {
  enum class Kind : uint8_t { kText, kNumeric, kGeneral, kHuman, kMonth, kVersion };
  // Characters that do not count.
  enum class Ignore : uint8_t { kNothing, kUnprintable, kNoDictionary };
  Kind kind = Kind::kText;
  Ignore ignore = Ignore::kNothing;
  bool fold = false;
  bool reverse = false;
};

// Below zero if `a` comes before `b`, zero if they are equal, else above zero. `how.reverse` is the caller's.
int CompareTexts(const KeyHow& how, absl::string_view a, absl::string_view b);

// Eight bytes that decide most comparisons: PrefixOf(how, a) < PrefixOf(how, b) means that a comes before b.
uint64_t PrefixOf(const KeyHow& how, absl::string_view text);

// The same for bytes as they are.
inline uint64_t LeadingBytes(absl::string_view text) {
  uint64_t word = 0;
  if (text.size() >= 8) {
    std::memcpy(&word, text.data(), 8);
  } else {
    std::memcpy(&word, text.data(), text.size());
  }
  return __builtin_bswap64(word);
}
inline int CompareBytes(absl::string_view a, absl::string_view b) {
  const size_t common = a.size() < b.size() ? a.size() : b.size();
  if (const int order = std::memcmp(a.data(), b.data(), common); order != 0) return order;
  return a.size() < b.size() ? -1 : a.size() > b.size();
}

}  // namespace nram

#endif  // NRAM_SORT_COMPARE_TEXT_H_
