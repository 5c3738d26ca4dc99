#ifndef NRAM_TESTS_UTIL_REGION_IO_H_
#define NRAM_TESTS_UTIL_REGION_IO_H_

// Strings as what regions hold.

#include <cstring>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/pool/region.h"

namespace nram {

// Words none of which is zero, the same for the same seed.
inline std::string Pattern(size_t bytes, uint64_t seed) {
  std::string data(bytes, '\0');
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random() | 1;
    memcpy(&data[i], &word, 8);
  }
  return data;
}

inline absl::Span<const std::byte> Bytes(const std::string& data) {
  return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}
inline absl::Span<std::byte> Room(std::string* data) {
  return {reinterpret_cast<std::byte*>(data->data()), data->size()};
}

inline absl::StatusOr<std::string> Read(Region* region, uint64_t offset, size_t bytes, const IoOptions& options = {}) {
  std::string data(bytes, '?');
  const absl::Status status = region->Read(offset, Room(&data), options);
  if (!status.ok()) return status;
  return data;
}

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_REGION_IO_H_
