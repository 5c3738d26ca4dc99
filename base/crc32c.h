#ifndef NRAM_BASE_CRC32C_H_
#define NRAM_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace nram {

// Extends `crc` (0 to begin with) by `size` bytes at `data`, CRC-32C (Castagnoli). Crc32c(Crc32c(0, a), b) is the CRC
// of a followed by b. Computed by ISA-L with the widest instructions that the processor has.
uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

}  // namespace nram

#endif  // NRAM_BASE_CRC32C_H_
