#ifndef NRAM_CLIENT_MANAGED_NRAM_COMPAT_RAMBRAIN_H_
#define NRAM_CLIENT_MANAGED_NRAM_COMPAT_RAMBRAIN_H_

// Rambrain's names (Imgrund and Arth, "Rambrain - a library for virtually extending physical memory") over nram's
// managed memory: programs for Rambrain compile unchanged, link -lnram, and have their objects in a pool in place of a
// swap file. Written from the published interface.
//
// Differences: the pool and the first budget come from $NRAM_POOL and $NRAM_BUDGET. A limit of less than 1 MiB is
// 1 MiB. There is no swap file, so its size is not used. A request that does not fit waits for other threads, unless
// setOutOfSwapIsFatal(true) was called, and fails where all of them wait.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../managed.hpp"

namespace rambrain {

using global_bytesize = std::uint64_t;

class memoryException : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace internal {

template <typename Function>
auto Translated(Function function) {
  try {
    return function();
  } catch (const nram::managed_error& error) {
    throw memoryException(error.what());
  }
}

}  // namespace internal

template <class T>
class adhereTo;

// Several dimensions: an array of managedPtr of one dimension less.
template <class T, int dim = 1>
class managedPtr {
  static_assert(dim > 1);

 public:
  using row = managedPtr<T, dim - 1>;

  template <typename... Rest>
  managedPtr(std::size_t count, Rest&&... rest) : rows_(std::make_shared<std::vector<row>>()) {  // NOLINT
    rows_->reserve(count);
    for (std::size_t i = 0; i < count; ++i) rows_->emplace_back(rest...);
  }

  std::size_t size() const { return rows_->size(); }
  row& operator[](std::size_t i) { return (*rows_)[i]; }
  const row& operator[](std::size_t i) const { return (*rows_)[i]; }

 private:
  std::shared_ptr<std::vector<row>> rows_;
};

// One element, or an array. Copies share it; the last one destroys it.
template <class T>
class managedPtr<T, 1> {
 public:
  managedPtr() : managedPtr(std::size_t{1}) {}
  template <typename... Arguments>
  managedPtr(std::size_t count, Arguments&&... arguments)  // NOLINT(runtime/explicit)
      : object_(internal::Translated([&] { return std::make_shared<nram::managed<T>>(count, arguments...); })) {}

  std::size_t size() const { return object_->size(); }
  bool operator==(const managedPtr& other) const { return object_ == other.object_; }
  bool operator!=(const managedPtr& other) const { return object_ != other.object_; }

 private:
  friend class adhereTo<T>;

  std::shared_ptr<nram::managed<T>> object_;
};

// Keeps the object here from the first pointer that is pulled to the end of the scope. A const adhereTo pulls for
// reading: nothing is written back then. Threads may pull from one at the same time.
template <class T>
class adhereTo {
 public:
  adhereTo(const managedPtr<T>& pointer, bool loads = true) : object_(pointer.object_) {  // NOLINT(runtime/explicit)
    if (loads) object_->start();
  }
  adhereTo(const managedPtr<T>* pointer, bool loads = true) : adhereTo(*pointer, loads) {}  // NOLINT(runtime/explicit)
  adhereTo(const adhereTo& other) : object_(other.object_) {}
  adhereTo& operator=(const adhereTo& other) {
    if (this == &other) return *this;
    std::lock_guard<std::mutex> lock(mu_);
    write_.reset();
    read_.reset();
    object_ = other.object_;
    return *this;
  }

  operator T*() {  // NOLINT(runtime/explicit)
    std::lock_guard<std::mutex> lock(mu_);
    internal::Translated([&] {
      if (!write_.has_value()) write_.emplace(*object_);
    });
    return write_->get();
  }
  operator const T*() const {  // NOLINT(runtime/explicit)
    std::lock_guard<std::mutex> lock(mu_);
    if (write_.has_value()) return write_->get();
    internal::Translated([&] {
      if (!read_.has_value()) read_.emplace(*object_);
    });
    return read_->get();
  }

 private:
  // Declared first, so that it is destroyed last.
  std::shared_ptr<nram::managed<T>> object_;
  mutable std::mutex mu_;
  mutable std::optional<nram::adhere<const T>> read_;
  std::optional<nram::adhere<T>> write_;
};

// The program's manager: nram's default managed_memory.
class managedMemory {
 public:
  static managedMemory* defaultManager;

  // true: a request that does not fit fails at once, even if another thread may release its room.
  bool setOutOfSwapIsFatal(bool fatal = true) {
    memory().set_waits(!fatal);
    return std::exchange(fatal_, fatal);
  }
  bool setMemoryLimit(global_bytesize bytes) {
    internal::Translated([&] { memory().set_budget(std::max<global_bytesize>(bytes, 1 << 20)); });
    return true;
  }
  global_bytesize getMemoryLimit() const { return memory().stats().budget_bytes; }
  global_bytesize getUsedMemory() const { return memory().stats().local_bytes; }
  global_bytesize getSwappedMemory() const { return memory().stats().remote_bytes; }
  void printSwapstats() const {
    const nram_managed_stats s = memory().stats();
    std::fprintf(stderr,
                 "nram: %llu bytes here of %llu, %llu remote; %llu misses, %llu fetched ahead and used; %llu bytes "
                 "fetched, %llu written\n",
                 (unsigned long long)s.local_bytes, (unsigned long long)s.budget_bytes,
                 (unsigned long long)s.remote_bytes, (unsigned long long)s.misses, (unsigned long long)s.ahead_hits,
                 (unsigned long long)s.fetched_bytes, (unsigned long long)s.written_bytes);
  }

 private:
  static nram::managed_memory& memory() {
    return *internal::Translated([] { return &nram::managed_memory::get_default(); });
  }

  bool fatal_ = false;
};

namespace internal {
inline managedMemory default_manager;
}  // namespace internal

inline managedMemory* managedMemory::defaultManager = &internal::default_manager;

namespace rambrainglobals {

class rambrainConfig {
 public:
  bool resizeMemory(global_bytesize bytes) { return managedMemory::defaultManager->setMemoryLimit(bytes); }
  // The pool's servers decide how much they lend.
  bool resizeSwap(global_bytesize) { return true; }
  template <typename... Arguments>
  void reinit(Arguments&&...) {}
};

inline rambrainConfig config;

}  // namespace rambrainglobals

namespace internal {

// While one thread collects its objects, no other thread begins to.
class Ingredients {
 public:
  Ingredients() : lock_(mu()) {}

 private:
  static std::recursive_mutex& mu() {
    static std::recursive_mutex mu;
    return mu;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace internal
}  // namespace rambrain

// Programs name these without their namespace, and rely on std's names.
using namespace std;       // NOLINT
using namespace rambrain;  // NOLINT

#define ADHERETO(type, instance)                      \
  rambrain::adhereTo<type> instance##_glue(instance); \
  type* instance = instance##_glue;
#define ADHERETOCONST(type, instance)                       \
  const rambrain::adhereTo<type> instance##_glue(instance); \
  const type* instance = instance##_glue;
#define ADHERETOLOC(type, instance, local)            \
  rambrain::adhereTo<type> instance##_glue(instance); \
  type* local = instance##_glue;
#define ADHERETOLOCCONST(type, instance, local)             \
  const rambrain::adhereTo<type> instance##_glue(instance); \
  const type* local = instance##_glue;
#define LISTOFINGREDIENTS rambrain::internal::Ingredients nram_ingredients;

#endif  // NRAM_CLIENT_MANAGED_NRAM_COMPAT_RAMBRAIN_H_
