#ifndef NRAM_CLIENT_POOL_PUBLISHED_ARRAY_H_
#define NRAM_CLIENT_POOL_PUBLISHED_ARRAY_H_

// A publisher's description of the arrays in a version, so that observers need not know it beforehand. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"

namespace nram {

// Numbers as enum nram_element has them; names as NumPy has them.
enum class ElementType : uint32_t {
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kUint8 = 5,
  kUint16 = 6,
  kUint32 = 7,
  kUint64 = 8,
  kFloat16 = 9,
  kFloat32 = 10,
  kFloat64 = 11,
  kComplex64 = 12,
  kComplex128 = 13,
  kBool = 14,
};

// A dense array in one of a version's mappings.
struct PublishedArray {
  std::string name;
  ElementType type{};
  bool fortran = false;           // the first index is the fastest; else the last
  std::vector<uint64_t> extents;  // none: a single element
  uint32_t mapping = 0;           // of the version's, in their order
  uint64_t offset = 0;            // of the first element, in bytes
  friend bool operator==(const PublishedArray&, const PublishedArray&) = default;
};

inline constexpr size_t kArraysMax = 512;  // of a version
inline constexpr size_t kDimensionsMax = 8;
inline constexpr size_t kArrayNameBytesMax = 255;

// 0: there is no such type.
uint64_t ElementBytes(ElementType type);
// "float64"; "" if there is no such type.
absl::string_view ElementName(ElementType type);
// Of an array that CheckArrays accepts.
uint64_t BytesOf(const PublishedArray& array);

// Checks for printable names that differ, known types, elements where their type may lie, and all of them within the
// mapping, also if extents that are 0 were 1. INVALID_ARGUMENT names the error. `lengths`: of the mappings, in bytes.
absl::Status CheckArrays(absl::Span<const PublishedArray> arrays, absl::Span<const uint64_t> lengths);

// "float64[512, 512]", and how it lies if not as in C.
std::string FormatArrayType(const PublishedArray& array);

nlohmann::json ArraysToJson(absl::Span<const PublishedArray> arrays);
// INVALID_ARGUMENT: it says something else, or more than kArraysMax. CheckArrays is still to be asked.
absl::StatusOr<std::vector<PublishedArray>> ArraysFromJson(const nlohmann::json& in);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_PUBLISHED_ARRAY_H_
