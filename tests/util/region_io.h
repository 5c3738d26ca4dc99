#ifndef NRAM_TESTS_UTIL_REGION_IO_H_
#define NRAM_TESTS_UTIL_REGION_IO_H_

// Strings as the contents of regions.

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/pool/region.h"
#include "tests/util/pattern.h"

namespace nram {

inline absl::Span<const std::byte> Bytes(const std::string& data) {
  return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}
inline absl::Span<std::byte> Into(std::string* data) {
  return {reinterpret_cast<std::byte*>(data->data()), data->size()};
}

inline absl::StatusOr<std::string> Read(Region* region, uint64_t offset, size_t bytes, const IoOptions& options = {}) {
  std::string data(bytes, '?');
  const absl::Status status = region->Read(offset, Into(&data), options);
  if (!status.ok()) return status;
  return data;
}

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_REGION_IO_H_
