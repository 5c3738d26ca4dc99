#include "client/memory/heap.h"

#include <glog/logging.h>
#include <jemalloc/jemalloc.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr size_t kBlockBytesMax = size_t{1} << 61;
// How long memory that is not used any more is kept for the next allocation.
constexpr ssize_t kDecayMs = 1'000;
constexpr int64_t kGiveBackEveryMs = 500;

std::atomic<uint64_t> next_heap_id{1};

// jemalloc 5.3's arena_config_t, which its public header leaves out.
struct ArenaConfig {
  extent_hooks_t* extent_hooks;
  bool metadata_use_hooks;
};

// A thread's caches: for each heap it has allocated from. What a heap that is gone has left here is harmless.
struct ThreadCaches {
  struct Entry {
    uint64_t heap;
    unsigned cache;
  };
  std::vector<Entry> entries;
};
thread_local ThreadCaches thread_caches;

}  // namespace

// What jemalloc calls to get and give back address ranges; `hooks` comes first, so that a pointer to it is one to this.
struct Heap::Hooks {
  extent_hooks_t hooks;
  Heap* heap;

  static Heap* Of(extent_hooks_t* hooks) { return reinterpret_cast<Hooks*>(hooks)->heap; }
  static void* Alloc(extent_hooks_t* hooks, void* where, size_t size, size_t align, bool* zero, bool* commit,
                     unsigned) {
    if (where != nullptr) return nullptr;
    Heap* const heap = Of(hooks);
    const absl::StatusOr<std::byte*> extent = heap->memory_->Map({.length = size, .align = align});
    if (!extent.ok()) {
      MutexLock lock(&heap->mu_);
      heap->extent_error_ = extent.status();
      return nullptr;
    }
    *zero = *commit = true;
    return *extent;
  }
  // Address ranges are kept for the next time; their contents go (PurgeForced).
  static bool Dalloc(extent_hooks_t*, void*, size_t, bool, unsigned) { return true; }
  static bool PurgeForced(extent_hooks_t* hooks, void* address, size_t, size_t offset, size_t length, unsigned) {
    return !Of(hooks)->memory_->Drop(static_cast<std::byte*>(address) + offset, length).ok();
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
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  giver_ = std::thread([this] { GiveBackUnused(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return absl::OkStatus();
}

Heap::~Heap() {
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

// jemalloc gives back by itself only while somebody allocates or frees.
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
  for (const auto& entry : thread_caches.entries) {
    if (entry.heap == id_) return MALLOCX_TCACHE(entry.cache);
  }
  unsigned cache = 0;
  size_t size = sizeof(cache);
  if (mallctl("tcache.create", &cache, &size, nullptr, 0) != 0) return MALLOCX_TCACHE_NONE;
  MutexLock lock(&mu_);
  caches_.push_back(cache);
  thread_caches.entries.push_back({id_, cache});
  return MALLOCX_TCACHE(cache);
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

bool Heap::IsLocal(const void* block) const { return local_below_ > 0 && !memory_->Contains(block); }

absl::StatusOr<void*> Heap::Allocate(size_t size, size_t align, bool zeroed) {
  if (!std::has_single_bit(align)) {
    return absl::InvalidArgumentError(absl::StrCat("alignment ", align, ": expected a power of two"));
  }
  if (size > kBlockBytesMax || align > kBlockBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a block of ", size, " bytes: at most 2^61"));
  }
  size = std::max<size_t>(size, 1);
  if (size < local_below_) {
    void* const block = align > alignof(std::max_align_t) ? aligned_alloc(align, (size + align - 1) / align * align)
                                                          : (zeroed ? calloc(1, size) : malloc(size));
    if (block == nullptr) return absl::ResourceExhaustedError("out of local memory");
    if (zeroed && align > alignof(std::max_align_t)) memset(block, 0, size);
    return block;
  }
  const int flags =
      MALLOCX_ARENA(arena_) | CacheFlag() | (align > 1 ? MALLOCX_ALIGN(align) : 0) | (zeroed ? MALLOCX_ZERO : 0);
  if (void* const block = mallocx(size, flags); block != nullptr) return Hand(block);
  MutexLock lock(&mu_);
  return absl::ResourceExhaustedError(absl::StrCat(
      "a block of ", size, " bytes: ", extent_error_.ok() ? "no memory" : std::string(extent_error_.message())));
}

absl::StatusOr<void*> Heap::Reallocate(void* block, size_t size) {
  if (block == nullptr) return Allocate(size);
  if (size > kBlockBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a block of ", size, " bytes: at most 2^61"));
  }
  if (IsLocal(block)) {
    NRAM_ASSIGN_OR_RETURN(void* const moved, Allocate(size));
    memcpy(moved, block, std::min(size, malloc_usable_size(block)));
    free(block);
    return moved;
  }
  if (!memory_->Contains(block) || FreedLately(block).load(std::memory_order_relaxed) == block) Free(block);  // tells
  void* const moved = rallocx(block, std::max<size_t>(size, 1), MALLOCX_ARENA(arena_) | CacheFlag());
  if (moved == nullptr) {
    MutexLock lock(&mu_);
    return absl::ResourceExhaustedError(absl::StrCat(
        "a block of ", size, " bytes: ", extent_error_.ok() ? "no memory" : std::string(extent_error_.message())));
  }
  freed_.store(true, std::memory_order_relaxed);
  return Hand(moved);
}

void Heap::Free(void* block) {
  if (block == nullptr) return;
  if (!memory_->Contains(block)) {
    if (local_below_ > 0) {
      free(block);  // the C library checks it
      return;
    }
    fprintf(stderr, "nram_free(%p): this address is not in nram memory\n", block);
    abort();
  }
  std::atomic<const void*>& freed = FreedLately(block);
  if (freed.exchange(block, std::memory_order_relaxed) == block) {
    fprintf(stderr, "nram_free(%p): this block was freed before\n", block);
    abort();
  }
  if (!freed_.load(std::memory_order_relaxed)) freed_.store(true, std::memory_order_relaxed);
  dallocx(block, CacheFlag());
}

size_t Heap::UsableSize(const void* block) const {
  if (block == nullptr) return 0;
  if (IsLocal(block)) return malloc_usable_size(const_cast<void*>(block));
  return sallocx(block, 0);
}

}  // namespace nram
