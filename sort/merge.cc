#include "sort/merge.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

uint64_t WholeBlocks(uint64_t bytes) { return RoundUp(bytes, Scratch::kBlockBytes); }

// Each trim is a round trip. For each run, the scratch may be this much larger than the rest that is to be merged.
constexpr uint64_t kDiscardBytesMax = 4 << 20;
// If the merge writes to the scratch too, all runs together are larger by a sixteenth at most, and by their blocks.
constexpr uint64_t kDiscardParts = 16;
constexpr uint64_t kProgressBytes = 8 << 20;

// The loser of each match, and above all the winner. A leaf is a cursor; leaves beyond the cursors have lost already.
class LoserTree {
 public:
  LoserTree(absl::Span<const std::unique_ptr<Cursor>> cursors, const Order& order, size_t terminator_bytes)
      : order_(order), terminator_bytes_(terminator_bytes) {
    while (leaves_ < cursors.size()) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
    // Winners first, from the leaves up; then each match keeps its loser.
    for (size_t leaf = 0; leaf < leaves_; ++leaf) {
      Node& node = nodes_[leaves_ + leaf];
      node.index = static_cast<uint32_t>(leaf);
      if (leaf < cursors.size()) node.cursor = cursors[leaf].get();
      if (node.cursor != nullptr && node.cursor->done) node.cursor = nullptr;
      if (node.cursor != nullptr) node.prefix = node.cursor->prefix;
    }
    for (size_t at = leaves_ - 1; at > 0; --at) {
      nodes_[at] = Before(nodes_[2 * at], nodes_[2 * at + 1]) ? nodes_[2 * at] : nodes_[2 * at + 1];
    }
    winner_ = nodes_[1];
    for (size_t at = 1; at < leaves_; ++at) {
      Node& left = nodes_[2 * at];
      Node& right = nodes_[2 * at + 1];
      nodes_[at] = nodes_[at].index == left.index ? right : left;
    }
  }

  Cursor* winner() const { return winner_.cursor; }

  // The winner's cursor has moved: plays its matches again.
  void Replay() {
    if (winner_.cursor->done) {
      winner_.cursor = nullptr;
    } else {
      winner_.prefix = winner_.cursor->prefix;
    }
    for (size_t at = (leaves_ + winner_.index) / 2; at > 0; at /= 2) {
      if (Before(nodes_[at], winner_)) std::swap(nodes_[at], winner_);
    }
  }

 private:
  struct Node {
    uint64_t prefix = UINT64_MAX;
    Cursor* cursor = nullptr;  // null: at its end, after all others
    uint32_t index = 0;
  };

  bool Before(const Node& a, const Node& b) const {
    if (a.cursor == nullptr || b.cursor == nullptr) return b.cursor == nullptr && a.cursor != nullptr;
    if (a.prefix != b.prefix) return a.prefix < b.prefix;
    const int order = order_.Compare(Key(*a.cursor), Key(*b.cursor));
    return order != 0 ? order < 0 : a.index < b.index;
  }
  absl::string_view Key(const Cursor& cursor) const {
    return cursor.record.substr(0, cursor.record.size() - terminator_bytes_);
  }

  const Order& order_;
  const size_t terminator_bytes_;
  size_t leaves_ = 1;
  std::vector<Node> nodes_;
  Node winner_;
};

}  // namespace

uint64_t RunCursor::BlockBytes(const Run& run, uint64_t block_bytes) {
  return std::max(std::min(WholeBlocks(block_bytes), WholeBlocks(run.bytes)), WholeBlocks(run.longest));
}

uint64_t RunCursor::MemoryBytes(const Run& run, uint64_t block_bytes) {
  return 2 * (BlockBytes(run, block_bytes) + WholeBlocks(run.longest));
}

