#ifndef NRAM_SORT_ORDER_H_
#define NRAM_SORT_ORDER_H_

// The order of records: by sort(1)'s keys in the C locale, or by byte ranges of fixed-size records.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sort/compare_text.h"

namespace nram {

struct OrderOptions {
  // Each as sort's -k takes it, "F[.C][bdfghiMnrV][,F[.C][bdfghiMnrV]]"; with fixed-size records "OFFSET:LENGTH[r]".
  std::vector<std::string> keys;
  char separator = '\0';  // between fields; '\0': fields begin where blanks begin
  bool blanks = false;    // leave out leading blanks; this and the flags to `reverse` hold for keys without own flags
  bool fold = false;      // lower case counts as upper case
  bool dictionary = false;  // only blanks, letters and digits count
  bool printable = false;   // only printable characters count
  // At most one of these.
  bool numeric = false;
  bool general = false;  // numbers as strtold(3) reads them
  bool human = false;    // numbers with units, 2K, 1G
  bool month = false;    // names of months
  bool version = false;  // versions and names of files: digits within the text count as numbers
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
    bool skip_begin = false, skip_end = false;
    KeyHow how;
    uint64_t offset = 0, length = 0;  // of fixed-size records
  };

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
