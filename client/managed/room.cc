// Eviction of blocks, and blocks that are fetched ahead.

#include <glog/logging.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/managed/manager.h"

namespace nram {
namespace {

// Bytes under way that are fetched ahead, or written to make room for them: enough to keep a pool busy.
constexpr uint64_t kBatchBytes = kMiB;
constexpr uint64_t kSpareBytes = 256 * kKiB;
// The shortest kept buffer for a part of a run; for less, fresh pages are taken.
constexpr uint64_t kPieceBytes = 128 * kKiB;
// Steps of one look along the order. The next look goes on from there.
constexpr int kStepsMax = 128;
// Of the newest blocks, which guards may hold.
constexpr int kSkippedMax = 64;

bool IsHeld(const Block* block) { return (block->word.load() & Block::kGuards) != 0; }

}  // namespace

uint64_t Manager::Limit() const { return budget_ - std::min(budget_ / 2, MetadataBytes()); }

uint64_t Manager::KeptLimit() const { return Limit() - std::min(Limit(), used_); }

uint64_t Manager::AheadLimit() const {
  if (ahead_percent_ == 0) return 0;
  const uint64_t least = std::min(2 * kSpareBytes, Limit() / 4);
  return std::max(Limit() * ahead_percent_ / 100, least);
}

bool Manager::TakeData(std::vector<Block*> blocks) {
  SortByOffset(&blocks);
  for (BlockRun rest = blocks; !rest.empty();) {
    const size_t count = TakeDataOfRun(rest);
    rest.remove_prefix(count);
    if (count > 0) continue;
    for (Block* const block : BlockRun(blocks).first(blocks.size() - rest.size())) {
      if (block->fixed) continue;
      memory_.GiveBuffer(std::exchange(block->data, nullptr), block->bytes, KeptLimit());
    }
    return false;
  }
  memory_.Shrink(KeptLimit());
  return true;
}

size_t Manager::TakeDataOfRun(BlockRun blocks) {
  if (blocks[0]->fixed) return 1;
  // Where only shorter pieces are kept, fresh pages are taken, and the shortest pieces go: else all would come to be in
  // pieces.
  const uint64_t kept = memory_.longest_kept_bytes();
  const uint64_t most = kept < std::max(kPieceBytes, blocks[0]->bytes) ? kRunBytes : std::min(kept, kRunBytes);
  BlockRun run = FirstRun(blocks, most, MayBeNeighboursHere);
  std::byte* data = memory_.TakeBuffer(BytesOf(run));
  if (data == nullptr && run.size() > 1) {
    run = run.first(1);
    data = memory_.TakeBuffer(run[0]->bytes);
  }
  if (data == nullptr) return 0;
  for (Block* const block : run) block->data = std::exchange(data, data + block->bytes);
  return run.size();
}

void Manager::GiveData(Block* block) {
  used_ -= block->bytes;
  if (block->fixed) {
    LocalMemory::DropPages(block->data, block->bytes);
    return;
  }
  memory_.GiveBuffer(block->data, block->bytes, KeptLimit());
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
  // Twice as much at a time, so that neighbours go together.
  if (used_ - leaving_ + spare <= Limit()) return;
  while (used_ - leaving_ + 2 * spare > Limit() && leaving_ < kLeavingBytesMax) {
    Block* const victim = ChooseVictim(me);
    if (victim == nullptr || (victim->word.load() & Block::kDirty) == 0) return;
    (void)Evict(victim, actions);
  }
}

// The one that was not used for the longest time. If the thread runs in a cycle, the newest: all others are needed
// before it. Blocks unused in a whole round do not belong to the cycle.
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
  // Uses are not told when they happen: a block that was used since it was queued is moved to the end now.
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
  // Blocks that are not used any more may exceed the share. They would keep all others from being fetched.
  if (touched_ == 0) bytes = std::max(bytes, ahead_used_ - std::min(ahead_used_, AheadLimit()));
  touched_ = 0;
  for (Block* block; bytes > 0 && (block = OldestAhead()) != nullptr;) {
    bytes -= std::min(bytes, block->bytes);
    DropAhead(block);
  }
}

void Manager::FetchAhead(ThreadRecord* me, bool missed, Actions* actions) {
  if (ahead_percent_ == 0 || !me->score.predicts()) return;
  const uint64_t step = AheadStep();
  // A missed block is in front of all that is ahead: a step of its successors is needed sooner.
  const uint64_t limit = AheadLimit() + (missed ? step : 0);
  // Else each touch would fetch one block, by a request of its own.
  if (ahead_used_ > 0 && ahead_used_ + step > limit) return;
  std::vector<Block*> batch;
  const Block* at = FindLocked(me->frontier);
  for (int steps = 0; at != nullptr && steps < kStepsMax; ++steps) {
    if (at->trust.load(std::memory_order_relaxed) == 0) break;
    Block* const next = FindLocked(at->next.load(std::memory_order_relaxed));
    if (next == nullptr || next == me->last.load(std::memory_order_relaxed)) break;
    // A block of a run that failed is read alone, by the thread that needs it.
    if (next->state == BlockState::kRemote && !read_errors_.contains(next)) {
      if (!next->stored || wanting_ > 0) break;
      if (ahead_used_ + next->bytes > limit && (ahead_used_ > 0 || next->bytes > Limit() / 4)) break;
      if (batch.empty()) {
        // Dirty blocks are evicted in steps too. The limit is two steps more than are used now, so that pieces of
        // buffers are kept until they are whole.
        const uint64_t share = RoundDown(limit - std::min(limit, ahead_used_), step) + 2 * step;
        (void)MakeRoom(std::max(std::min(kBatchBytes, share), next->bytes), me, /*for_ahead=*/true, actions);
        // The end of a write gives room for a step.
        if (ahead_used_ > 0 && leaving_ > 0 && used_ + step > Limit()) break;
      }
      // A message of the pool is left to the next batch, if not all of it would be in this one.
      if (!batch.empty() && next->offset % kRunBytes == 0 && ahead_used_ + kRunBytes > limit) break;
      if (used_ + next->bytes > Limit()) break;
      MarkAhead(next);
      batch.push_back(next);
    }
    me->frontier = next->number;
    at = next;
  }
  if (!batch.empty()) BeginAhead(batch, actions);
}

void Manager::MarkAhead(Block* block) {
  block->state = BlockState::kLoading;
  used_ += block->bytes;
  ahead_used_ += block->bytes;
}

void Manager::BeginAhead(const std::vector<Block*>& blocks, Actions* actions) {
  const bool has_data = TakeData(blocks);
  for (Block* const block : blocks) {
    if (!has_data) {
      block->state = BlockState::kRemote;
      used_ -= block->bytes;
      ahead_used_ -= block->bytes;
      continue;
    }
    block->ahead = true;
    read_errors_.erase(block);
    ++ahead_reads_;
    counters_.ahead_bytes += block->bytes;
    clock_.fetch_add(block->bytes);
    actions->reads.push_back(block);
  }
}

void Manager::Start(Block* block) {
  if ((block->word.load() & Block::kUsable) != 0 || is_parents()) return;
  Actions actions;
  {
    MutexLock lock(&mu_);
    if (block->state != BlockState::kRemote || !block->stored || wanting_ > 0) return;
    if (MakeRoom(block->bytes, records_.Mine(), /*for_ahead=*/true, &actions)) {
      MarkAhead(block);
      BeginAhead({block}, &actions);
    }
  }
  Begin(std::move(actions));
}

}  // namespace nram
