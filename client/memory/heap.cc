#include "client/memory/heap.h"

#include <glog/logging.h>
#include <jemalloc/jemalloc.h>
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/signals.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr size_t kBlockBytesMax = size_t{1} << 61;
// How long unused memory is kept for the next allocation.
constexpr ssize_t kDecayMs = 1'000;
constexpr int64_t kGiveBackEveryMs = 500;

std::atomic<uint64_t> next_heap_id{1};

// jemalloc 5.3's arena_config_t, which its public header leaves out.
struct ArenaConfig {
  extent_hooks_t* extent_hooks;
  bool metadata_use_hooks;
};

// The heaps that are open, so that a thread that ends knows to which ones its caches can go back. Never destroyed:
// threads may end after everything else.
struct OpenHeaps {
  Mutex mu;
  std::map<uint64_t, Heap*> heaps ABSL_GUARDED_BY(mu);
};
OpenHeaps& GetOpenHeaps() {
  static auto* const open = new OpenHeaps();
  return *open;
}

}  // namespace

// A thread's caches: one for each heap that it has used. Kept by a pthread key rather than as a thread_local object,
// because other objects that are destroyed later at the thread's end may free blocks still.
struct ThreadCaches {
  struct Entry {
    uint64_t heap;
    unsigned cache;
  };
  std::vector<Entry> entries;

  // Null once the thread's end has come that far.
  static ThreadCaches* Mine();

 private:
  static void AtThreadEnd(void* caches);
};

namespace {
thread_local ThreadCaches* my_caches = nullptr;
thread_local bool my_caches_are_gone = false;
}  // namespace

ThreadCaches* ThreadCaches::Mine() {
  if (my_caches != nullptr || my_caches_are_gone) return my_caches;
  static const pthread_key_t key = [] {
    pthread_key_t made;
    CHECK_EQ(pthread_key_create(&made, AtThreadEnd), 0);
    return made;
  }();
  my_caches = new ThreadCaches();
  pthread_setspecific(key, my_caches);
  return my_caches;
}

void ThreadCaches::AtThreadEnd(void* caches) {
  auto* const mine = static_cast<ThreadCaches*>(caches);
  my_caches = nullptr;
  my_caches_are_gone = true;
  for (const Entry& entry : mine->entries) {
    OpenHeaps& open = GetOpenHeaps();
    MutexLock lock(&open.mu);
    if (auto found = open.heaps.find(entry.heap); found != open.heaps.end()) found->second->ReturnCache(entry.cache);
  }
  delete mine;
}

// The functions by which jemalloc gets and returns address ranges. `hooks` comes first, so that a pointer to it is a
// pointer to this struct.
struct Heap::Hooks {
  extent_hooks_t hooks;
  Heap* heap;

  static Heap* Of(extent_hooks_t* hooks) { return reinterpret_cast<Hooks*>(hooks)->heap; }
  static void* Alloc(extent_hooks_t* hooks, void* where, size_t size, size_t align, bool* zero, bool* commit,
                     unsigned) {
    if (where != nullptr) return nullptr;
    Heap* const heap = Of(hooks);
    const absl::StatusOr<std::byte*> extent =
        heap->memory_->Map({.length = size, .align = align, .owner = SegmentOwner::kHeap});
    MutexLock lock(&heap->mu_);
    heap->extent_error_ = extent.status();
    if (!extent.ok()) return nullptr;
    *zero = *commit = true;
    return *extent;
  }
  // Address ranges are kept for the next time; their contents are dropped (PurgeForced).
  static bool Dalloc(extent_hooks_t*, void*, size_t, bool, unsigned) { return true; }
  static bool PurgeForced(extent_hooks_t* hooks, void* address, size_t, size_t offset, size_t length, unsigned) {
    Heap* const heap = Of(hooks);
    if (heap->closing_) return true;  // all memory is unmapped at once
    std::byte* const begin = static_cast<std::byte*>(address) + offset;
    // jemalloc's pages are smaller than ours may be: "no" says that its edges are not zeros.
    const uint64_t page_bytes = heap->memory_->options().page_bytes;
    const bool whole = reinterpret_cast<uintptr_t>(begin) % page_bytes == 0 && length % page_bytes == 0;
    return !heap->memory_->Drop(begin, length).ok() || !whole;
  }
  static bool Split(extent_hooks_t*, void*, size_t, size_t, size_t, bool, unsigned) { return false; }
  static bool Merge(extent_hooks_t* hooks, void* a, size_t, void* b, size_t, bool, unsigned) {
    return !Of(hooks)->memory_->SameSegment(a, b);
  }
};

