// The heap's part of nram.h. It needs jemalloc, and stands apart so that a program may have the rest without it.

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "client/memory/handle.h"
#include "client/memory/heap.h"
#include "client/memory/nram.h"

namespace {

using nram::ApiFail;
using nram::ApiResult;

// The handle's heap, made when it is first asked for. Null if it cannot be made; the error is set then.
nram::Heap* HeapOf(nram_t* n) {
  if (!nram::ApiUsable(n)) return nullptr;
  if (void* const made = n->heap_made.load(std::memory_order_acquire)) return static_cast<nram::Heap*>(made);
  nram::MutexLock lock(&n->heap_mu);
  if (n->heap == nullptr) {
    absl::StatusOr<std::unique_ptr<nram::Heap>> heap = nram::Heap::New(n->memory.get(), n->local_below);
    if (!heap.ok()) {
      ApiResult(heap.status());
      return nullptr;
    }
    n->heap = *std::move(heap);
    n->heap_made.store(n->heap.get(), std::memory_order_release);
  }
  return static_cast<nram::Heap*>(n->heap.get());
}

}  // namespace

void* nram_malloc(nram_t* n, size_t size) {
  nram::Heap* const heap = HeapOf(n);
  return heap == nullptr ? nullptr : ApiResult(heap->Allocate(size));
}

void* nram_calloc(nram_t* n, size_t count, size_t size) {
  nram::Heap* const heap = HeapOf(n);
  size_t bytes;
  if (heap != nullptr && __builtin_mul_overflow(count, size, &bytes)) {
    ApiFail(ENOMEM, absl::StrCat(count, " times ", size, " bytes are more than there are addresses"));
    return nullptr;
  }
  return heap == nullptr ? nullptr : ApiResult(heap->Allocate(bytes, 1, /*zeroed=*/true));
}

void* nram_realloc(nram_t* n, void* block, size_t size) {
  nram::Heap* const heap = HeapOf(n);
  if (heap == nullptr) return nullptr;
  if (size == 0 && block != nullptr) {
    heap->Free(block);
    return nullptr;
  }
  return ApiResult(heap->Reallocate(block, size));
}

void* nram_aligned_alloc(nram_t* n, size_t alignment, size_t size) {
  nram::Heap* const heap = HeapOf(n);
  return heap == nullptr ? nullptr : ApiResult(heap->Allocate(size, alignment));
}

void nram_free(nram_t* n, void* block) {
  if (nram::Heap* const heap = HeapOf(n); heap != nullptr) heap->Free(block);
}

size_t nram_usable_size(nram_t* n, const void* block) {
  nram::Heap* const heap = HeapOf(n);
  return heap == nullptr ? 0 : heap->UsableSize(block);
}
