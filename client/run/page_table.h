#ifndef NRAM_CLIENT_RUN_PAGE_TABLE_H_
#define NRAM_CLIENT_RUN_PAGE_TABLE_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace nram {

// The state of a program's page:
//
//   kEmpty --fault--> kComing --> kDirty --eviction--> kLeaving --> kRemote, or kEmpty if it holds zeros
//   kRemote --fault--> kComing --> kClean (read) or kDirty (written)
//   kClean --first write--> kDirty;   kClean --eviction--> kLeaving --> kRemote
//
// kComing and kLeaving belong to the one thread that made them so.
enum class RunState : uint8_t {
  kEmpty = 0,    // zeros; nowhere
  kRemote = 1,   // in the store
  kComing = 2,   // on its way in
  kLeaving = 3,  // on its way out
  kClean = 4,    // in memory, protected, as in the store
  kDirty = 5,    // in memory
};

struct RunPage {
  RunState state : 3 = RunState::kEmpty;
  bool stored : 1 = false;  // the store has it, or has had a former content
  bool waiter : 1 = false;  // a thread of the program may wait for the end of kComing or kLeaving
  bool pinned : 1 = false;  // is not evicted
  bool queued : 1 = false;  // has an entry in the eviction queue
  bool again : 1 = false;   // was fetched soon after its eviction: has another round

  bool busy() const { return state == RunState::kComing || state == RunState::kLeaving; }
  bool resident() const { return state == RunState::kClean || state == RunState::kDirty; }
};
static_assert(sizeof(RunPage) == 1);

// The pages by their homes: a byte each, in blocks of 2 MiB that exist where something is known. Not thread-safe.
class PageTable {
 public:
  // Valid until Clear.
  RunPage& operator[](uint64_t home) {
    std::unique_ptr<Block>& block = blocks_[home / kBlockPages];
    if (block == nullptr) block = std::make_unique<Block>();
    return (*block)[home % kBlockPages];
  }
  // Without making a block.
  RunPage Get(uint64_t home) const {
    const auto at = blocks_.find(home / kBlockPages);
    return at == blocks_.end() ? RunPage() : (*at->second)[home % kBlockPages];
  }
  // The pages of a part of [home, home + count), from `home` on, of which nothing is known: a quick way over holes.
  uint64_t UnknownFrom(uint64_t home, uint64_t count) const {
    uint64_t unknown = 0;
    while (unknown < count && !blocks_.contains((home + unknown) / kBlockPages)) {
      unknown += kBlockPages - (home + unknown) % kBlockPages;
    }
    return unknown < count ? unknown : count;
  }
  // Nothing is known of them any more.
  void Clear(uint64_t home, uint64_t count) {
    for (uint64_t i = 0; i < count;) {
      const uint64_t in_block = (home + i) % kBlockPages;
      const uint64_t take = count - i < kBlockPages - in_block ? count - i : kBlockPages - in_block;
      const auto at = blocks_.find((home + i) / kBlockPages);
      if (at != blocks_.end()) {
        if (take == kBlockPages) {
          blocks_.erase(at);
        } else {
          for (uint64_t k = 0; k < take; ++k) (*at->second)[in_block + k] = RunPage();
          static constexpr Block kNothing = {};
          if (memcmp(at->second.get(), &kNothing, sizeof(Block)) == 0) blocks_.erase(at);
        }
      }
      i += take;
    }
  }
  // All pages of which something is known, and some others; blocks of 512 in any order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [block, pages] : blocks_) {
      for (uint64_t i = 0; i < kBlockPages; ++i) visit(block * kBlockPages + i, (*pages)[i]);
    }
  }
  // Takes over another table, with each page as `change` makes it.
  template <typename Change>
  void CopyFrom(const PageTable& other, Change change) {
    blocks_.clear();
    blocks_.reserve(other.blocks_.size());
    for (const auto& [block, pages] : other.blocks_) {
      auto copy = std::make_unique<Block>(*pages);
      for (RunPage& page : *copy) change(&page);
      blocks_.emplace(block, std::move(copy));
    }
  }
  uint64_t memory_bytes() const { return blocks_.size() * (sizeof(Block) + 32); }

 private:
  static constexpr uint64_t kBlockPages = 512;
  using Block = std::array<RunPage, kBlockPages>;

  absl::flat_hash_map<uint64_t, std::unique_ptr<Block>> blocks_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_PAGE_TABLE_H_
