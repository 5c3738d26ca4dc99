#ifndef NRAM_CLIENT_MANAGED_NRAM_MANAGED_HPP_
#define NRAM_CLIENT_MANAGED_NRAM_MANAGED_HPP_

// Managed memory: objects live in other machines' RAM, and a budget of them is here at a time. A program says by scopes
// which ones it uses now. C++17 and later; header only, over the C functions of managed.h.
//
//   nram::managed<double> row(1000);                   // 1000 zeros
//   nram::managed<double, 2> matrix(500, 1000, 1.0);   // 500 rows, each fetched and evicted alone
//   {
//     nram::adhere<double> values(row);                // they are here until the scope ends
//     values[3] = 1;
//     nram::adhere<const double> third(matrix[2]);     // for reading: never written back
//     values[4] = third[4];
//   }
//   auto [a, b] = nram::adhere_all(row, matrix[7]);    // both or none, in an order that cannot deadlock
//
// Threads: any thread may use different objects at any time, and any number of threads may adhere to the same object;
// they share its memory, as threads do. Threads may call the const members of one managed or adhere object at the same
// time, those of an adhere only once it is loaded. An adhere may be moved to another thread.
//
// Waiting: constructors, and the first use of a delayed adhere, may wait for servers and for room, as managed.h tells.
//
// Errors: over_budget if more would be adhered to than fits, managed_error for the rest (a std::system_error with
// managed.h's errno and text). Destructors do not throw: if an object cannot be fetched for its destructor, the
// destructor does not run, and a line on stderr says so.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "managed.h"

namespace nram {

class managed_error : public std::system_error {
 public:
  managed_error(int error, const char* text)
      : std::system_error(error, std::generic_category()), text_(std::make_shared<const std::string>(text)) {}
  // managed.h's text alone.
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

// More would be adhered to at the same time than fits the budget, and no other thread will give up any.
class over_budget : public managed_error {
 public:
  using managed_error::managed_error;
};

namespace managed_internal {

// Right after a call that failed.
[[noreturn]] inline void ThrowLastError() {
  const int error = errno;
  if (error == ENOSPC) throw over_budget(error, nram_managed_error());
  throw managed_error(error, nram_managed_error());
}

inline nram_managed_options DefaultOptions() {
  nram_managed_options options;
  nram_managed_options_init(&options);
  return options;
}

struct Closer {
  void operator()(nram_managed_t* m) const { nram_managed_close(m); }
};

// The place of an object, as managed and adhere know it.
struct Place {
  nram_managed_t* m = nullptr;
  nram_managed_object object = {nullptr, 0};
  std::size_t count = 0;
};

}  // namespace managed_internal

using managed_options = nram_managed_options;

// A pool, a budget and the objects in them. It must outlive its objects, which know its address, so it does not move.
class managed_memory {
 public:
  explicit managed_memory(const char* pool = nullptr,
                          const managed_options& options = managed_internal::DefaultOptions())
      : own_(nram_managed_open(pool, &options)), m_(own_.get()) {
    if (m_ == nullptr) managed_internal::ThrowLastError();
  }
  // Takes over a handle of nram_managed_open().
  struct take_over {};
  managed_memory(take_over, nram_managed_t* m) : own_(m), m_(m) {}
  managed_memory(const managed_memory&) = delete;
  managed_memory& operator=(const managed_memory&) = delete;

  // The program's own, from the environment ($NRAM_POOL, $NRAM_BUDGET); opened at the first call, which may throw.
  static managed_memory& get_default() {
    static managed_memory* const memory = new managed_memory(nram_managed_default());
    return *memory;
  }
  static managed_options default_options() { return managed_internal::DefaultOptions(); }

  nram_managed_t* get() const { return m_; }
  void set_budget(std::uint64_t bytes) {
    if (nram_managed_set_budget(m_, bytes) != 0) managed_internal::ThrowLastError();
  }
  // false: a request that does not fit is over_budget at once, even if another thread may release a guard.
  void set_waits(bool waits) { nram_managed_set_waits(m_, waits ? 1 : 0); }
  // Per cent of the budget for objects that are fetched ahead, 0 to 50.
  void set_ahead(unsigned percent) {
    if (nram_managed_set_ahead(m_, percent) != 0) managed_internal::ThrowLastError();
  }
  nram_managed_stats stats() const {
    nram_managed_stats stats;
    stats.size = sizeof(stats);
    nram_managed_get_stats(m_, &stats);
    return stats;
  }

 private:
  explicit managed_memory(nram_managed_t* m) : m_(m) {
    if (m_ == nullptr) managed_internal::ThrowLastError();
  }

  std::unique_ptr<nram_managed_t, managed_internal::Closer> own_;
  nram_managed_t* m_;
};

// An array of managed arrays, each fetched and evicted alone: managed<T, 2>(rows, columns, arguments...).
template <typename T, int Dimensions = 1>
class managed {
  static_assert(Dimensions > 1);

