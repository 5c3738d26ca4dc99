// Guards: taking them, waiting for blocks and for room.

#include <glog/logging.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/managed/manager.h"
#include "client/managed/pending.h"

namespace nram {
namespace {

// A sleeping thread looks again at least this often.
constexpr int64_t kLookMs = 1'000;
constexpr int kJoinsMax = 8;  // of reads that others have begun, and that have failed
// After this many, threads that need the room get the error.
constexpr uint64_t kWriteFailuresMax = 2;

// The blocks that are to come, each once. Wants are sorted.
std::vector<Block*> RemoteOnes(absl::Span<const Manager::Want> wants) {
  std::vector<Block*> blocks;
  for (const Manager::Want& want : wants) {
    const bool is_new = blocks.empty() || blocks.back() != want.block;
    if (want.block->state == BlockState::kRemote && is_new) blocks.push_back(want.block);
  }
  return blocks;
}

}  // namespace

absl::Status Manager::Hold(absl::Span<const Want> wants, Room room) {
  std::vector<Want> sorted(wants.begin(), wants.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Want& a, const Want& b) { return a.block->number < b.block->number; });
  return HoldSlowly(sorted, room, records_.Mine());
}

void Manager::NoteOther(Block* block, ThreadRecord* me) {
  Block* const last = me->last.load(std::memory_order_relaxed);
  if (last != nullptr) LearnOrder(last, block->number, &me->score);
  me->last.store(block, std::memory_order_relaxed);
  block->used.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

absl::Status Manager::HoldSlowly(absl::Span<const Want> wants, Room room, ThreadRecord* me) {
  NRAM_RETURN_IF_ERROR(CheckMine());
  Request request{.wants = wants, .room = room, .me = me, .deadline_ns = DeadlineAfterMs(wait_ms_)};
  {
    MutexLock lock(&mu_);
    request.write_failures = counters_.failed_writes;
  }
  for (int attempt = 0;; ++attempt) {
    Actions actions;
    while (true) {
      const uint32_t seen = event_.Prepare();
      Outcome outcome;
      {
        MutexLock lock(&mu_);
        outcome = TryHold(&request, &actions);
      }
      if (outcome != Outcome::kWait) event_.Cancel();
      if (outcome == Outcome::kHeld) break;
      Begin(std::exchange(actions, {}));
      if (outcome == Outcome::kFailed) return request.status;
      event_.WaitUntil(seen, std::min(DeadlineAfterMs(kLookMs), std::max(request.deadline_ns, DeadlineAfterMs(10))));
    }
    const absl::Status status = AwaitHere(&request, std::move(actions));
    if (status.ok()) {
      for (const Want& want : wants) NoteTouch(want.block, me);
      return status;
    }
    Undo(request);
    // A read for another thread, or ahead of use, may have failed because of a neighbouring block. The thread that
    // needs the block then reads it itself, unless others are always first.
    if (request.own_failed || attempt == kJoinsMax) return status;
  }
}

Manager::Outcome Manager::TryHold(Request* request, Actions* actions) {
  ThreadRecord* const me = request->me;
  me->awaits_room = false;
  request->loads.clear();
  request->own_failed = false;
  // Blocks that are here are not evicted while room is made for the others.
  for (const Want& want : request->wants) want.block->word.fetch_add(1);
  uint64_t need = 0;
  const Block* missed = nullptr;
  for (const Block* const block : RemoteOnes(request->wants)) {
    need += block->bytes;
    if (block->stored) missed = block;
  }
  if (missed != nullptr && !request->missed) {
    request->missed = true;
    ++counters_.misses;
    Decay();
  }
  Outcome outcome = Outcome::kHeld;
  if (need > 0 && !Admit(request, need, actions)) outcome = Judge(request, need);
  if (outcome == Outcome::kFailed && request->room == Room::kBeyondIfNeeded) {
    outcome = Outcome::kHeld;
    request->status = absl::OkStatus();
  }
  if (outcome == Outcome::kHeld && !TakeBuffers(*request)) {
    request->status = absl::ResourceExhaustedError("no address space is left in this process (is ulimit -v set?)");
    outcome = Outcome::kFailed;
  }
  if (outcome != Outcome::kWait) LeaveQueue(request);
  const bool waits = outcome == Outcome::kWait;
  if (std::exchange(request->counted_room, waits) != waits) wanting_ += waits ? 1 : -1;
  if (outcome != Outcome::kHeld) {
    for (const Want& want : request->wants) want.block->word.fetch_sub(1);
    return outcome;
  }
  const uint64_t touched = touched_;
  for (const Want& want : request->wants) CountGuard(want, request);
  if (missed != nullptr || touched_ != touched) {
    if (missed != nullptr || FindLocked(me->frontier) == nullptr) me->frontier = request->wants.back().block->number;
    fetches_for_ = me;
    FetchAhead(me, missed != nullptr, actions);
  }
  if (need > 0 || touched_ != touched) MakeSpareRoom(me, actions);
  return outcome;
}

bool Manager::Admit(Request* request, uint64_t need, Actions* actions) {
  // A thread that holds guards precedes those that hold none, since these may wait for it.
  const bool holds = request->me->guards() > 0;
  const bool is_first = holds || queue_.empty() || queue_.front() == request;
  if (is_first && MakeRoom(need, request->me, /*for_ahead=*/false, actions)) return true;
  if (!holds && !request->queued) {
    queue_.push_back(request);
    request->queued = true;
  }
  return false;
}

void Manager::LeaveQueue(Request* request) {
  if (!request->queued) return;
  queue_.erase(std::find(queue_.begin(), queue_.end(), request));
  request->queued = false;
  event_.Notify();  // another one is the first
}

Manager::Outcome Manager::Judge(Request* request, uint64_t need) {
  Outcome outcome = Outcome::kFailed;
  std::string why;
  if (need > Limit()) {
    why = "that is more than the whole budget";
  } else if (counters_.failed_writes - request->write_failures >= kWriteFailuresMax) {
    request->status = Annotate(write_error_, "making room in the budget");
  } else if (leaving_ > 0 || ahead_reads_ > 0) {
    outcome = Outcome::kWait;
  } else if (MonotonicNs() >= request->deadline_ns) {
    why = absl::StrCat("other threads have held theirs for ", wait_ms_ / 1'000, " s");
  } else if (request->queued && queue_.front() != request) {
    outcome = Outcome::kWait;
  } else if (!waits_) {
    why = "guards hold the rest, and this program does not wait for room";
  } else {
    outcome = JudgeThreads(request);
    why = "every thread that holds guards waits for room";
  }
  if (outcome == Outcome::kWait) {
    if (!std::exchange(request->counted_wait, true)) ++counters_.room_waits;
    return outcome;
  }
  if (request->status.ok()) {
    ++counters_.over_budget;
    request->status = absl::OutOfRangeError(absl::StrCat(
        "over budget: ", FormatByteSize(need), " are needed in addition to the adhered objects; budget ",
        FormatByteSize(budget_), ", here ", FormatByteSize(used_), ", bookkeeping ", FormatByteSize(MetadataBytes()),
        "; ", why, ": adhere to fewer objects at a time, or use a larger budget"));
  }
  return outcome;
}

Manager::Outcome Manager::JudgeThreads(Request* request) {
  ThreadRecord* const me = request->me;
  bool others_hold = false;
  bool others_run = false;
  records_.ForEach([&](const ThreadRecord& other) {
    if (&other == me || other.guards() == 0) return;
    others_hold = true;
    others_run |= !other.awaits_room;
  });
  // Of threads that hold guards and all wait, the last one fails, and those that hold none wait for that.
  const bool may_wait = me->guards() > 0 ? others_run : others_hold;
  me->awaits_room = may_wait;
  return may_wait ? Outcome::kWait : Outcome::kFailed;
}

bool Manager::TakeBuffers(const Request& request) {
  const std::vector<Block*> blocks = RemoteOnes(request.wants);
  if (blocks.empty()) return true;
  const uint64_t bytes = BytesOf(blocks);
  used_ += bytes;
  if (TakeData(blocks)) return true;
  used_ -= bytes;
  return false;
}

void Manager::CountGuard(const Want& want, Request* request) {
  Block* const block = want.block;
  request->me->NoteHeld();
  switch (block->state) {
    case BlockState::kRemote:
      clock_.fetch_add(block->bytes);
      if (!block->stored) {
        CHECK(want.writes);  // it is new
        block->word.fetch_or(Block::kDirty);
        MakeUsable(block);
        break;
      }
      block->state = BlockState::kLoading;
      read_errors_.erase(block);
      request->loads.push_back(block);
      break;
    case BlockState::kAhead:
      ahead_.Remove(block);
      MakeUsable(block);
      NoteAheadHit(block);
      break;
    case BlockState::kLoading:
      if (std::exchange(block->ahead, false)) NoteAheadHit(block);
      break;
    case BlockState::kHere:
    case BlockState::kLeaving:  // it is kept when it has been written
      break;
    case BlockState::kFree:
      LOG(FATAL) << "a guard of a managed object that was destroyed";
  }
}

absl::Status Manager::AwaitHere(Request* request, Actions actions) {
  std::vector<std::unique_ptr<Pending>> own;
  ForEachRun(&request->loads, [&](BlockRun run) {
    own.push_back(TakePending(run));
    store_->StartRead(own.back()->op.get(), run[0]->offset, {run[0]->data, BytesOf(run)}, nullptr, nullptr);
  });
  Begin(std::move(actions));
  absl::Status first_error;
  for (std::unique_ptr<Pending>& pending : own) {
    const absl::Status status = pending->op->Wait();
    if (first_error.ok()) first_error = status;
    MutexLock lock(&mu_);
    EndReads(pending->blocks, status);
    pendings_.push_back(std::move(pending));
    --operations_;
    event_.Notify();
  }
  request->own_failed = !first_error.ok();
  NRAM_RETURN_IF_ERROR(first_error);
  const auto is_usable = [](const Want& want) { return (want.block->word.load() & Block::kUsable) != 0; };
  while (!std::all_of(request->wants.begin(), request->wants.end(), is_usable)) {
    const uint32_t seen = event_.Prepare();
    bool waits = false;
    {
      MutexLock lock(&mu_);
      for (const Want& want : request->wants) {
        if (want.block->state == BlockState::kRemote) first_error = read_errors_[want.block];
        waits |= want.block->state != BlockState::kHere;
      }
    }
    if (!first_error.ok() || !waits) {
      event_.Cancel();
      NRAM_RETURN_IF_ERROR(first_error);
      continue;
    }
    event_.WaitUntil(seen, DeadlineAfterMs(kLookMs));
  }
  // Only now: a block is not dirty after a failed read, and another thread may have read it before this one looks.
  for (const Want& want : request->wants) {
    if (want.writes) want.block->word.fetch_or(Block::kDirty);
  }
  return absl::OkStatus();
}

void Manager::Undo(const Request& request) {
  for (const Want& want : request.wants) {
    want.block->word.fetch_sub(1);
    request.me->NoteReleased();
  }
  event_.Notify();
}

}  // namespace nram
