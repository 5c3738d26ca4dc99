#ifndef NRAM_CLIENT_MEMORY_EVICTION_QUEUE_H_
#define NRAM_CLIENT_MEMORY_EVICTION_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"

namespace nram {

enum class Policy { kSecondChance, kFifo, kRandom };

// The order in which resident pages are evicted. An entry is the page's address, 8 bytes. A page has at most one entry
// (PageWord::kQueued); it may be dropped by another way meanwhile. Not thread-safe.
class EvictionQueue {
 public:
  virtual ~EvictionQueue() = default;
  // `entries`: the most it can hold; its memory is taken as it is used.
  static absl::StatusOr<std::unique_ptr<EvictionQueue>> New(Policy policy, size_t entries);

  virtual size_t size() const = 0;
  virtual size_t capacity() const = 0;
  // The resident bytes of its memory, about.
  virtual size_t memory_bytes() const = 0;
  // Gives memory back that is not used at present.
  virtual void Trim() = 0;
  // There must be room.
  virtual void Add(uintptr_t page) = 0;
  // Takes the next ones out, at most `max`.
  virtual size_t Take(uintptr_t* pages, size_t max) = 0;
  virtual void RemoveIf(const std::function<bool(uintptr_t page)>& gone) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_EVICTION_QUEUE_H_
