#ifndef NRAM_TESTS_FUZZ_INPUT_H_
#define NRAM_TESTS_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace nram {

// Takes a target's input apart from its front. Bytes beyond its end read as zeros.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  // Little-endian, of `bytes` (at most 8) bytes.
  uint64_t Number(size_t bytes) {
    uint64_t number = 0;
    for (size_t i = 0; i < bytes; ++i) number |= uint64_t{Byte()} << 8 * i;
    return number;
  }
  // A byte tells how many bytes the number has.
  uint64_t AnyNumber() { return Number(Byte() % 9); }
  // A number below `bound` in most cases, any number in one of eight.
  uint64_t SmallOrAny(uint64_t bound) {
    const uint8_t first = Byte();
    return first % 8 == 7 ? Number(first / 8 % 9) : first / 8 % bound;
  }
  // Up to `bytes` bytes; fewer at the end.
  absl::string_view Take(size_t bytes) {
    bytes = std::min(bytes, size_);
    const absl::string_view taken(reinterpret_cast<const char*>(data_), bytes);
    data_ += bytes;
    size_ -= bytes;
    return taken;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace nram

#endif  // NRAM_TESTS_FUZZ_INPUT_H_
