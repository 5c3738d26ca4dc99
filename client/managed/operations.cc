// Reads and writes of the store, and the effects of their ends.

#include <glog/logging.h>

#include <utility>

#include "client/managed/manager.h"
#include "client/managed/pending.h"

namespace nram {

std::unique_ptr<Manager::Pending> Manager::TakePending(BlockRun run) {
  std::unique_ptr<Pending> pending;
  {
    MutexLock lock(&mu_);
    ++operations_;
    if (!pendings_.empty()) {
      pending = std::move(pendings_.back());
      pendings_.pop_back();
    }
  }
  if (pending == nullptr) {
    pending = std::make_unique<Pending>();
    pending->op = store_->NewOp();
    pending->manager = this;
  }
  pending->blocks.assign(run.begin(), run.end());
  return pending;
}

void Manager::Begin(Actions actions) {
  ForEachRun(&actions.reads, [this](BlockRun run) {
    Pending* const pending = TakePending(run).release();
    store_->StartRead(pending->op.get(), run[0]->offset, {run[0]->data, BytesOf(run)}, &Manager::OnRead, pending);
  });
  ForEachRun(&actions.writes, [this](BlockRun run) {
    Pending* const pending = TakePending(run).release();
    store_->StartWrite(pending->op.get(), run[0]->offset, {run[0]->data, BytesOf(run)}, &Manager::OnWritten, pending);
  });
}

void Manager::OnRead(ManagedStore::Op*, void* context) {
  auto pending = std::unique_ptr<Pending>(static_cast<Pending*>(context));
  Manager* const manager = pending->manager;
  manager->EndPending(std::move(pending), /*is_read=*/true);
}

void Manager::OnWritten(ManagedStore::Op*, void* context) {
  auto pending = std::unique_ptr<Pending>(static_cast<Pending*>(context));
  Manager* const manager = pending->manager;
  manager->EndPending(std::move(pending), /*is_read=*/false);
}

void Manager::EndPending(std::unique_ptr<Pending> pending, bool is_read) {
  // Operations that end where they start would start others ever deeper.
  static thread_local bool begins = false;
  const absl::Status status = pending->op->Wait();  // it has ended
  Actions actions;
  uint64_t failures;
  {
    MutexLock lock(&mu_);
    if (is_read) {
      ahead_reads_ -= pending->blocks.size();
      EndReads(pending->blocks, status);
    } else {
      EndWrites(pending->blocks, status);
    }
    pendings_.push_back(std::move(pending));
    failures = counters_.failed_writes;
    if (status.ok() && !begins && !is_read) LeaveOn(&actions);
    if (status.ok() && !begins && fetches_for_ != nullptr) FetchAhead(fetches_for_, /*missed=*/false, &actions);
  }
  event_.Notify();
  while (!begins && (!actions.reads.empty() || !actions.writes.empty())) {
    begins = true;
    Begin(std::exchange(actions, {}));
    begins = false;
    // Writes that end where they start do not go on by themselves.
    MutexLock lock(&mu_);
    if (!is_read && counters_.failed_writes == failures) LeaveOn(&actions);
  }
  MutexLock lock(&mu_);
  if (--operations_ == 0) event_.Notify();  // under the lock: the manager may go
}

// One failure, however many blocks it has. Then each is tried alone, by the thread that needs it.
void Manager::EndReads(BlockRun run, const absl::Status& status) {
  if (!status.ok()) ++counters_.failed_reads;
  for (Block* const block : run) EndRead(block, status);
}

void Manager::EndWrites(BlockRun run, const absl::Status& status) {
  if (!status.ok()) {
    ++counters_.failed_writes;
    write_error_ = status;
  }
  for (Block* const block : run) EndWrite(block, status);
}

void Manager::EndRead(Block* block, const absl::Status& status) {
  const bool was_ahead = std::exchange(block->ahead, false);
  if (!status.ok()) {
    if (was_ahead) ahead_used_ -= block->bytes;
    read_errors_[block] = status;
    Drop(block);
    return;
  }
  counters_.fetched_bytes += block->bytes;
  if (was_ahead && (block->word.load() & Block::kGuards) == 0) {
    block->state = BlockState::kAhead;
    ahead_.PushNewest(block);
    return;
  }
  // A thread may wait for it since an earlier read that failed.
  if (was_ahead) NoteAheadHit(block);
  MakeUsable(block);
}

void Manager::EndWrite(Block* block, const absl::Status& status) {
  leaving_ -= block->bytes;
  if (!status.ok()) {
    block->word.fetch_or(Block::kDirty);
    MakeUsable(block);
    return;
  }
  counters_.written_bytes += block->bytes;
  block->stored = true;
  if ((block->word.load() & Block::kGuards) != 0) {
    MakeUsable(block);
  } else {
    Drop(block);
  }
}

}  // namespace nram
