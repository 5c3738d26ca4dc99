#include "client/managed/manager.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/managed/pending.h"

namespace nram {
namespace {

// Of the region, for which room is reserved at a time.
constexpr uint64_t kGrowBytes = 16 * kMiB;
constexpr int kEndTries = 2'000;  // one each millisecond

}  // namespace

absl::StatusOr<std::unique_ptr<Manager>> Manager::New(std::unique_ptr<ManagedStore> store,
                                                      const ManagedOptions& options) {
  auto manager = std::unique_ptr<Manager>(new Manager(std::move(store), options));
  NRAM_RETURN_IF_ERROR(manager->SetBudget(options.budget_bytes));
  NRAM_RETURN_IF_ERROR(manager->SetAhead(options.ahead_percent));
  return manager;
}

Manager::Manager(std::unique_ptr<ManagedStore> store, const ManagedOptions& options)
    : store_(std::move(store)),
      wait_ms_(options.wait_ms),
      forks_(ForkCount()),
      budget_(options.budget_bytes),
      waits_(options.waits),
      ahead_percent_(options.ahead_percent) {
  CHECK_EQ(kPageBytes % store_->unit_bytes(), 0);
}

Manager::~Manager() {
  if (is_parents()) {
    // Their ends would be told to servers, and wait for threads that are not here.
    (void)store_.release();
    for (std::unique_ptr<Pending>& pending : pendings_) (void)pending.release();
    return;
  }
  while (true) {
    const uint32_t seen = event_.Prepare();
    {
      MutexLock lock(&mu_);
      if (operations_ == 0) break;
    }
    event_.WaitUntil(seen, DeadlineAfterMs(1'000));
  }
}

absl::Status Manager::CheckMine() const {
  return is_parents() ? absl::UnimplementedError("managed memory belongs to the parent of fork()") : absl::OkStatus();
}

absl::Status Manager::SetBudget(uint64_t bytes) {
  NRAM_RETURN_IF_ERROR(CheckMine());
  if (bytes < ManagedOptions::kLeastBudgetBytes || bytes > kRegionBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("budget of ", FormatByteSize(bytes), ": expected ",
                                                   FormatByteSize(ManagedOptions::kLeastBudgetBytes), " or more"));
  }
  Actions actions;
  {
    MutexLock lock(&mu_);
    budget_ = bytes;
    (void)MakeRoom(0, nullptr, /*for_ahead=*/false, &actions);
    memory_.Shrink(KeptLimit());
  }
  Begin(std::move(actions));
  event_.Notify();
  return absl::OkStatus();
}

void Manager::SetWaits(bool waits) {
  if (is_parents()) return;
  MutexLock lock(&mu_);
  waits_ = waits;
}

absl::Status Manager::SetAhead(uint32_t percent) {
  NRAM_RETURN_IF_ERROR(CheckMine());
  if (percent > 50) return absl::InvalidArgumentError(absl::StrCat(percent, " % ahead: expected 0 to 50"));
  MutexLock lock(&mu_);
  ahead_percent_ = percent;
  return absl::OkStatus();
}

Block* Manager::FindLocked(uint32_t number) {
  if (number == 0 || number > blocks_.size()) return nullptr;
  Block* const block = &blocks_[number - 1];
  return block->state == BlockState::kFree ? nullptr : block;
}

Block* Manager::AddBlockLocked() {
  if (!free_numbers_.empty()) {
    Block* const block = &blocks_[free_numbers_.back() - 1];
    free_numbers_.pop_back();
    return block;
  }
  blocks_.emplace_back();
  blocks_.back().number = static_cast<uint32_t>(blocks_.size());
  return &blocks_.back();
}

absl::StatusOr<uint64_t> Manager::TakeOffset(uint64_t bytes) {
  {
    MutexLock lock(&mu_);
    if (const std::optional<uint64_t> offset = offsets_.Take(bytes)) return *offset;
  }
  MutexLock grow(&grow_mu_);
  uint64_t end;
  {
    MutexLock lock(&mu_);
    if (const std::optional<uint64_t> offset = offsets_.Take(bytes)) return *offset;
    end = grown_;
  }
  uint64_t step = RoundUp(std::max(bytes, kGrowBytes), kSpanBytes);
  absl::Status status = store_->Reserve(end, step);
  if (absl::IsResourceExhausted(status) && step > RoundUp(bytes, kSpanBytes)) {
    step = RoundUp(bytes, kSpanBytes);
    status = store_->Reserve(end, step);
  }
  NRAM_RETURN_IF_ERROR(Annotate(status, absl::StrCat("room for ", FormatByteSize(bytes), " of managed memory")));
  MutexLock lock(&mu_);
  grown_ = end + step;
  offsets_.Give(end, step);
  return *offsets_.Take(bytes);
}

absl::StatusOr<Block*> Manager::NewBlock(uint64_t bytes, bool fixed, bool is_pack) {
  bytes = RoundUp(bytes, kPageBytes);
  NRAM_ASSIGN_OR_RETURN(const uint64_t offset, TakeOffset(bytes));
  MutexLock lock(&mu_);
  std::byte* const data = fixed ? memory_.TakeFixed(bytes) : nullptr;
  if (fixed && data == nullptr) {
    offsets_.Give(offset, bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("no address space is left in this process for ", FormatByteSize(bytes), " (is ulimit -v set?)"));
  }
  Block* const block = AddBlockLocked();
  memory_.Shrink(KeptLimit());  // bookkeeping may have grown
  block->state = BlockState::kRemote;
  block->fixed = fixed;
  block->stored = block->ahead = block->open = false;
  block->is_pack = is_pack;
  block->filled = block->objects = 0;
  block->bytes = bytes;
  block->offset = offset;
  block->data = data;
  block->next.store(0, std::memory_order_relaxed);
  block->trust.store(0, std::memory_order_relaxed);
  counters_.managed_bytes += bytes;
  return block;
}

absl::StatusOr<Manager::Object> Manager::Create(uint64_t bytes, uint64_t alignment, bool fixed) {
  NRAM_RETURN_IF_ERROR(CheckMine());
  if (bytes == 0 || bytes > kObjectBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("an object of ", bytes, " bytes: expected 1 to ", FormatByteSize(kObjectBytesMax)));
  }
  if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("alignment ", alignment, ": expected a power of two up to ", kAlignmentMax));
  }
  Object object;
  if (bytes <= kSmallBytes) {
    NRAM_ASSIGN_OR_RETURN(object, CreateInPack(bytes, alignment, fixed));
  } else {
    NRAM_ASSIGN_OR_RETURN(object.block, NewBlock(bytes, fixed, /*is_pack=*/false));
  }
  {
    MutexLock lock(&mu_);
    ++objects_;
  }
  const absl::Status status = Hold(object.block, /*writes=*/true);
  if (status.ok()) return object;
  Delete(object);
  return status;
}

