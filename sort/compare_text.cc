#include "sort/compare_text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>

namespace nram {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n'; }
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// A decimal number as its digits: sign, the integer part without leading zeros, the fraction without trailing ones.
struct Number {
  bool negative = false;
  absl::string_view integer, fraction;
};

Number ParseNumber(absl::string_view text) {
  Number number;
  size_t at = 0;
  while (at < text.size() && IsBlank(text[at])) ++at;
  if (at < text.size() && text[at] == '-') {
    number.negative = true;
    ++at;
  }
  const auto digits = [&] {
    const size_t from = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return text.substr(from, at - from);
  };
  number.integer = digits();
  if (at < text.size() && text[at] == '.') {
    ++at;
    number.fraction = digits();
  }
  while (!number.integer.empty() && number.integer.front() == '0') number.integer.remove_prefix(1);
  while (!number.fraction.empty() && number.fraction.back() == '0') number.fraction.remove_suffix(1);
  if (number.integer.empty() && number.fraction.empty()) number.negative = false;
  return number;
}

int CompareText(absl::string_view a, absl::string_view b) {
  const int order = a.compare(b);
  return order < 0 ? -1 : order > 0;
}

int CompareNumbers(const Number& a, const Number& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = 0;
  if (a.integer.size() != b.integer.size()) {
    order = a.integer.size() < b.integer.size() ? -1 : 1;
  } else {
    order = CompareText(a.integer, b.integer);
    if (order == 0) order = CompareText(a.fraction, b.fraction);
  }
  return a.negative ? -order : order;
}

// Rises with the number: its sign, how many digits it has before the point, and its first fourteen digits.
uint64_t NumberPrefix(const Number& number) {
  constexpr int kDigits = 14;
  constexpr int kMantissaBits = 47;  // 10^14 < 2^47
  uint64_t mantissa = 0;
  for (int i = 0; i < kDigits; ++i) {
    const size_t at = static_cast<size_t>(i);
    char digit = '0';
    if (at < number.integer.size()) {
      digit = number.integer[at];
    } else if (at - number.integer.size() < number.fraction.size()) {
      digit = number.fraction[at - number.integer.size()];
    }
    mantissa = mantissa * 10 + static_cast<uint64_t>(digit - '0');
  }
  const uint64_t exponent = std::min<uint64_t>(number.integer.size(), 0x3FFF);
  // All numbers that are too long for the exponent share a prefix.
  if (exponent == 0x3FFF) mantissa = 0;
  const uint64_t magnitude = exponent << kMantissaBits | mantissa;
  constexpr uint64_t kZero = uint64_t{1} << 63;
  return number.negative ? kZero - 1 - magnitude : kZero + magnitude;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool Counts(KeyHow::Ignore ignore, char c) {
  switch (ignore) {
    case KeyHow::Ignore::kNothing:
      return true;
    case KeyHow::Ignore::kUnprintable:
      return c >= ' ' && c <= '~';
    case KeyHow::Ignore::kNoDictionary:
      return IsBlank(c) || IsDigit(c) || IsLetter(c);
  }
  return true;
}

absl::string_view WithoutBlanks(absl::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  return text;
}

// 1 to 12; 0: no month.
int MonthOf(absl::string_view text) {
  static constexpr absl::string_view kMonths = "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC";
  text = WithoutBlanks(text);
  if (text.size() < 3) return 0;
  const std::array<char, 3> name = {Upper(text[0]), Upper(text[1]), Upper(text[2])};
  for (size_t month = 0; month < 12; ++month) {
    if (kMonths.substr(3 * month, 3) == absl::string_view(name.data(), 3)) return static_cast<int>(month) + 1;
  }
  return 0;
}

// The unit behind a number: 1 for K, 2 for M, and so on; below zero for negative numbers; 0: no unit, or the number 0.
int UnitOf(absl::string_view text, bool fold) {
  static constexpr absl::string_view kUnits = "KMGTPEZYRQ";
  size_t at = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) ++at;
  bool is_zero = true;
  const auto skip_digits = [&] {
    for (; at < text.size() && IsDigit(text[at]); ++at) is_zero &= text[at] == '0';
  };
  skip_digits();
  if (at < text.size() && text[at] == '.') {
    ++at;
    skip_digits();
  }
  if (is_zero || at == text.size()) return 0;
  const char unit = fold || text[at] == 'k' ? Upper(text[at]) : text[at];
  const size_t found = kUnits.find(unit);
  const int order = found == absl::string_view::npos ? 0 : static_cast<int>(found) + 1;
  return negative ? -order : order;
}

// A number as strtold(3) reads it. They have an order: texts without a number, then NaNs, then numbers.
struct General {
  int rank = 0;  // 0: no number; 1: NaN; 2: a number
  long double value = 0;
};

General ParseGeneral(absl::string_view text) {
  const std::string ended(text);
  char* end = nullptr;
  General number;
  number.value = strtold(ended.c_str(), &end);
  if (end != ended.c_str()) number.rank = std::isnan(number.value) ? 1 : 2;
  return number;
}

int CompareGeneral(const General& a, const General& b) {
  if (a.rank != b.rank) return a.rank < b.rank ? -1 : 1;
  if (a.rank == 0) return 0;
  if (a.rank == 2) return a.value < b.value ? -1 : a.value > b.value;
  // NaNs by their sign bit, as in coreutils 9.1.
  return static_cast<int>(std::signbit(a.value)) - static_cast<int>(std::signbit(b.value));
}

uint64_t GeneralPrefix(const General& number) {
  if (number.rank < 2) return static_cast<uint64_t>(number.rank);
  // Rounding keeps the order, and both zeros are the same number.
  const auto bits = std::bit_cast<uint64_t>(static_cast<double>(number.value) + 0.0);
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return std::max<uint64_t>((bits & kSign) != 0 ? ~bits : bits | kSign, 2);
}

// The length of a file's name before its suffixes, which are dots, each with letters, digits or ~ behind it that do not
// begin with a digit. As in coreutils 9.1, a name may be nothing else (.bashrc); some later releases see that
// otherwise.
size_t StemLength(absl::string_view name) {
  size_t stem = name.size();
  // From the end: a suffix, and before it another one.
  while (stem > 0) {
    size_t at = stem;
    while (at > 0 && (IsLetter(name[at - 1]) || IsDigit(name[at - 1]) || name[at - 1] == '~')) --at;
    const bool suffix = at < stem && !IsDigit(name[at]) && at > 0 && name[at - 1] == '.';
    if (!suffix) break;
    stem = at - 1;
  }
  return stem;
}

// The weight of a character of a version: ~, the end, digits, letters, others.
int WeightAt(absl::string_view text, size_t at) {
  if (at >= text.size()) return -1;
  const char c = text[at];
  if (IsDigit(c)) return 0;
  if (IsLetter(c)) return c;
  if (c == '~') return -2;
  return static_cast<unsigned char>(c) + 256;
}

// Text and numbers take turns.
int CompareParts(absl::string_view a, absl::string_view b) {
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    while ((i < a.size() && !IsDigit(a[i])) || (j < b.size() && !IsDigit(b[j]))) {
      const int order = WeightAt(a, i) - WeightAt(b, j);
      if (order != 0) return order;
      ++i;
      ++j;
    }
    const auto take_number = [](absl::string_view text, size_t* at) {
      *at = std::min(*at, text.size());
      while (*at < text.size() && text[*at] == '0') ++*at;
      const size_t from = *at;
      while (*at < text.size() && IsDigit(text[*at])) ++*at;
      return text.substr(from, *at - from);
    };
    const absl::string_view left = take_number(a, &i);
    const absl::string_view right = take_number(b, &j);
    if (left.size() != right.size()) return left.size() < right.size() ? -1 : 1;
    if (const int order = CompareText(left, right); order != 0) return order;
  }
  return 0;
}

