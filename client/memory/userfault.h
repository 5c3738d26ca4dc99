#ifndef NRAM_CLIENT_MEMORY_USERFAULT_H_
#define NRAM_CLIENT_MEMORY_USERFAULT_H_

#include <linux/userfaultfd.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"

namespace nram {

// Linux's userfaultfd: the kernel tells this process of missing pages and first writes in its address ranges, and the
// process fills them. Addresses and lengths are multiples of 4096. Nothing here allocates. Thread-safe.
class Userfault {
 public:
  struct Fault {
    uintptr_t address = 0;
    bool write = false;
    bool write_protected = false;  // the page is there, and protected; else it is missing
  };

  // PERMISSION_DENIED tells which line gives this user the right; UNIMPLEMENTED: the kernel is too old (5.7 is needed).
  static absl::StatusOr<std::unique_ptr<Userfault>> Open();

  // Readable when there are faults; non-blocking.
  int fd() const { return fd_.get(); }
  // Takes up to `max` faults that wait; 0 if there are none. Does not block.
  size_t Read(Fault* faults, size_t max);

  // `writable`: first writes are told as well. The errors are the kernel's.
  absl::Status Register(std::byte* begin, size_t length, bool writable);
  void Unregister(std::byte* begin, size_t length);

  // Fills missing pages with a copy of `from` and wakes the threads that wait for them. `protect`: the next write is a
  // fault. ALREADY_EXISTS: one of the pages is not missing. NOT_FOUND: the range is not registered any more.
  absl::Status Copy(std::byte* to, const std::byte* from, size_t length, bool protect);
  void Protect(std::byte* begin, size_t length);
  // Also wakes the threads that wait for the pages.
  void Unprotect(std::byte* begin, size_t length);
  // The threads that wait for the pages look again.
  void Wake(std::byte* begin, size_t length);
  // From now on a thread that touches the missing pages gets SIGBUS, until they are dropped; a thread that waits
  // already gets it when it is woken. An error before Linux 6.6.
  absl::Status Poison(std::byte* begin, size_t length);

 private:
  explicit Userfault(UniqueFd fd) : fd_(std::move(fd)) {}
  void WriteProtect(std::byte* begin, size_t length, uint64_t mode);

  const UniqueFd fd_;
};

// Fills missing pages of the address space of the userfaultfd `fd` with a copy of `from`, and wakes the threads that
// wait for them. Goes on page by page where the range lies over several of the kernel's areas, or where a part of it is
// there. The result is 0 or the kernel's errno. EEXIST: a single page is not missing. ENOMEM: `wait_for_memory` has
// returned false; it is called each time that the machine or its cgroup is full, and may block.
int FillPages(int fd, uint64_t to, const std::byte* from, size_t length, bool protect,
              absl::FunctionRef<bool()> wait_for_memory);

// Drops the pages: they are missing again. Also drops poisoned pages, and pages that the program has locked.
void DropLocally(std::byte* begin, size_t length);

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_USERFAULT_H_