RunCursor::RunCursor(Scratch* scratch, const Run& run, uint64_t block_bytes, absl::Span<char> memory,
                     Scratch::Room discard, const Order* order, const RecordFormat& format)
    : Cursor(order, format),
      scratch_(scratch),
      run_(run),
      block_bytes_(BlockBytes(run, block_bytes)),
      carry_bytes_(WholeBlocks(run.longest)),
      discard_(discard),
      discard_bytes_(discard == Scratch::Room::kFree
                         ? kDiscardBytesMax
                         : std::min(kDiscardBytesMax, std::max(block_bytes_, run.bytes / kDiscardParts))) {
  for (int i = 0; i < 2; ++i) {
    blocks_[i] = memory.data() + static_cast<uint64_t>(i) * (block_bytes_ + carry_bytes_) + carry_bytes_;
    transfers_[i] = scratch->NewTransfer();
  }
  at_ = end_ = blocks_[1];
  StartRead();
}

// Asks for the run's next block into blocks_[next_].
void RunCursor::StartRead() {
  const uint64_t bytes = std::min(block_bytes_, run_.bytes - asked_);
  sizes_[next_] = bytes;
  if (bytes == 0) return;
  transfers_[next_]->StartRead(run_.offset + asked_, {blocks_[next_], WholeBlocks(bytes)});
  asked_ += bytes;
}

absl::Status RunCursor::AdvanceSlowly() {
  const size_t carried = static_cast<size_t>(end_ - at_);
  if (sizes_[next_] == 0) {
    done = true;
    record = {};
    if (carried > 0)
      return absl::DataLossError("the scratch has lost or changed data: a run ends within a record");
    const uint64_t rest = WholeBlocks(run_.bytes) - discarded_;
    return rest == 0 ? absl::OkStatus() : scratch_->Discard(run_.offset + discarded_, rest, discard_);
  }
  if (carried > carry_bytes_) {
    return absl::DataLossError("the scratch has lost or changed data: a record is longer than any written one");
  }
  NRAM_RETURN_IF_ERROR(transfers_[next_]->Wait());
  const uint64_t here = WholeBlocks(asked_);  // these bytes are in memory, so the scratch need not keep them
  char* const block = blocks_[next_];
  std::memcpy(block - carried, at_, carried);
  at_ = block - carried;
  end_ = block + sizes_[next_];
  next_ = 1 - next_;
  StartRead();  // into the block that was just left
  if (here - discarded_ >= discard_bytes_) {
    NRAM_RETURN_IF_ERROR(scratch_->Discard(run_.offset + discarded_, here - discarded_, discard_));
    discarded_ = here;
  }
  if (NextLine()) return absl::OkStatus();
  // A block is no smaller than the longest record, so with the carried part it holds the end of one.
  return absl::DataLossError("the scratch has lost or changed data: a record has no end");
}

absl::Status WorkspaceCursor::AdvanceSlowly() {
  if (index_ == workspace_->count()) {
    done = true;
    record = {};
    return absl::OkStatus();
  }
  record = workspace_->record(index_);
  prefix = workspace_->prefix(index_);
  ++index_;
  return absl::OkStatus();
}

absl::Status Merge(absl::Span<const std::unique_ptr<Cursor>> cursors, const Order& order, const RecordFormat& format,
                   const MergeOptions& options, RecordWriter* writer, uint64_t* written) {
  for (const auto& cursor : cursors) NRAM_RETURN_IF_ERROR(cursor->Advance());
  const size_t terminator_bytes = format.record_bytes > 0 ? 0 : 1;
  LoserTree tree(cursors, order, terminator_bytes);
  uint64_t merged = 0;
  uint64_t sum = 0;
  uint64_t next_progress = kProgressBytes;
  std::string last;
  bool any = false;
  for (Cursor* cursor = tree.winner(); cursor != nullptr; cursor = tree.winner()) {
    const absl::string_view record = cursor->record;
    const absl::string_view key = record.substr(0, record.size() - terminator_bytes);
    if (!options.unique || !any || order.Compare(last, key) != 0) {
      NRAM_RETURN_IF_ERROR(writer->Append(record));
      sum += record.size();
      if (options.unique) {
        last.assign(key.data(), key.size());
        any = true;
      }
    }
    // Few of many equal records may be written.
    merged += record.size();
    if (merged >= next_progress) {
      next_progress = merged + kProgressBytes;
      if (options.on_progress) NRAM_RETURN_IF_ERROR(options.on_progress(merged));
    }
    NRAM_RETURN_IF_ERROR(cursor->Advance());
    tree.Replay();
  }
  *written = sum;
  return absl::OkStatus();
}

}  // namespace nram
