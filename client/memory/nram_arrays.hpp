#ifndef NRAM_CLIENT_MEMORY_NRAM_ARRAYS_HPP_
#define NRAM_CLIENT_MEMORY_NRAM_ARRAYS_HPP_

// The arrays of a version, by types of C++: a part of nram.hpp, which programs include.

#include <array>
#include <cerrno>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "nram.h"

namespace nram::memory {

namespace internal {

// Right after a call that failed.
[[noreturn]] inline void ThrowLastError() {
  const int error = errno;
  throw std::system_error(error, std::generic_category(), nram_error());
}

// 0: nram.h has no such element.
template <typename T>
constexpr nram_element ElementOf() {
  if constexpr (std::is_same_v<T, bool>) return NRAM_BOOL;
  if constexpr (std::is_same_v<T, std::byte>) return NRAM_UINT8;
  if constexpr (std::is_same_v<T, std::complex<float>>) return NRAM_COMPLEX64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return NRAM_COMPLEX128;
  if constexpr (std::is_same_v<T, float>) return NRAM_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return NRAM_FLOAT64;
  if constexpr (std::is_integral_v<T> && sizeof(T) <= 8) {
    constexpr int kLog = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<nram_element>((std::is_signed_v<T> ? NRAM_INT8 : NRAM_UINT8) + kLog);
  }
  return nram_element{};
}

inline const char* NameOf(nram_element type) {
  constexpr std::array<const char*, 15> kNames = {"?",       "int8",    "int16",     "int32",      "int64",
                                                  "uint8",   "uint16",  "uint32",    "uint64",     "float16",
                                                  "float32", "float64", "complex64", "complex128", "bool"};
  const auto i = static_cast<std::size_t>(type);
  return kNames[i < kNames.size() ? i : 0];
}

// As Array::AwaitPublished, Next and so on, of the mapping at `address`.
inline bool AwaitPublished(nram_t* handle, const void* address, std::uint64_t version, std::uint32_t timeout_ms) {
  if (nram_published(handle, address, version, timeout_ms) == 0) return true;
  if (errno != ETIMEDOUT) ThrowLastError();
  return false;
}
inline std::uint64_t Next(nram_t* handle, void* address, std::uint32_t timeout_ms) {
  std::uint64_t version = 0;
  if (nram_next(handle, address, timeout_ms, &version) == 0) return version;
  if (errno != ETIMEDOUT) ThrowLastError();
  return 0;
}
inline nram_version_info InfoOf(nram_t* handle, const void* address) {
  nram_version_info info{};
  info.size = sizeof info;
  if (nram_get_version_info(handle, address, &info) != 0) ThrowLastError();
  return info;
}
inline const char* HeaderOf(nram_t* handle, const void* address) {
  const char* const header = nram_version_header(handle, address);
  if (header == nullptr) ThrowLastError();
  return header;
}

}  // namespace internal

// An array that a version describes: dense, of as many dimensions as its producer has chosen. It owns nothing, and is
// valid until Next() or the end of its observer. `T` is const.
template <typename T>
class View {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using size_type = std::size_t;
  using iterator = T*;
  using const_iterator = T*;

  // No elements.
  View() = default;
  // `array`: as nram_find_array() has filled it, with elements of this type.
  explicit View(const nram_array& array) : data_(static_cast<T*>(array.data)), array_(array) {}

  T* data() const { return data_; }
  std::size_t size() const {
    std::size_t count = data_ == nullptr ? 0 : 1;
    for (std::size_t i = 0; i < dimensions(); ++i) count *= extent(i);
    return count;
  }
  std::size_t dimensions() const { return array_.dimensions; }
  std::size_t extent(std::size_t dimension) const { return array_.extents[dimension]; }
  nram_order order() const { return array_.order; }
  // In the order of memory. `i` is not checked.
  T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size(); }
  // The element at an index for each dimension, from 0, in the producer's order; no index for a single element. The
  // indices are not checked.
  template <typename... Index>
  T& operator()(Index... indices) const {
    const std::array<std::size_t, sizeof...(Index)> at = {static_cast<std::size_t>(indices)...};
    std::size_t place = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      const std::size_t dimension = array_.order == NRAM_ORDER_C ? i : at.size() - 1 - i;
      place = place * extent(dimension) + at[dimension];
    }
    return data_[place];
  }

 private:
  T* data_ = nullptr;
  nram_array array_{};
};

