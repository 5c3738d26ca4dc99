#include "base/units.h"

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nram {
namespace {

constexpr char kSuffixes[] = {'K', 'M', 'G', 'T', 'P'};

absl::Status BadSize(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a size: ", why,
                                                 "; write a number of bytes or use K, M, G, T (powers of 1024), "
                                                 "for example 512M or 1.5GiB"));
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  const absl::string_view whole = text;
  if (absl::EndsWith(text, "iB")) {
    text.remove_suffix(2);
    if (text.empty() || !absl::ascii_isupper(text.back())) return BadSize(whole, "\"iB\" without K, M, G, T");
  } else if (absl::EndsWith(text, "B")) {
    text.remove_suffix(1);
    if (!text.empty() && !absl::ascii_isdigit(text.back())) return BadSize(whole, "powers of 1000 are ambiguous");
  }
  uint64_t unit = 1;
  if (!text.empty() && !absl::ascii_isdigit(text.back())) {
    uint64_t scale = 1;
    for (char suffix : kSuffixes) {
      scale *= 1024;
      if (absl::ascii_toupper(text.back()) == suffix) unit = scale;
    }
    if (unit == 1) return BadSize(whole, "unknown unit");
    text.remove_suffix(1);
  }
  if (text.empty() || !absl::ascii_isdigit(text.front())) return BadSize(whole, "no number");
  for (char c : text) {
    if (!absl::ascii_isdigit(c) && c != '.') return BadSize(whole, "not a number");
  }
  uint64_t integer = 0;
  if (absl::SimpleAtoi(text, &integer)) {
    if (integer > std::numeric_limits<uint64_t>::max() / unit) return BadSize(whole, "too large");
    return integer * unit;
  }
  double fraction = 0;
  if (!absl::SimpleAtod(text, &fraction)) return BadSize(whole, "not a number");
  const double bytes = fraction * static_cast<double>(unit);
  if (bytes >= std::ldexp(1.0, 63)) return BadSize(whole, "too large");
  return static_cast<uint64_t>(bytes);
}

std::string FormatByteSize(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 999.5 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %ciB", decimals, value, kSuffixes[unit]);
}

std::string FormatId(uint64_t id) { return absl::StrFormat("0x%016x", id); }

absl::StatusOr<uint64_t> ParseId(absl::string_view text) {
  uint64_t id = 0;
  if (!absl::SimpleHexAtoi(text, &id) || id == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not an identifier: expected 1 to 16 hex digits, not all zero, as in 0x00c0ffee"));
  }
  return id;
}

}  // namespace nram
