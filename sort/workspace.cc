#include "sort/workspace.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace nram {
namespace {

// Less room than this is not worth a read.
constexpr size_t kRoomMin = 4096;

}  // namespace

void Workspace::Clear() {
  first_ = end();
  text_bytes_ = entered_ = scanned_ = 0;
  longest_ = 0;
}

size_t Workspace::room() const {
  const size_t left = static_cast<size_t>(reinterpret_cast<char*>(first_) - memory_.data()) - text_bytes_;
  // So much that text with records of the present mean size has room for its entries; Take sees to the others.
  const size_t records = count();
  const size_t mean = records == 0 ? 64 : std::max<size_t>(entered_ / records, 1);
  const size_t text = static_cast<size_t>(static_cast<double>(left) * static_cast<double>(mean) /
                                          static_cast<double>(mean + sizeof(Entry)));
  return text < kRoomMin ? 0 : text;
}

bool Workspace::Enter(size_t bytes) {
  if (reinterpret_cast<char*>(first_ - 1) < memory_.data() + text_bytes_) return false;
  --first_;
  *first_ = {0, static_cast<uint32_t>(entered_), static_cast<uint32_t>(bytes)};
  longest_ = std::max(longest_, static_cast<uint32_t>(bytes));
  entered_ += bytes;
  return true;
}

bool Workspace::Take(size_t bytes) {
  text_bytes_ += bytes;
  if (format_.record_bytes > 0) {
    while (text_bytes_ - entered_ >= format_.record_bytes) {
      if (!Enter(format_.record_bytes)) return false;
    }
    return true;
  }
  scanned_ = std::max(scanned_, entered_);
  const char* const text = memory_.data();
  for (;;) {
    const void* const at = std::memchr(text + scanned_, format_.terminator, text_bytes_ - scanned_);
    if (at == nullptr) break;
    const size_t after = static_cast<size_t>(static_cast<const char*>(at) - text) + 1;
    if (!Enter(after - entered_)) return false;
    scanned_ = after;
  }
  scanned_ = text_bytes_;
  return true;
}

void Workspace::EndLine() {
  CHECK_GT(room(), 0u) << "a line is ended in a full workspace";
  *text_end() = format_.terminator;
  CHECK(Take(1));
}

void Workspace::Sort(const Order& order, bool unique) {
  const char* const text = memory_.data();
  const size_t terminator = terminator_bytes();
  const auto key = [&](const Entry& entry) { return absl::string_view(text + entry.offset, entry.bytes - terminator); };
  for (Entry* entry = first_; entry != end(); ++entry) entry->prefix = order.Prefix(key(*entry));
  // Places in the text are in input order, which decides between equal records.
  std::sort(first_, end(), [&](const Entry& a, const Entry& b) {
    if (a.prefix != b.prefix) return a.prefix < b.prefix;
    const int by_key = order.Compare(key(a), key(b));
    return by_key != 0 ? by_key < 0 : a.offset < b.offset;
  });
  if (!unique || first_ == end()) return;
  Entry* const kept_end = std::unique(first_, end(), [&](const Entry& a, const Entry& b) {
    return a.prefix == b.prefix && order.Compare(key(a), key(b)) == 0;
  });
  first_ = std::move_backward(first_, kept_end, end());
}

absl::Status Workspace::Write(RecordWriter* writer) const {
  constexpr size_t kAhead = 16;  // records whose text is called into the cache before it is needed
  for (const Entry* entry = first_; entry != end(); ++entry) {
    if (entry + kAhead < end()) __builtin_prefetch(memory_.data() + entry[kAhead].offset);
    NRAM_RETURN_IF_ERROR(writer->Append({memory_.data() + entry->offset, entry->bytes}));
  }
  return absl::OkStatus();
}

uint64_t Workspace::record_bytes() const {
  uint64_t sum = 0;
  for (const Entry* entry = first_; entry != end(); ++entry) sum += entry->bytes;
  return sum;
}

}  // namespace nram