absl::StatusOr<Manager::Object> Manager::CreateInPack(uint64_t bytes, uint64_t alignment, bool fixed) {
  {
    MutexLock lock(&mu_);
    if (Block* const pack = open_packs_[fixed]; pack != nullptr) {
      const uint64_t begin = RoundUp(pack->filled, alignment);
      if (begin + bytes <= kPackBytes) {
        pack->filled = static_cast<uint32_t>(begin + bytes);
        ++pack->objects;
        return Object{pack, begin};
      }
    }
  }
  NRAM_ASSIGN_OR_RETURN(Block* const pack, NewBlock(kPackBytes, fixed, /*is_pack=*/true));
  Block* before;
  {
    MutexLock lock(&mu_);
    before = std::exchange(open_packs_[fixed], pack);
    pack->open = true;
    pack->filled = static_cast<uint32_t>(bytes);
    pack->objects = 1;
    if (before != nullptr) before->open = false;
    if (before != nullptr && before->objects > 0) before = nullptr;
  }
  if (before != nullptr) FreeBlock(before);
  return Object{pack, 0};
}

bool Manager::LeaveBlock(Block* block) {
  if (!block->is_pack) return true;
  CHECK_GT(block->objects, 0u) << "a managed object was destroyed twice";
  if (--block->objects > 0) return false;
  if (block->open) block->filled = 0;
  return !block->open;
}

void Manager::Delete(const Object& object) {
  if (is_parents()) return;
  bool is_free, ends;
  {
    MutexLock lock(&mu_);
    is_free = LeaveBlock(object.block);
    ends = --objects_ == 0 && ends_with_last_;
  }
  if (is_free) FreeBlock(object.block);
  if (ends) store_->End();
}

void Manager::EndWithLastObject() {
  if (is_parents()) return;
  // The program may end in a signal handler: then a thread may have the lock for ever.
  for (int tries = 0; tries < kEndTries; ++tries) {
    if (mu_.TryLock()) {
      ends_with_last_ = true;
      const bool ends = objects_ == 0;
      mu_.Unlock();
      if (ends) store_->End();
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Manager::FreeBlock(Block* block) {
  while (true) {
    const uint32_t seen = event_.Prepare();
    {
      MutexLock lock(&mu_);
      if (block->state != BlockState::kLoading && block->state != BlockState::kLeaving) {
        event_.Cancel();
        CHECK_EQ(block->word.load() & Block::kGuards, 0u) << "a managed object was destroyed while a guard held it";
        if (block->state == BlockState::kHere) {
          here_.Remove(block);
          GiveData(block);
        } else if (block->state == BlockState::kAhead) {
          DropAhead(block);
        }
        if (block->fixed) memory_.GiveFixed(block->data, block->bytes);
        block->data = nullptr;
        block->word.store(0);
        block->state = BlockState::kFree;
        offsets_.Give(block->offset, block->bytes);
        counters_.managed_bytes -= block->bytes;
        read_errors_.erase(block);
        free_numbers_.push_back(block->number);
        break;
      }
    }
    event_.WaitUntil(seen, DeadlineAfterMs(1'000));
  }
  event_.Notify();  // there is room
}

uint64_t Manager::MetadataBytes() const { return blocks_.size() * sizeof(Block); }

ManagedCounters Manager::counters() const {
  MutexLock lock(&mu_);
  ManagedCounters all = counters_;
  all.budget_bytes = budget_;
  all.metadata_bytes = MetadataBytes();
  all.local_bytes = used_ + memory_.kept_bytes() + all.metadata_bytes;
  all.remote_bytes = counters_.managed_bytes - std::min(counters_.managed_bytes, used_);
  return all;
}

}  // namespace nram
