#ifndef NRAM_SORT_WORKSPACE_H_
#define NRAM_SORT_WORKSPACE_H_

// Memory in which one run is gathered and sorted: text from the front, an entry for each record from the back.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sort/order.h"
#include "sort/record_format.h"
#include "sort/record_writer.h"

namespace nram {

// Not thread-safe.
class Workspace {
 public:
  // At most 4 GiB of memory, aligned to 16 bytes.
  Workspace(absl::Span<char> memory, const RecordFormat& format) : memory_(memory), format_(format) { Clear(); }

  void Clear();
  // How much text may be written at text_end() so that its entries have room too. 0: the workspace is full.
  size_t room() const;
  char* text_end() { return memory_.data() + text_bytes_; }
  // The caller has written `bytes` at text_end(): enters the records that they complete. False: there was no room for
  // all entries; incomplete() is the rest of the text.
  bool Take(size_t bytes);
  // The text without entries: the begin of a record, or records for which Take had no room.
  absl::string_view incomplete() const { return {memory_.data() + entered_, text_bytes_ - entered_}; }
  // At the end of the input, of which a read at text_end() has found nothing: ends the last line if it has no
  // terminator. CHECKs that there is room for it, as there is if room() was not 0 before that read.
  void EndLine();

  // Orders the entries. `unique`: leaves out entries that are equal to an earlier one.
  void Sort(const Order& order, bool unique);
  absl::Status Write(RecordWriter* writer) const;

  size_t count() const { return static_cast<size_t>(end() - begin()); }
  // The bytes of all records that Sort has not left out, terminators included.
  uint64_t record_bytes() const;
  uint32_t longest() const { return longest_; }
  // The records with their terminators, and their prefixes; by rank once sorted.
  absl::string_view record(size_t index) const {
    return {memory_.data() + begin()[index].offset, begin()[index].bytes};
  }
  uint64_t prefix(size_t index) const { return begin()[index].prefix; }
  size_t terminator_bytes() const { return format_.record_bytes > 0 ? 0 : 1; }

 private:
  struct Entry {
    uint64_t prefix;
    uint32_t offset;
    uint32_t bytes;  // terminator included
  };

  Entry* end() const {
    return reinterpret_cast<Entry*>(memory_.data() + memory_.size() / sizeof(Entry) * sizeof(Entry));
  }
  Entry* begin() const { return first_; }
  bool Enter(size_t bytes);

  const absl::Span<char> memory_;
  const RecordFormat format_;
  Entry* first_ = nullptr;
  size_t text_bytes_ = 0;
  size_t entered_ = 0;  // of the text
  size_t scanned_ = 0;  // of the text, without finding a record's end beyond entered_
  uint32_t longest_ = 0;
};

}  // namespace nram

#endif  // NRAM_SORT_WORKSPACE_H_
