#ifndef NRAM_TESTS_UTIL_COUNT_ALLOCATIONS_H_
#define NRAM_TESTS_UTIL_COUNT_ALLOCATIONS_H_

// Replaces malloc by one that counts, in `allocations`, while `counting`. Include it in one file of a test that no
// sanitizer runs, because sanitizers replace malloc too.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nram {
inline std::atomic<bool> counting{false};
inline std::atomic<uint64_t> allocations{0};
inline void CountAllocation() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace nram

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) {
  nram::CountAllocation();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  nram::CountAllocation();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  nram::CountAllocation();
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t align, size_t bytes) {
  nram::CountAllocation();
  return __libc_memalign(align, bytes);
}
}

#endif  // NRAM_TESTS_UTIL_COUNT_ALLOCATIONS_H_
