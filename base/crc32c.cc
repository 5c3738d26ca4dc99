#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace nram {

uint32_t Crc32c(uint32_t crc, const void* data, size_t size) {
  // ISA-L takes the raw register and an int length, and does not write through its non-const pointer.
  auto* bytes = static_cast<unsigned char*>(const_cast<void*>(data));
  uint32_t state = ~crc;
  while (size > 0) {
    const size_t step = std::min<size_t>(size, 1 << 30);
    state = crc32_iscsi(bytes, static_cast<int>(step), state);
    bytes += step;
    size -= step;
  }
  return ~state;
}

}  // namespace nram