// Names that begin with a dot come first: ".", "..", others.
int DotRank(absl::string_view name) { return name[0] != '.' ? 3 : name == "." ? 0 : name == ".." ? 1 : 2; }

int CompareVersions(absl::string_view a, absl::string_view b) {
  if (a.empty() || b.empty()) return static_cast<int>(!a.empty()) - static_cast<int>(!b.empty());
  if (const int order = DotRank(a) - DotRank(b); order != 0) return order;
  if (DotRank(a) < 2) return 0;
  const int order = CompareParts(a.substr(0, StemLength(a)), b.substr(0, StemLength(b)));
  return order != 0 ? order : CompareParts(a, b);
}

int CompareCounting(const KeyHow& how, absl::string_view a, absl::string_view b) {
  size_t i = 0, j = 0;
  while (true) {
    while (i < a.size() && !Counts(how.ignore, a[i])) ++i;
    while (j < b.size() && !Counts(how.ignore, b[j])) ++j;
    if (i == a.size() || j == b.size()) return static_cast<int>(i < a.size()) - static_cast<int>(j < b.size());
    const auto at = [&](char c) { return static_cast<unsigned char>(how.fold ? Upper(c) : c); };
    if (at(a[i]) != at(b[j])) return at(a[i]) - at(b[j]);
    ++i;
    ++j;
  }
}

