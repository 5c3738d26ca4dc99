#ifndef NRAM_SORT_MERGE_H_
#define NRAM_SORT_MERGE_H_

// Merges sorted runs: a tournament tree of losers (Knuth, The Art of Computer Programming 3, 5.4.1) over cursors that
// read ahead.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sort/order.h"
#include "sort/record_writer.h"
#include "sort/scratch.h"
#include "sort/workspace.h"

namespace nram {

// A sorted run in the scratch.
struct Run {
  uint64_t offset = 0;  // a multiple of Scratch::kBlockBytes
  uint64_t bytes = 0;
  uint32_t longest = 0;  // record, terminator included
};

// The records of one run, in order. Not thread-safe.
class Cursor {
 public:
  virtual ~Cursor() = default;
  // Goes to the next record; at the run's end, `done`.
  absl::Status Advance() { return NextLine() ? absl::OkStatus() : AdvanceSlowly(); }

  bool done = false;
  absl::string_view record;  // with its terminator
  uint64_t prefix = 0;

 protected:
  Cursor(const Order* order, const RecordFormat& format) : order_(order), format_(format) {}
  virtual absl::Status AdvanceSlowly() = 0;
  // Takes the next record from [at_, end_); false if no whole one is there.
  bool NextLine() {
    const size_t left = static_cast<size_t>(end_ - at_);
    if (left == 0) return false;
    size_t bytes = format_.record_bytes;
    if (bytes == 0) {
      const void* const at = std::memchr(at_, format_.terminator, left);
      if (at == nullptr) return false;
      bytes = static_cast<size_t>(static_cast<const char*>(at) - at_) + 1;
    } else if (left < bytes) {
      return false;
    }
    Set({at_, bytes});
    at_ += bytes;
    return true;
  }
  void Set(absl::string_view whole) {
    record = whole;
    prefix = order_->Prefix(whole.substr(0, whole.size() - (format_.record_bytes > 0 ? 0 : 1)));
  }

  const Order* const order_;
  const RecordFormat format_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
};

// The cursor of a run in the scratch. It has two blocks, one of which is being read while the other is used, and gives
// the scratch back behind itself.
class RunCursor : public Cursor {
 public:
  // How much memory a run needs with blocks of at least `block_bytes`, and how large the blocks are then.
  static uint64_t BlockBytes(const Run& run, uint64_t block_bytes);
  static uint64_t MemoryBytes(const Run& run, uint64_t block_bytes);

  // `memory` has MemoryBytes. Stands before the first record. With `discard` kKeep, the merge writes to the places that
  // it has read: they are given back soon.
  RunCursor(Scratch* scratch, const Run& run, uint64_t block_bytes, absl::Span<char> memory, Scratch::Room discard,
            const Order* order, const RecordFormat& format);

 private:
  absl::Status AdvanceSlowly() override;
  void StartRead();

  Scratch* const scratch_;
  const Run run_;
  const uint64_t block_bytes_;
  const uint64_t carry_bytes_;  // before each block, for a record that begins in the one before
  const Scratch::Room discard_;
  const uint64_t discard_bytes_;  // at a time
  char* blocks_[2];
  std::unique_ptr<Scratch::Transfer> transfers_[2];
  size_t sizes_[2] = {0, 0};  // of the read under way into each
  int next_ = 0;              // the next block
  uint64_t asked_ = 0;        // bytes of the run that were asked for
  uint64_t discarded_ = 0;
};

// The cursor of a sorted workspace.
class WorkspaceCursor : public Cursor {
 public:
  WorkspaceCursor(const Workspace* workspace, const Order* order, const RecordFormat& format)
      : Cursor(order, format), workspace_(workspace) {}

 private:
  absl::Status AdvanceSlowly() override;

  const Workspace* const workspace_;
  size_t index_ = 0;
};

struct MergeOptions {
  bool unique = false;
  // Called now and then with the bytes merged so far; an error ends the merge.
  std::function<absl::Status(uint64_t)> on_progress;
};

// Writes all records of `cursors` to `writer`, in order; records that are equal in the cursors' order. Sets *written to
// the bytes.
absl::Status Merge(absl::Span<const std::unique_ptr<Cursor>> cursors, const Order& order, const RecordFormat& format,
                   const MergeOptions& options, RecordWriter* writer, uint64_t* written);

}  // namespace nram

#endif  // NRAM_SORT_MERGE_H_