Heap::Heap(Memory* memory, uint64_t local_below)
    : memory_(memory), local_below_(local_below), id_(next_heap_id++), hooks_(new Hooks()) {
  hooks_->heap = this;
  hooks_->hooks.alloc = Hooks::Alloc;
  hooks_->hooks.dalloc = Hooks::Dalloc;
  hooks_->hooks.purge_forced = Hooks::PurgeForced;
  hooks_->hooks.split = Hooks::Split;
  hooks_->hooks.merge = Hooks::Merge;
}

absl::StatusOr<std::unique_ptr<Heap>> Heap::New(Memory* memory, uint64_t local_below) {
  auto heap = std::unique_ptr<Heap>(new Heap(memory, local_below));
  NRAM_RETURN_IF_ERROR(heap->Start());
  return heap;
}

absl::Status Heap::Start() {
  // Plain "arenas.create" would keep jemalloc's own bookkeeping in our extents as well, and ask for the first of them
  // under a lock that any thread of the process may need.
  ArenaConfig config = {&hooks_->hooks, /*metadata_use_hooks=*/false};
  size_t size = sizeof(arena_);
  if (const int error = mallctl("experimental.arenas_create_ext", &arena_, &size, &config, sizeof(config));
      error != 0) {
    return ErrnoStatus(error, "jemalloc (5.3 is needed): experimental.arenas_create_ext");
  }
  ssize_t decay_ms = kDecayMs;
  if (const int error = mallctl(absl::StrCat("arena.", arena_, ".dirty_decay_ms").c_str(), nullptr, nullptr, &decay_ms,
                                sizeof(decay_ms));
      error != 0) {
    return ErrnoStatus(error, "jemalloc: dirty_decay_ms");
  }
  const SignalsBlocked quiet;
  giver_ = std::thread([this] { GiveBackUnused(); });
  OpenHeaps& open = GetOpenHeaps();
  MutexLock lock(&open.mu);
  open.heaps[id_] = this;
  return absl::OkStatus();
}

Heap::~Heap() {
  {
    OpenHeaps& open = GetOpenHeaps();
    MutexLock lock(&open.mu);
    open.heaps.erase(id_);
  }
  closing_ = true;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    stop_.Signal();
  }
  if (!giver_.joinable()) return;
  giver_.join();
  MutexLock lock(&mu_);
  for (unsigned cache : caches_) (void)mallctl("tcache.destroy", nullptr, nullptr, &cache, sizeof(cache));
  (void)mallctl(absl::StrCat("arena.", arena_, ".destroy").c_str(), nullptr, nullptr, nullptr, 0);
}

// jemalloc gives memory back by itself only while threads allocate or free.
void Heap::GiveBackUnused() {
  pthread_setname_np(pthread_self(), "nram-heap");
  const std::string decay = absl::StrCat("arena.", arena_, ".decay");
  int rounds = 0;
  MutexLock lock(&mu_);
  while (!stopping_) {
    stop_.WaitUntil(&mu_, DeadlineAfterMs(kGiveBackEveryMs));
    // The decay is spread over its time, and a little longer.
    if (freed_.exchange(false)) rounds = 2 * kDecayMs / kGiveBackEveryMs;
    if (rounds == 0 || stopping_) continue;
    --rounds;
    mu_.Unlock();
    (void)mallctl(decay.c_str(), nullptr, nullptr, nullptr, 0);
    mu_.Lock();
  }
}

int Heap::CacheFlag() {
  ThreadCaches* const mine = ThreadCaches::Mine();
  if (mine == nullptr) return MALLOCX_TCACHE_NONE;
  for (const auto& entry : mine->entries) {
    if (entry.heap == id_) return MALLOCX_TCACHE(entry.cache);
  }
  unsigned cache = 0;
  {
    MutexLock lock(&mu_);
    if (!idle_caches_.empty()) {
      cache = idle_caches_.back();
      idle_caches_.pop_back();
      mine->entries.push_back({id_, cache});
      return MALLOCX_TCACHE(cache);
    }
  }
  size_t size = sizeof(cache);
  if (mallctl("tcache.create", &cache, &size, nullptr, 0) != 0) return MALLOCX_TCACHE_NONE;
  MutexLock lock(&mu_);
  caches_.push_back(cache);
  mine->entries.push_back({id_, cache});
  return MALLOCX_TCACHE(cache);
}

void Heap::ReturnCache(unsigned cache) {
  (void)mallctl("tcache.flush", nullptr, nullptr, &cache, sizeof(cache));
  MutexLock lock(&mu_);
  idle_caches_.push_back(cache);
}

