#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "sort/order.h"
#include "sort/workspace.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

// A workspace small enough that inputs fill several.
constexpr size_t kWorkspaceBytes = 16 * 1024;
// Records that are compared, each with each other one.
constexpr size_t kComparedMax = 6;

int Sign(int order) { return order < 0 ? -1 : order > 0; }

std::vector<std::string> Cut(absl::string_view text, const RecordFormat& format) {
  std::vector<std::string> records;
  while (!text.empty()) {
    size_t bytes = format.record_bytes;
    if (bytes == 0) bytes = std::min(text.find(format.terminator), text.size());
    if (bytes > text.size()) break;  // no whole record
    records.emplace_back(text.substr(0, bytes));
    text.remove_prefix(std::min(bytes + (format.record_bytes == 0 ? 1 : 0), text.size()));
  }
  return records;
}

// The comparisons of three records must fit together.
void CheckOrder(const Order& order, const std::vector<std::string>& records) {
  const size_t count = std::min(records.size(), kComparedMax);
  for (size_t i = 0; i < count; ++i) {
    CHECK_EQ(order.Compare(records[i], records[i]), 0);
    for (size_t j = 0; j < count; ++j) {
      const int ij = Sign(order.Compare(records[i], records[j]));
      CHECK_EQ(ij, -Sign(order.Compare(records[j], records[i])));
      const uint64_t a = order.Prefix(records[i]);
      const uint64_t b = order.Prefix(records[j]);
      if (a != b) CHECK_EQ(ij, a < b ? -1 : 1) << "the prefixes say otherwise";
      for (size_t k = 0; k < count && ij <= 0; ++k) {
        const int jk = Sign(order.Compare(records[j], records[k]));
        if (jk <= 0) CHECK_EQ(Sign(order.Compare(records[i], records[k])), std::min(ij, jk));
      }
    }
  }
}

// The records of one workspace, sorted by a simple program.
void CheckSorted(const Order& order, bool unique, std::vector<std::string> expected, Workspace* workspace) {
  std::stable_sort(expected.begin(), expected.end(),
                   [&](const std::string& a, const std::string& b) { return order.Compare(a, b) < 0; });
  if (unique) {
    expected.erase(std::unique(expected.begin(), expected.end(),
                               [&](const std::string& a, const std::string& b) { return order.Compare(a, b) == 0; }),
                   expected.end());
  }
  workspace->Sort(order, unique);
  CHECK_EQ(workspace->count(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    absl::string_view record = workspace->record(i);
    record.remove_suffix(workspace->terminator_bytes());
    CHECK(record == expected[i]) << "record " << i;
  }
}

// Reads `text` in pieces, as RunBuilder does: the text that does not fit begins the next workspace.
void CheckWorkspaces(const Order& order, bool unique, const RecordFormat& format, absl::string_view text,
                     size_t piece_bytes, absl::Span<char> memory) {
  Workspace workspace(memory, format);
  std::string carried;
  bool at_end = false;
  while (!at_end) {
    workspace.Clear();
    CHECK_LE(carried.size(), memory.size());
    memcpy(workspace.text_end(), carried.data(), carried.size());
    std::string taken = std::exchange(carried, "");
    bool fits = workspace.Take(taken.size());
    while (fits) {
      const size_t room = workspace.room();
      if (room == 0) break;
      const size_t bytes = std::min({room, piece_bytes, text.size()});
      memcpy(workspace.text_end(), text.data(), bytes);
      taken += std::string(text.substr(0, bytes));
      text.remove_prefix(bytes);
      fits = workspace.Take(bytes);
      if (bytes > 0 || !fits) continue;
      // A last record that is not whole; a file of fixed-size ones would be refused.
      if (format.record_bytes == 0 && !workspace.incomplete().empty()) workspace.EndLine();
      at_end = true;
      break;
    }
    carried = std::string(workspace.incomplete());
    if (format.record_bytes > 0 && at_end) carried.clear();
    const absl::string_view entered = absl::string_view(taken).substr(0, taken.size() - carried.size());
    const std::vector<std::string> records = Cut(entered, format);
    CHECK_EQ(workspace.count(), records.size());
    if (records.empty() && !carried.empty()) return;  // a line that is too long
    CheckSorted(order, unique, records, &workspace);
  }
}

}  // namespace

void FuzzSort(const uint8_t* data, size_t size) {
  static const Mapping* const memory = new Mapping(Mapping::Anonymous(kWorkspaceBytes).value());
  FuzzInput input(data, size);
  OrderOptions options;
  const uint8_t flags = input.Byte();
  options.blanks = (flags & 1) != 0;
  options.fold = (flags & 2) != 0;
  options.numeric = (flags & 4) != 0;
  options.reverse = (flags & 8) != 0;
  options.stable = (flags & 16) != 0;
  options.unique = (flags & 32) != 0;
  RecordFormat format;
  if (input.Byte() % 4 == 3) format.record_bytes = 1 + input.Byte() % 100;
  format.terminator = (flags & 64) != 0 ? '\0' : '\n';
  options.record_bytes = format.record_bytes;
  if ((flags & 128) != 0) options.separator = static_cast<char>(input.Byte());
  const uint8_t keys = input.Byte() % 4;
  for (uint8_t i = 0; i < keys; ++i) options.keys.emplace_back(input.Take(input.Byte() % 12));
  const size_t piece_bytes = 1 + input.Number(2) % 8192;
  const auto order = Order::Make(options);
  if (!order.ok()) return;
  const absl::string_view text = input.Take(input.size());
  CheckOrder(*order, Cut(text, format));
  CheckWorkspaces(*order, options.unique, format, text, piece_bytes,
                  {reinterpret_cast<char*>(memory->data()), memory->size()});
}

}  // namespace nram
