#ifndef NRAM_CLIENT_RUN_ADDRESS_SPACE_H_
#define NRAM_CLIENT_RUN_ADDRESS_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace nram {

// A run of pages by their addresses, which are multiples of 4096.
struct AddressRun {
  uint64_t begin = 0;
  uint64_t pages = 0;
};

// An engine's operations on the memory of a program: one implementation uses the kernel's interfaces, one is for tests.
// Addresses are the program's. Thread-safe. No operation waits for a fault to be answered.
class AddressSpace {
 public:
  virtual ~AddressSpace() = default;

  // Fills missing pages with `data` and wakes the threads that wait for them. `protect`: their next write is a fault.
  // ALREADY_EXISTS: one of the pages is there. NOT_FOUND: there is no such memory any more.
  virtual absl::Status Copy(uint64_t to, absl::Span<const std::byte> data, bool protect) = 0;
  // Lets protected pages be written to, and wakes the threads that wait for that.
  virtual void Unprotect(uint64_t begin, uint64_t pages) = 0;
  // The threads that wait for the pages look again.
  virtual void Wake(uint64_t begin, uint64_t pages) = 0;
  // Takes pages out of the program's memory, atomically each, and puts their contents into `to`, in order. `taken`
  // tells for each page, in order, whether it could be taken. A page that is pinned remains in memory.
  virtual absl::Status Take(absl::Span<const AddressRun> runs, absl::Span<std::byte> to, std::vector<bool>* taken) = 0;
  // The pages are missing from now on, except pinned ones: `taken` as in Take. They must be protected, and stored
  // elsewhere: their contents are lost.
  virtual absl::Status Drop(absl::Span<const AddressRun> runs, std::vector<bool>* taken) = 0;
  // Whether this has memory of its own at an address, which the program does not know of.
  virtual bool HasOwn(uint64_t /*address*/) const { return false; }
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_ADDRESS_SPACE_H_
