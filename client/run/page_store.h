#ifndef NRAM_CLIENT_RUN_PAGE_STORE_H_
#define NRAM_CLIENT_RUN_PAGE_STORE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace nram {

// Stores the pages that are not in memory, by number. Thread-safe. All calls block.
class PageStore {
 public:
  struct Write {
    uint64_t page = 0;
    absl::Span<const std::byte> data;  // whole pages
  };

  virtual ~PageStore() = default;
  virtual absl::Status ReadPages(uint64_t page, absl::Span<std::byte> to) = 0;
  // Returns when all are stored. The first error.
  virtual absl::Status WritePages(absl::Span<const Write> writes) = 0;
  // The pages are not needed any more. A failure here only costs room.
  virtual void Forget(uint64_t page, uint64_t count) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_PAGE_STORE_H_
