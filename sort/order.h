#ifndef NRAM_SORT_ORDER_H_
#define NRAM_SORT_ORDER_H_

// The order of records: by sort(1)'s keys in the C locale, or by byte ranges of fixed-size records.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

struct OrderOptions {
  // Each as sort's -k takes it, "F[.C][bfnr][,F[.C][bfnr]]"; with fixed-size records "OFFSET:LENGTH[r]".
  std::vector<std::string> keys;
  char separator = '\0';  // between fields; '\0': fields begin where blanks begin
  bool blanks = false;    // leave out leading blanks; this and the next three hold for keys without flags of their own
  bool fold = false;      // lower case counts as upper case
  bool numeric = false;
  bool reverse = false;
  bool stable = false;        // equal keys stay in input order; otherwise their whole bytes decide
  bool unique = false;        // likewise: whole bytes do not matter
  uint32_t record_bytes = 0;  // of fixed-size records; 0: lines
};

// Immutable after Make; thread-safe.
class Order {
 public:
  // INVALID_ARGUMENT names the key that is wrong and what would be accepted.
  static absl::StatusOr<Order> Make(const OrderOptions& options);

  // Eight bytes that decide most comparisons: Prefix(a) < Prefix(b) means that a comes before b.
  uint64_t Prefix(absl::string_view record) const {
    if (plain_) {
      const uint64_t prefix = LeadingBytes(record);
      return reverse_ ? ~prefix : prefix;
    }
    return KeyPrefix(record);
  }

  // Below zero if `a` comes before `b`, zero if they are equal, else above zero.
  int Compare(absl::string_view a, absl::string_view b) const {
    if (!plain_) return CompareKeys(a, b);
    const int order = CompareBytes(a, b);
    return reverse_ ? -order : order;
  }

 private:
  struct Key {
    uint64_t begin_field = 0, begin_char = 0;
    uint64_t end_field = UINT64_MAX, end_char = 0;  // the field that it ends before; end_char > 0: within it
    bool skip_begin = false, skip_end = false, fold = false, numeric = false, reverse = false;
    uint64_t offset = 0, length = 0;  // of fixed-size records
  };

  static uint64_t LeadingBytes(absl::string_view text) {
    uint64_t word = 0;
    if (text.size() >= 8) {
      std::memcpy(&word, text.data(), 8);
    } else {
      std::memcpy(&word, text.data(), text.size());
    }
    return __builtin_bswap64(word);
  }
  static int CompareBytes(absl::string_view a, absl::string_view b) {
    const size_t common = a.size() < b.size() ? a.size() : b.size();
    if (const int order = std::memcmp(a.data(), b.data(), common); order != 0) return order;
    return a.size() < b.size() ? -1 : a.size() > b.size();
  }

  static absl::StatusOr<Key> ParseKey(const std::string& text, const OrderOptions& options);
  static absl::StatusOr<Key> ParseRangeKey(const std::string& text, const OrderOptions& options);
  absl::string_view Extract(const Key& key, absl::string_view record) const;
  const char* FieldStart(absl::string_view record, uint64_t field) const;
  uint64_t KeyPrefix(absl::string_view record) const;
  int CompareKeys(absl::string_view a, absl::string_view b) const;

  std::vector<Key> keys_;
  bool plain_ = true;  // whole records, byte by byte
  bool reverse_ = false;
  bool last_resort_ = true;
  bool fixed_ = false;
  char separator_ = '\0';
};

}  // namespace nram

#endif  // NRAM_SORT_ORDER_H_
