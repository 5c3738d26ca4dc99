#ifndef NRAM_CLIENT_MEMORY_HANDLE_H_
#define NRAM_CLIENT_MEMORY_HANDLE_H_

// The object behind an nram_t.

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/sync.h"
#include "client/memory/api_error.h"
#include "client/memory/memory.h"
#include "client/memory/nram.h"

struct nram_handle {
  std::unique_ptr<nram::Memory> memory;
  uint64_t local_below = 0;
  uint32_t forks = 0;  // when it was opened; see ApiUsable
  nram::Mutex heap_mu;
  // A Heap. Only nram_heap.cc knows its type, because a program may have no heap. It is destroyed before the memory.
  std::shared_ptr<void> heap ABSL_GUARDED_BY(heap_mu);
  std::atomic<void*> heap_made{nullptr};
};

namespace nram {

// True if it is a handle of this process; else the error is set.
bool ApiUsable(const nram_t* n);

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_HANDLE_H_