// The characters that count, at most `size_max`.
std::string Counting(const KeyHow& how, absl::string_view text, size_t size_max) {
  std::string out;
  for (const char c : text) {
    if (out.size() == size_max) break;
    if (Counts(how.ignore, c)) out += how.fold ? Upper(c) : c;
  }
  return out;
}

bool IsChanged(const KeyHow& how) { return how.fold || how.ignore != KeyHow::Ignore::kNothing; }

}  // namespace

int CompareTexts(const KeyHow& how, absl::string_view a, absl::string_view b) {
  switch (how.kind) {
    case KeyHow::Kind::kText:
      return IsChanged(how) ? CompareCounting(how, a, b) : CompareBytes(a, b);
    case KeyHow::Kind::kNumeric:
      return CompareNumbers(ParseNumber(a), ParseNumber(b));
    case KeyHow::Kind::kGeneral:
      return CompareGeneral(ParseGeneral(a), ParseGeneral(b));
    case KeyHow::Kind::kHuman: {
      a = WithoutBlanks(a);
      b = WithoutBlanks(b);
      const int order = UnitOf(a, how.fold) - UnitOf(b, how.fold);
      return order != 0 ? order : CompareNumbers(ParseNumber(a), ParseNumber(b));
    }
    case KeyHow::Kind::kMonth:
      return MonthOf(a) - MonthOf(b);
    case KeyHow::Kind::kVersion:
      if (!IsChanged(how)) return CompareVersions(a, b);
      return CompareVersions(Counting(how, a, a.size()), Counting(how, b, b.size()));
  }
  return 0;
}

uint64_t PrefixOf(const KeyHow& how, absl::string_view text) {
  switch (how.kind) {
    case KeyHow::Kind::kText:
      return IsChanged(how) ? LeadingBytes(Counting(how, text, 8)) : LeadingBytes(text);
    case KeyHow::Kind::kNumeric:
      return NumberPrefix(ParseNumber(text));
    case KeyHow::Kind::kGeneral:
      return GeneralPrefix(ParseGeneral(text));
    case KeyHow::Kind::kHuman: {
      text = WithoutBlanks(text);
      return static_cast<uint64_t>(UnitOf(text, how.fold) + 16) << 58 | NumberPrefix(ParseNumber(text)) >> 6;
    }
    case KeyHow::Kind::kMonth:
      return static_cast<uint64_t>(MonthOf(text));
    case KeyHow::Kind::kVersion:
      return 0;
  }
  return 0;
}

}  // namespace nram
