#include "sort/order.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "base/status.h"

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

// Reads a positive decimal at *at; false if there is none or it is too large.
bool TakeNumber(absl::string_view text, size_t* at, uint64_t* value) {
  const size_t from = *at;
  *value = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    if (*value > (uint64_t{1} << 50)) return false;
    *value = *value * 10 + static_cast<uint64_t>(text[*at] - '0');
    ++*at;
  }
  return *at > from;
}

absl::Status BadKey(absl::string_view key, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("key \"", key, "\": ", why));
}

constexpr char kKeyForm[] =
    "expected FIELD[.CHARACTER][FLAGS][,FIELD[.CHARACTER][FLAGS]], counted from 1, with flags of b, f, n, r; for "
    "example 2,2nr";

}  // namespace

absl::StatusOr<Order::Key> Order::ParseKey(const std::string& text, const OrderOptions& options) {
  Key key;
  size_t at = 0;
  bool own_flags = false;
  const auto take_flags = [&](bool* skip) {
    for (; at < text.size() && text[at] != ','; ++at) {
      own_flags = true;
      if (text[at] == 'b') {
        *skip = true;
      } else if (text[at] == 'f') {
        key.fold = true;
      } else if (text[at] == 'n') {
        key.numeric = true;
      } else if (text[at] == 'r') {
        key.reverse = true;
      } else {
        return false;
      }
    }
    return true;
  };
  const auto take_place = [&](uint64_t* field, uint64_t* character) {
    if (!TakeNumber(text, &at, field) || *field == 0) return false;
    if (at < text.size() && text[at] == '.') {
      ++at;
      return TakeNumber(text, &at, character);
    }
    return true;
  };
  uint64_t character = 1;
  if (!take_place(&key.begin_field, &character) || character == 0 || !take_flags(&key.skip_begin)) {
    return BadKey(text, kKeyForm);
  }
  --key.begin_field;
  key.begin_char = character - 1;
  if (at < text.size()) {
    ++at;  // the comma
    if (!take_place(&key.end_field, &key.end_char) || !take_flags(&key.skip_end) || at != text.size()) {
      return BadKey(text, kKeyForm);
    }
    if (key.end_char > 0) --key.end_field;  // within that field; else before the next one
  }
  if (!own_flags) {
    key.skip_begin = key.skip_end = options.blanks;
    key.fold = options.fold;
    key.numeric = options.numeric;
    key.reverse = options.reverse;
  }
  return key;
}

absl::StatusOr<Order::Key> Order::ParseRangeKey(const std::string& text, const OrderOptions& options) {
  Key key;
  size_t at = 0;
  const bool read =
      TakeNumber(text, &at, &key.offset) && at < text.size() && text[at] == ':' && TakeNumber(text, &++at, &key.length);
  key.reverse = options.reverse;
  if (read && at + 1 == text.size() && text[at] == 'r') {
    key.reverse = true;
    ++at;
  }
  if (!read || at != text.size() || key.length == 0 || key.offset + key.length > options.record_bytes) {
    return BadKey(text, absl::StrCat("expected OFFSET:LENGTH or OFFSET:LENGTHr within the record's ",
                                     options.record_bytes, " bytes, counted from 0; for example 0:8"));
  }
  return key;
}

absl::StatusOr<Order> Order::Make(const OrderOptions& options) {
  Order order;
  order.fixed_ = options.record_bytes > 0;
  order.separator_ = options.separator;
  order.reverse_ = options.reverse;
  order.last_resort_ = !options.stable && !options.unique && !order.fixed_;
  if (order.fixed_ && (options.numeric || options.fold || options.blanks || options.separator != '\0')) {
    return absl::InvalidArgumentError("fixed-size records are compared byte by byte; only --reverse may be added");
  }
  for (const std::string& text : options.keys) {
    NRAM_ASSIGN_OR_RETURN(Key key, order.fixed_ ? ParseRangeKey(text, options) : ParseKey(text, options));
    order.keys_.push_back(key);
  }
  order.plain_ = order.keys_.empty() && !options.numeric && !options.fold && !options.blanks;
  if (!order.plain_ && order.keys_.empty()) {
    Key whole;
    whole.skip_begin = options.blanks;
    whole.fold = options.fold;
    whole.numeric = options.numeric;
    whole.reverse = options.reverse;
    order.keys_.push_back(whole);
  }
  return order;
}