std::atomic<const void*>& Heap::FreedLately(const void* block) {
  const auto bits = reinterpret_cast<uintptr_t>(block) / 8 * 0x9E3779B97F4A7C15;
  return freed_lately_[bits >> (64 - std::bit_width(kFreedLately - 1))];
}

void* Heap::Hand(void* block) {
  std::atomic<const void*>& freed = FreedLately(block);
  if (freed.load(std::memory_order_relaxed) == block) freed.store(nullptr, std::memory_order_relaxed);
  return block;
}

bool Heap::IsLocal(const void* block) const { return local_below_ > 0 && !memory_->IsHeap(block); }

absl::StatusOr<void*> Heap::Allocate(size_t size, size_t align, bool zeroed) {
  if (!std::has_single_bit(align)) {
    return absl::InvalidArgumentError(absl::StrCat("alignment ", align, ": expected a power of two"));
  }
  if (size > kBlockBytesMax || align > kBlockBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a block of ", size, " bytes: at most 2^61"));
  }
  // Blocks are aligned as the C library's; jemalloc's smallest ones would not be.
  size = std::max(size, alignof(std::max_align_t));
  if (std::max(size, align) < local_below_) {
    void* const block = align > alignof(std::max_align_t) ? aligned_alloc(align, RoundUp(size, align))
                                                          : (zeroed ? calloc(1, size) : malloc(size));
    if (block == nullptr) return absl::ResourceExhaustedError("out of local memory");
    if (zeroed && align > alignof(std::max_align_t)) memset(block, 0, size);
    return block;
  }
  const int flags =
      MALLOCX_ARENA(arena_) | CacheFlag() | (align > 1 ? MALLOCX_ALIGN(align) : 0) | (zeroed ? MALLOCX_ZERO : 0);
  if (void* const block = mallocx(size, flags); block != nullptr) return Hand(block);
  return NoMemory(size);
}

absl::StatusOr<void*> Heap::Reallocate(void* block, size_t size) {
  if (block == nullptr) return Allocate(size);
  if (size > kBlockBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a block of ", size, " bytes: at most 2^61"));
  }
  if (IsLocal(block) && !memory_->Contains(block)) {
    NRAM_ASSIGN_OR_RETURN(void* const moved, Allocate(size));
    memcpy(moved, block, std::min(size, malloc_usable_size(block)));
    free(block);
    return moved;
  }
  CheckLive("nram_realloc", block);
  // The free is noted before another thread can get the old block, and undone if the block does not move.
  std::atomic<const void*>& freed = FreedLately(block);
  freed.store(block, std::memory_order_relaxed);
  void* const moved = rallocx(block, std::max(size, alignof(std::max_align_t)), MALLOCX_ARENA(arena_) | CacheFlag());
  if (moved == nullptr) {
    Hand(block);
    return NoMemory(size);
  }
  freed_.store(true, std::memory_order_relaxed);
  return Hand(moved);
}

absl::Status Heap::NoMemory(size_t size) {
  MutexLock lock(&mu_);
  return absl::ResourceExhaustedError(absl::StrCat(
      "a block of ", size,
      " bytes: ", extent_error_.ok() ? "no memory for jemalloc's bookkeeping" : std::string(extent_error_.message())));
}

void Heap::CheckLive(const char* function, const void* block) {
  if (!memory_->IsHeap(block)) {
    fprintf(stderr, "%s(%p): this is no block of this handle's heap%s\n", function, block,
            memory_->Contains(block) ? ", but of a mapping: nram_munmap() is for those" : "");
    abort();
  }
  if (FreedLately(block).load(std::memory_order_relaxed) == block) {
    fprintf(stderr, "%s(%p): this block was freed before\n", function, block);
    abort();
  }
}

void Heap::Free(void* block) {
  if (block == nullptr) return;
  if (IsLocal(block) && !memory_->Contains(block)) {
    free(block);
    return;
  }
  CheckLive("nram_free", block);
  const int error = errno;
  FreedLately(block).store(block, std::memory_order_relaxed);
  if (!freed_.load(std::memory_order_relaxed)) freed_.store(true, std::memory_order_relaxed);
  dallocx(block, CacheFlag());
  errno = error;
}

size_t Heap::UsableSize(const void* block) const {
  if (block == nullptr) return 0;
  if (IsLocal(block)) return malloc_usable_size(const_cast<void*>(block));
  return sallocx(block, 0);
}

}  // namespace nram
