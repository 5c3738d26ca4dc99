#ifndef NRAM_BASE_MAPPING_H_
#define NRAM_BASE_MAPPING_H_

#include <errno.h>
#include <sys/mman.h>

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status.h"

namespace nram {

// Owns an anonymous memory mapping. Move-only; move-assignment unmaps the previous one.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      Unmap();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Mapping() { Unmap(); }

  // Reserves `bytes` of address space, zero-filled on first touch and not charged before that.
  // `align` is a power of two, `protection` as mmap's. Errors: as mmap's.
  static absl::StatusOr<Mapping> Anonymous(size_t bytes, size_t align = 4096, int protection = PROT_READ | PROT_WRITE) {
    const size_t whole = bytes + (align > 4096 ? align : 0);
    void* at = mmap(nullptr, whole, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return ErrnoStatus(errno, "mmap of anonymous memory");
    Mapping mapping;
    auto* begin = static_cast<std::byte*>(at);
    auto address = reinterpret_cast<uintptr_t>(begin);
    const size_t skip = (align - address % align) % align;
    if (skip > 0) munmap(begin, skip);
    if (whole - skip - bytes > 0) munmap(begin + skip + bytes, whole - skip - bytes);
    mapping.data_ = begin + skip;
    mapping.size_ = bytes;
    return mapping;
  }

  // The same for memory of which the most will never be touched: none of it becomes resident before that, not even
  // after mlockall(MCL_FUTURE).
  static absl::StatusOr<Mapping> Untouched(size_t bytes) {
    NRAM_ASSIGN_OR_RETURN(Mapping mapping, Anonymous(bytes, 4096, PROT_NONE));
    // Locked memory that may be touched would be filled at once.
    if (munlock(mapping.data(), bytes) != 0 || mprotect(mapping.data(), bytes, PROT_READ | PROT_WRITE) != 0) {
      return ErrnoStatus(errno, "mprotect of reserved memory");
    }
    return mapping;
  }

  // Core dumps leave it out: it holds users' data.
  void HideFromCoreDumps() const { madvise(data_, size_, MADV_DONTDUMP); }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Unmap() {
    if (data_ != nullptr) munmap(data_, size_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_BASE_MAPPING_H_