 public:
  using row_type = managed<T, Dimensions - 1>;

  // The arguments after the lengths are for each element's constructor.
  template <typename... Rest>
  explicit managed(std::size_t count, Rest&&... rest) : managed(managed_memory::get_default(), count, rest...) {}
  template <typename... Rest>
  managed(managed_memory& memory, std::size_t count, Rest&&... rest) {
    rows_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) rows_.emplace_back(memory, rest...);
  }
  managed(managed&&) noexcept = default;
  managed& operator=(managed&&) noexcept = default;
  ~managed() {
    while (!rows_.empty()) rows_.pop_back();  // the last first
  }

  std::size_t size() const { return rows_.size(); }
  row_type& operator[](std::size_t i) { return rows_[i]; }
  const row_type& operator[](std::size_t i) const { return rows_[i]; }

 private:
  std::vector<row_type> rows_;
};

// One object, or an array of them, in managed memory, and their only owner: it may be moved, not copied. Memory that T
// allocates itself is local, unless it is managed too.
//
// A trivially copyable T may be at another address each time that a thread adheres to it; any other T has one for life.
// Objects of up to 8 KiB share a block of 64 KiB with those made before and after them, which is freed with the last.
template <typename T>
class managed<T, 1> {
  static_assert(std::is_object_v<T> && !std::is_const_v<T>, "managed<T>: T is a plain type; adhere<const T> reads");
  static_assert(alignof(T) <= 4096);

 public:
  // One T(). All constructors may throw managed_error (ENOMEM, EIO) and over_budget.
  managed() : managed(std::size_t{1}) {}
  // `count` elements, each made of the same arguments; T() if there are none.
  template <typename... Arguments>
  explicit managed(std::size_t count, Arguments&&... arguments)
      : managed(managed_memory::get_default(), count, arguments...) {}
  template <typename... Arguments>
  explicit managed(managed_memory& memory, std::size_t count, Arguments&&... arguments) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    const int flags = std::is_trivially_copyable_v<T> ? 0 : NRAM_MANAGED_FIXED;
    nram_managed_guard guard;
    place_.m = memory.get();
    void* const data = nram_managed_new_aligned(place_.m, count == 0 ? 1 : count * sizeof(T), alignof(T), flags,
                                                &place_.object, &guard);
    if (data == nullptr) managed_internal::ThrowLastError();
    // Destroys the elements made so far if a constructor throws.
    struct Making {
      ~Making() {
        if (place.count != count) Destroy(elements, place.count);
        nram_managed_release(place.m, &guard);
        if (place.count != count) nram_managed_delete(place.m, &place.object);
      }
      managed_internal::Place& place;
      const nram_managed_guard& guard;
      T* elements;
      std::size_t count;
    } making{place_, guard, static_cast<T*>(data), count};
    for (; place_.count < count; ++place_.count) new (making.elements + place_.count) T(arguments...);
  }
  explicit managed(managed_memory& memory) : managed(memory, std::size_t{1}) {}
  managed(managed&& other) noexcept : place_(std::exchange(other.place_, {})) {}
  managed& operator=(managed&& other) noexcept {
    if (this != &other) {
      Reset();
      place_ = std::exchange(other.place_, {});
    }
    return *this;
  }
  // Destructors run from the last element to the first. No adhere may hold the object.
  ~managed() { Reset(); }

  std::size_t size() const { return place_.count; }
  // Begins to fetch it, and returns at once.
  void start() const { nram_managed_start(place_.m, &place_.object); }
  const managed_internal::Place& place() const { return place_; }

 private:
  static void Destroy(T* elements, std::size_t count) {
    while (count > 0) elements[--count].~T();
  }

  void Reset() noexcept {
    if (place_.m == nullptr) return;
    if (!std::is_trivially_destructible_v<T> && place_.count > 0) {
      nram_managed_guard guard;
      void* const data =
          nram_managed_adhere(place_.m, &place_.object, NRAM_MANAGED_WRITE | NRAM_MANAGED_BEYOND, &guard);
      if (data != nullptr) {
        Destroy(static_cast<T*>(data), place_.count);
        nram_managed_release(place_.m, &guard);
      } else if (errno != ENOTSUP) {  // in a child of fork() it is the parent's
        std::fprintf(stderr, "nram: a managed object is freed without its destructor: %s\n", nram_managed_error());
      }
    }
    nram_managed_delete(place_.m, &place_.object);
    place_ = {};
  }

  managed_internal::Place place_;
};

}  // namespace nram

#include "adhere.hpp"  // IWYU pragma: export

#endif  // NRAM_CLIENT_MANAGED_NRAM_MANAGED_HPP_