// Where field number `field` (from 0) begins; the record's end if it has fewer.
const char* Order::FieldStart(absl::string_view record, uint64_t field) const {
  const char* at = record.data();
  const char* const end = at + record.size();
  for (; field > 0 && at < end; --field) {
    if (separator_ != '\0') {
      at = static_cast<const char*>(std::memchr(at, separator_, static_cast<size_t>(end - at)));
      if (at == nullptr) return end;
      ++at;
    } else {
      while (at < end && IsBlank(*at)) ++at;
      while (at < end && !IsBlank(*at)) ++at;
    }
  }
  return at;
}

absl::string_view Order::Extract(const Key& key, absl::string_view record) const {
  if (fixed_) return record.substr(key.offset, key.length);
  const char* const record_end = record.data() + record.size();
  const auto skip_blanks = [&](const char* at) {
    while (at < record_end && IsBlank(*at)) ++at;
    return at;
  };
  const auto move = [&](const char* at, uint64_t by) {
    return at + std::min<uint64_t>(by, static_cast<uint64_t>(record_end - at));
  };
  const char* begin = FieldStart(record, key.begin_field);
  if (key.skip_begin) begin = skip_blanks(begin);
  begin = move(begin, key.begin_char);
  const char* end = record_end;
  if (key.end_field != UINT64_MAX) {
    end = FieldStart(record, key.end_field);
    if (key.end_char > 0) {
      if (key.skip_end) end = skip_blanks(end);
      end = move(end, key.end_char);
    } else if (separator_ != '\0' && end > record.data() && end[-1] == separator_ &&
               (end < record_end || FieldStart(record, key.end_field - 1) < end)) {
      --end;  // the separator after the field is none of it
    }
  }
  return begin < end ? absl::string_view(begin, static_cast<size_t>(end - begin)) : absl::string_view(begin, 0);
}

uint64_t Order::KeyPrefix(absl::string_view record) const {
  const Key& key = keys_.front();
  const absl::string_view text = Extract(key, record);
  uint64_t prefix = 0;
  if (key.numeric) {
    prefix = NumberPrefix(ParseNumber(text));
  } else if (key.fold) {
    std::array<char, 8> folded{};
    for (size_t i = 0; i < std::min<size_t>(8, text.size()); ++i) folded[i] = Upper(text[i]);
    prefix = LeadingBytes({folded.data(), 8});
  } else {
    prefix = LeadingBytes(text);
  }
  return key.reverse ? ~prefix : prefix;
}

int Order::CompareKeys(absl::string_view a, absl::string_view b) const {
  for (const Key& key : keys_) {
    const absl::string_view left = Extract(key, a);
    const absl::string_view right = Extract(key, b);
    int order = 0;
    if (key.numeric) {
      order = CompareNumbers(ParseNumber(left), ParseNumber(right));
    } else if (key.fold) {
      const size_t common = std::min(left.size(), right.size());
      for (size_t i = 0; i < common && order == 0; ++i) {
        order = static_cast<unsigned char>(Upper(left[i])) - static_cast<unsigned char>(Upper(right[i]));
      }
      if (order == 0) order = left.size() < right.size() ? -1 : left.size() > right.size();
    } else {
      order = CompareBytes(left, right);
    }
    if (order != 0) return key.reverse ? -order : order;
  }
  if (!last_resort_) return 0;
  const int order = CompareBytes(a, b);
  return reverse_ ? -order : order;
}

}  // namespace nram
