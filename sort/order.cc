#include "sort/order.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "sort/compare_text.h"

namespace nram {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n'; }

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
    "expected FIELD[.CHARACTER][FLAGS][,FIELD[.CHARACTER][FLAGS]], counted from 1, with flags of b, d, f, g, h, i, "
    "M, n, r, V; for example 2,2nr";

// The option of a letter of sort(1); null: there is none.
bool* FlagOf(char letter, OrderOptions* options) {
  switch (letter) {
    case 'd':
      return &options->dictionary;
    case 'f':
      return &options->fold;
    case 'g':
      return &options->general;
    case 'h':
      return &options->human;
    case 'i':
      return &options->printable;
    case 'M':
      return &options->month;
    case 'n':
      return &options->numeric;
    case 'r':
      return &options->reverse;
    case 'V':
      return &options->version;
    default:
      return nullptr;
  }
}

absl::StatusOr<KeyHow> HowOf(const OrderOptions& options) {
  KeyHow how;
  how.fold = options.fold;
  how.reverse = options.reverse;
  how.ignore = options.dictionary  ? KeyHow::Ignore::kNoDictionary
               : options.printable ? KeyHow::Ignore::kUnprintable
                                   : KeyHow::Ignore::kNothing;
  int kinds = 0;
  for (const auto& [on, kind] :
       {std::pair(options.numeric, KeyHow::Kind::kNumeric), std::pair(options.general, KeyHow::Kind::kGeneral),
        std::pair(options.human, KeyHow::Kind::kHuman), std::pair(options.month, KeyHow::Kind::kMonth),
        std::pair(options.version, KeyHow::Kind::kVersion)}) {
    if (!on) continue;
    how.kind = kind;
    ++kinds;
  }
  // As sort(1): only versions are compared after characters were left out.
  const bool ignores = how.ignore != KeyHow::Ignore::kNothing && how.kind != KeyHow::Kind::kVersion;
  if (kinds + (ignores && kinds > 0 ? 1 : 0) > 1) {
    return absl::InvalidArgumentError("at most one of n, g, h, M, V, and d or i with V alone");
  }
  return how;
}

}  // namespace

absl::StatusOr<Order::Key> Order::ParseKey(const std::string& text, const OrderOptions& options) {
  Key key;
  size_t at = 0;
  OrderOptions own;
  bool own_flags = false;
  const auto take_flags = [&](bool* skip) {
    for (; at < text.size() && text[at] != ','; ++at) {
      own_flags = true;
      bool* const flag = text[at] == 'b' ? skip : FlagOf(text[at], &own);
      if (flag == nullptr) return false;
      *flag = true;
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
  if (!own_flags) key.skip_begin = key.skip_end = options.blanks;
  const absl::StatusOr<KeyHow> how = HowOf(own_flags ? own : options);
  if (!how.ok()) return BadKey(text, how.status().message());
  key.how = *how;
  return key;
}

absl::StatusOr<Order::Key> Order::ParseRangeKey(const std::string& text, const OrderOptions& options) {
  Key key;
  size_t at = 0;
  const bool read =
      TakeNumber(text, &at, &key.offset) && at < text.size() && text[at] == ':' && TakeNumber(text, &++at, &key.length);
  key.how.reverse = options.reverse;
  if (read && at + 1 == text.size() && text[at] == 'r') {
    key.how.reverse = true;
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
  NRAM_ASSIGN_OR_RETURN(const KeyHow how, HowOf(options));
  const bool text = how.kind == KeyHow::Kind::kText && how.ignore == KeyHow::Ignore::kNothing && !how.fold;
  if (order.fixed_ && (!text || options.blanks || options.separator != '\0')) {
    return absl::InvalidArgumentError("fixed-size records are compared byte by byte; only --reverse may be added");
  }
  for (const std::string& key_text : options.keys) {
    NRAM_ASSIGN_OR_RETURN(Key key, order.fixed_ ? ParseRangeKey(key_text, options) : ParseKey(key_text, options));
    order.keys_.push_back(key);
  }
  order.plain_ = order.keys_.empty() && text && !options.blanks;
  if (!order.plain_ && order.keys_.empty()) {
    Key whole;
    whole.skip_begin = options.blanks;
    whole.how = how;
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
  const uint64_t prefix = PrefixOf(key.how, Extract(key, record));
  return key.how.reverse ? ~prefix : prefix;
}

int Order::CompareKeys(absl::string_view a, absl::string_view b) const {
  for (const Key& key : keys_) {
    const int order = CompareTexts(key.how, Extract(key, a), Extract(key, b));
    if (order != 0) return key.how.reverse ? -order : order;
  }
  if (!last_resort_) return 0;
  const int order = CompareBytes(a, b);
  return reverse_ ? -order : order;
}

}  // namespace nram
