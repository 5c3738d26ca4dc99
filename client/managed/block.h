#ifndef NRAM_CLIENT_MANAGED_BLOCK_H_
#define NRAM_CLIENT_MANAGED_BLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nram {

// Where a block is. Changes under the manager's lock only.
enum class BlockState : uint8_t {
  kFree,     // no block: its number is free
  kRemote,   // in the store; or it is new, and nowhere
  kLoading,  // a read is under way
  kAhead,    // fetched ahead, and untouched since
  kHere,
  kLeaving,  // a write is under way; then it is dropped, unless a thread wants it
};

// The unit of transfer: one large object, or a pack of small ones. Blocks are never deallocated while their manager
// lives, so a pointer that is out of date may still be read.
struct Block {
  // Parts of `word`: the number of guards, whether guards may be taken without the lock, and whether the store has
  // other content. A thread that waits for the block is counted already.
  static constexpr uint64_t kGuards = (uint64_t{1} << 32) - 1;
  static constexpr uint64_t kUsable = uint64_t{1} << 32;
  static constexpr uint64_t kDirty = uint64_t{1} << 33;

  std::atomic<uint64_t> word{0};
  // Valid while `word` is usable; of a fixed block, the same for life.
  std::byte* data = nullptr;
  std::atomic<uint64_t> used{0};  // the manager's clock when a thread came to it last
  std::atomic<uint32_t> next{0};  // the number of the block that a thread came to after it; 0: none
  std::atomic<uint8_t> trust{0};  // in `next`: 0 to 3

  // The rest under the manager's lock.
  BlockState state = BlockState::kFree;
  bool fixed = false;   // its address never changes
  bool stored = false;  // the store has some state of it
  bool ahead = false;   // the read under way is ahead of use
  bool is_pack = false;
  bool open = false;     // a pack that takes more objects
  uint32_t number = 0;   // from 1
  uint32_t filled = 0;   // of a pack: bytes given out
  uint32_t objects = 0;  // of a pack: alive
  uint64_t bytes = 0;
  uint64_t offset = 0;     // in the store
  uint64_t queued = 0;     // the clock when it entered its list
  Block* older = nullptr;  // in its list
  Block* newer = nullptr;
};

static_assert(sizeof(Block) <= 112);  // docs/managed.md says so

// Blocks in an order, oldest first; a block is in one list at most. Under the manager's lock.
class BlockList {
 public:
  Block* oldest() const { return oldest_; }
  Block* newest() const { return newest_; }
  size_t size() const { return size_; }
  void PushNewest(Block* block) {
    block->older = newest_;
    block->newer = nullptr;
    (newest_ == nullptr ? oldest_ : newest_->newer) = block;
    newest_ = block;
    ++size_;
  }
  void Remove(Block* block) {
    (block->older == nullptr ? oldest_ : block->older->newer) = block->newer;
    (block->newer == nullptr ? newest_ : block->newer->older) = block->older;
    block->older = block->newer = nullptr;
    --size_;
  }

 private:
  Block* oldest_ = nullptr;
  Block* newest_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_BLOCK_H_
