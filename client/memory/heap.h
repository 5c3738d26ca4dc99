#ifndef NRAM_CLIENT_MEMORY_HEAP_H_
#define NRAM_CLIENT_MEMORY_HEAP_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/memory/memory.h"

namespace nram {

struct ThreadCaches;

// malloc on nram memory: an arena of jemalloc whose extents are mappings of `memory`. jemalloc keeps its bookkeeping in
// local memory, so that allocating and freeing touch no page of the heap. Thread-safe; each thread has a cache of its
// own.
class Heap {
 public:
  // Blocks of fewer than `local_below` bytes come from the C library's malloc instead. `memory` must outlive the heap.
  static absl::StatusOr<std::unique_ptr<Heap>> New(Memory* memory, uint64_t local_below);
  // All blocks become invalid; their memory is freed with `memory`.
  ~Heap();

  // RESOURCE_EXHAUSTED: the pool is full. `align`: a power of two.
  absl::StatusOr<void*> Allocate(size_t size, size_t align = 1, bool zeroed = false);
  // `block` may be null. On an error the block is as it was.
  absl::StatusOr<void*> Reallocate(void* block, size_t size);
  // Ends the program with a message if `block` is not of this heap, or was freed before (as far as can be told).
  void Free(void* block);
  size_t UsableSize(const void* block) const;

 private:
  struct Hooks;

  explicit Heap(Memory* memory, uint64_t local_below);
  absl::Status Start();
  // This thread's cache, as a flag for mallocx: one that an ended thread has left, or a new one.
  int CacheFlag();
  // Takes back the cache of a thread that ends, for the next thread.
  void ReturnCache(unsigned cache);
  friend struct ThreadCaches;
  void* Hand(void* block);
  bool IsLocal(const void* block) const;
  // Ends the program with a message of `function` if `block` is no live block of this heap.
  void CheckLive(const char* function, const void* block);
  absl::Status NoMemory(size_t size);
  void GiveBackUnused();

  Memory* const memory_;
  const uint64_t local_below_;
  const uint64_t id_;  // no other heap of this process has or had it
  std::unique_ptr<Hooks> hooks_;
  unsigned arena_ = 0;
  std::atomic<bool> closing_{false};
  std::atomic<bool> freed_{false};  // since unused memory was last given back

  // The blocks that were freed last, by a hash of their addresses: a second free of one is noticed.
  static constexpr size_t kFreedLately = 8192;
  std::array<std::atomic<const void*>, kFreedLately> freed_lately_ = {};
  std::atomic<const void*>& FreedLately(const void* block);

  Mutex mu_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<unsigned> caches_ ABSL_GUARDED_BY(mu_);
  std::vector<unsigned> idle_caches_ ABSL_GUARDED_BY(mu_);  // of them
  absl::Status extent_error_ ABSL_GUARDED_BY(mu_);          // why an extent could not be had last
  std::thread giver_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_HEAP_H_