namespace internal {

template <typename T>
View<const T> Find(nram_t* handle, const void* address, const char* name) {
  static_assert(ElementOf<T>() != 0, "nram.h has no element type for this type");
  nram_array array{};
  nram_array_init(&array);
  if (nram_find_array(handle, address, name, &array) != 0) ThrowLastError();
  const std::string what = "nram::memory: array \"" + std::string(name) + "\" ";
  if (array.type != ElementOf<T>()) {
    throw std::invalid_argument(what + "has elements of " + NameOf(array.type) + ", not " + NameOf(ElementOf<T>()));
  }
  if (array.data == nullptr) {
    throw std::invalid_argument(what + "is in a mapping that is not observed here: a new Observer maps all of them");
  }
  return View<const T>(array);
}

}  // namespace internal

// The options, header and arrays of a publication. It can be used again, as long as the arrays keep their places.
class Description {
 public:
  Description() { nram_publish_options_init(&options); }

  // As in nram.h; `header`, `arrays` and `array_count` here are ignored: they are set below.
  nram_publish_options options{};
  // JSON for observers, beside the arrays; "": none.
  std::string header;

  // Adds an array of that many elements in each dimension; no extents: the one element at `data`. It must lie in the
  // published mappings, which Publish() checks; if it has no elements, `data` counts as NULL, as empty containers have
  // it. Throws std::invalid_argument: more than 8 dimensions, or a null character in the name.
  template <typename T>
  Description& Add(std::string name, const T* data, std::vector<std::uint64_t> extents = {},
                   nram_order order = NRAM_ORDER_C) {
    static_assert(internal::ElementOf<T>() != 0, "nram.h has no element type for this type");
    if (extents.size() > NRAM_DIMENSIONS_MAX) {
      throw std::invalid_argument("nram::memory: array \"" + name + "\" has " + std::to_string(extents.size()) +
                                  " dimensions: expected 0 to 8");
    }
    if (name.find('\0') != std::string::npos) {
      throw std::invalid_argument("nram::memory: the name of an array has a null character");
    }
    nram_array array{};
    nram_array_init(&array);
    array.data = data;
    array.type = internal::ElementOf<T>();
    array.order = order;
    array.dimensions = static_cast<std::uint32_t>(extents.size());
    for (std::size_t i = 0; i < extents.size(); ++i) {
      array.extents[i] = extents[i];
      if (extents[i] == 0) array.data = nullptr;
    }
    arrays_.push_back({std::move(name), array});
    return *this;
  }

 private:
  friend std::uint64_t Publish(nram_t* handle, const std::vector<const void*>& mappings,
                               const Description& description);

  struct Named {
    std::string name;
    nram_array array;  // without its name
  };
  std::vector<Named> arrays_;
};

// Makes one version of the present contents of these mappings, as nram_publish_all() does, and returns its number.
// Throws std::system_error: EINVAL if one has no name, or a described array is not in them, EEXIST, ENOSPC, EIO.
inline std::uint64_t Publish(nram_t* handle, const std::vector<const void*>& mappings, const Description& description) {
  std::vector<nram_array> arrays;
  for (const Description::Named& named : description.arrays_) {
    arrays.push_back(named.array);
    arrays.back().name = named.name.c_str();
  }
  nram_publish_options options = description.options;
  options.header = description.header.empty() ? nullptr : description.header.c_str();
  options.arrays = arrays.data();
  options.array_count = arrays.size();
  std::uint64_t version = 0;
  if (nram_publish_all(handle, mappings.data(), mappings.size(), &options, &version) != 0) internal::ThrowLastError();
  return version;
}

}  // namespace nram::memory

#endif  // NRAM_CLIENT_MEMORY_NRAM_ARRAYS_HPP_
