// Blocks that leave, and blocks that are fetched ahead.

#include <glog/logging.h>

#include <algorithm>

#include "client/managed/manager.h"

namespace nram {
namespace {

// Under way for what is fetched ahead, or written to make room for it: enough to keep a pool busy.
constexpr uint64_t kBatchBytes = kMiB;
constexpr uint64_t kSpareBytes = 256 * kKiB;
// Steps of one look along the order. The next look goes on from there.
constexpr int kStepsMax = 128;
// Of the newest blocks, which guards may hold.
constexpr int kSkippedMax = 64;

bool IsHeld(const Block* block) { return (block->word.load() & Block::kGuards) != 0; }

}  // namespace

uint64_t Manager::Limit() const { return budget_ - std::min(budget_ / 2, MetadataBytes()); }

uint64_t Manager::AheadLimit() const {
  if (ahead_percent_ == 0) return 0;
  const uint64_t least = std::min(2 * kSpareBytes, Limit() / 4);
  return std::max(Limit() * ahead_percent_ / 100, least);
}

bool Manager::TakeData(Block* block) {
  if (!block->fixed) {
    block->data = memory_.TakeBuffer(block->bytes);
    if (block->data == nullptr) return false;
  }
  used_ += block->bytes;
  memory_.Shrink(Limit() - std::min(Limit(), used_));
  return true;
}

void Manager::GiveData(Block* block) {
  used_ -= block->bytes;
  if (block->fixed) {
    LocalMemory::DropPages(block->data, block->bytes);
    return;
  }
  memory_.GiveBuffer(block->data, block->bytes, Limit() - std::min(Limit(), used_));
  block->data = nullptr;
}

void Manager::MakeUsable(Block* block) {
  block->state = BlockState::kHere;
  block->queued = clock_.load();
  here_.PushNewest(block);
  block->word.fetch_or(Block::kUsable);
}

void Manager::Drop(Block* block) {
  CHECK(block->stored);
  block->state = BlockState::kRemote;
  GiveData(block);
}

void Manager::DropAhead(Block* block) {
  ahead_.Remove(block);
  ahead_used_ -= block->bytes;
  ++counters_.ahead_wasted;
  Drop(block);
}

void Manager::NoteAheadHit(const Block* block) {
  ahead_used_ -= block->bytes;
  ++touched_;
  ++counters_.ahead_hits;
}

bool Manager::MakeRoom(uint64_t need, const ThreadRecord* me, bool for_ahead, Actions* actions) {
  while (used_ - leaving_ + need > Limit()) {
    // The rest when some of these have ended.
    if (leaving_ >= kLeavingBytesMax) break;
    if (Block* const victim = ChooseVictim(me); victim != nullptr) {
      (void)Evict(victim, actions);
    } else if (Block* const untouched = for_ahead ? nullptr : OldestAhead(); untouched != nullptr) {
      DropAhead(untouched);
    } else {
      break;
    }
  }
  return used_ + need <= Limit();
}

void Manager::LeaveOn(Actions* actions) {
  if (used_ - leaving_ > Limit()) (void)MakeRoom(0, nullptr, /*for_ahead=*/false, actions);
}

void Manager::MakeSpareRoom(const ThreadRecord* me, Actions* actions) {
  const uint64_t spare = std::min(kSpareBytes, Limit() / 16);
  while (used_ - leaving_ + spare > Limit()) {
    Block* const victim = ChooseVictim(me);
    if (victim == nullptr || (victim->word.load() & Block::kDirty) == 0) return;
    (void)Evict(victim, actions);
  }
}

// The one that was not used for the longest time. In a cycle the newest: all others are needed before it. What nobody
// came to in a whole round does not belong to the cycle.
Block* Manager::ChooseVictim(const ThreadRecord* me) {
  if (me != nullptr && me->score.cycles()) {
    const Block* const oldest = here_.oldest();
    const bool is_stale =
        oldest != nullptr && clock_.load() - std::max(oldest->queued, oldest->used.load()) > counters_.managed_bytes;
    int skipped = 0;
    for (Block* block = is_stale ? nullptr : here_.newest(); block != nullptr && skipped < kSkippedMax;
         block = block->older, ++skipped) {
      if (!IsHeld(block)) return block;
    }
  }
  // Uses are not told when they happen: a block that was used since it was queued goes to the end now.
  for (size_t looks = 2 * here_.size(); looks > 0; --looks) {
    Block* const block = here_.oldest();
    const uint64_t used = block->used.load(std::memory_order_relaxed);
    const bool is_held = IsHeld(block);
    if (!is_held && used <= block->queued) return block;
    here_.Remove(block);
    block->queued = is_held ? clock_.load() : used;
    here_.PushNewest(block);
  }
  return nullptr;
}

bool Manager::Evict(Block* block, Actions* actions) {
  uint64_t seen = block->word.load();
  do {
    if ((seen & Block::kGuards) != 0) return false;
  } while (!block->word.compare_exchange_weak(seen, 0));
  here_.Remove(block);
  ++counters_.evictions;
  if ((seen & Block::kDirty) == 0) {
    Drop(block);
    return true;
  }
  block->state = BlockState::kLeaving;
  leaving_ += block->bytes;
  actions->writes.push_back(block);
  return true;
}

Block* Manager::OldestAhead() {
  Block* block = ahead_.oldest();
  while (block != nullptr && IsHeld(block)) block = block->newer;
  return block;
}

void Manager::Decay() {
  uint64_t bytes = BytesToDecay(
      AheadLimit(), budget_, counters_.managed_bytes - std::min(counters_.managed_bytes, used_), touched_, ahead_used_);
  touched_ = 0;
  for (Block* block; bytes > 0 && (block = OldestAhead()) != nullptr;) {
    bytes -= std::min(bytes, block->bytes);
    DropAhead(block);
  }
}

void Manager::FetchAhead(ThreadRecord* me, Actions* actions) {
  if (!me->score.predicts()) return;
  const Block* at = FindLocked(me->frontier);
  for (int step = 0; at != nullptr && step < kStepsMax; ++step) {
    if (at->trust.load(std::memory_order_relaxed) == 0) return;
    Block* const next = FindLocked(at->next.load(std::memory_order_relaxed));
    if (next == nullptr || next == me->last.load(std::memory_order_relaxed)) return;
    if (next->state == BlockState::kRemote) {
      if (!next->stored || !queue_.empty()) return;
      const uint64_t limit = AheadLimit();
      const bool fits = ahead_used_ + next->bytes <= limit || (ahead_used_ == 0 && next->bytes <= Limit() / 4);
      if (limit == 0 || !fits) return;
      const uint64_t batch = std::min(kBatchBytes, limit - std::min(limit, ahead_used_));
      (void)MakeRoom(std::max(batch, next->bytes), me, /*for_ahead=*/true, actions);
      if (used_ + next->bytes > Limit() || !BeginAhead(next, actions)) return;
    }
    me->frontier = next->number;
    at = next;
  }
}

bool Manager::BeginAhead(Block* block, Actions* actions) {
  if (!TakeData(block)) return false;
  block->state = BlockState::kLoading;
  block->ahead = true;
  read_errors_.erase(block);
  ahead_used_ += block->bytes;
  ++ahead_reads_;
  counters_.ahead_bytes += block->bytes;
  clock_.fetch_add(block->bytes);
  actions->reads.push_back(block);
  return true;
}

void Manager::Start(Block* block) {
  if ((block->word.load() & Block::kUsable) != 0 || is_parents()) return;
  Actions actions;
  {
    MutexLock lock(&mu_);
    if (block->state != BlockState::kRemote || !block->stored || !queue_.empty()) return;
    if (MakeRoom(block->bytes, records_.Mine(), /*for_ahead=*/true, &actions)) (void)BeginAhead(block, &actions);
  }
  Begin(actions);
}

}  // namespace nram
