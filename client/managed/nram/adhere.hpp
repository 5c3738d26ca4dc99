#ifndef NRAM_CLIENT_MANAGED_NRAM_ADHERE_HPP_
#define NRAM_CLIENT_MANAGED_NRAM_ADHERE_HPP_

// Guards of managed objects; included by managed.hpp, which has the rules for threads, waiting and errors.

#include <array>
#include <cerrno>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#if __cplusplus >= 202002L
#include <span>
#endif

#include "managed.h"
#include "managed.hpp"

namespace nram {

// When an adhere fetches its object.
enum class load {
  now,      // the constructor waits for it
  start,    // the constructor begins; the first use waits, and holds the object from then on
  delayed,  // the first use does all
};

namespace managed_internal {
struct All;
}

// Keeps an object here, at a fixed address, as long as it lives. adhere<const T> reads, and causes no write-back. A
// copy adheres by itself. Loading may throw over_budget and managed_error.
template <typename T>
class adhere {
  using element_type = std::remove_const_t<T>;
  using object_type = std::conditional_t<std::is_const_v<T>, const managed<element_type>, managed<element_type>>;

 public:
  adhere(object_type& object, load how = load::now) : place_(object.place()) {  // NOLINT(runtime/explicit)
    if (how == load::now) Load();
    if (how == load::start) nram_managed_start(place_.m, &place_.object);
  }
  explicit adhere(object_type* object, load how = load::now) : adhere(*object, how) {}
  adhere(const adhere& other) : place_(other.place_) {
    if (other.address_ != nullptr) Load();
  }
  adhere(adhere&& other) noexcept
      : place_(other.place_), guard_(other.guard_), address_(std::exchange(other.address_, nullptr)) {}
  adhere& operator=(adhere other) noexcept {
    std::swap(place_, other.place_);
    std::swap(guard_, other.guard_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~adhere() { release(); }

  T* get() const {
    if (address_ == nullptr) Load();
    return address_;
  }
  operator T*() const { return get(); }  // NOLINT(runtime/explicit)
  T* operator->() const { return get(); }
  T& operator*() const { return *get(); }
  // For any integer, so that the conversion to a pointer does not compete.
  template <typename Index, typename = std::enable_if_t<std::is_integral_v<Index>>>
  T& operator[](Index i) const {
    return get()[i];
  }
  std::size_t size() const { return place_.count; }
  T* begin() const { return get(); }
  T* end() const { return get() + size(); }
#if __cplusplus >= 202002L
  std::span<T> span() const { return {get(), size()}; }
#endif
  // Ends the guard before its scope. Pointers into the object are invalid then; the next use fetches it again.
  void release() noexcept {
    if (address_ != nullptr) nram_managed_release(place_.m, &guard_);
    address_ = nullptr;
  }

 private:
  friend struct managed_internal::All;
  static constexpr int kFlags = std::is_const_v<T> ? NRAM_MANAGED_READ : NRAM_MANAGED_WRITE;

  // Takes over a guard.
  adhere(const managed_internal::Place& place, const nram_managed_guard& guard, void* address)
      : place_(place), guard_(guard), address_(static_cast<T*>(address)) {}

  void Load() const {
    void* const address = nram_managed_adhere(place_.m, &place_.object, kFlags, &guard_);
    if (address == nullptr) managed_internal::ThrowLastError();
    address_ = static_cast<T*>(address);
  }

  managed_internal::Place place_;
  mutable nram_managed_guard guard_ = {nullptr, nullptr};
  mutable T* address_ = nullptr;
};

template <typename T>
adhere(managed<T>&) -> adhere<T>;
template <typename T>
adhere(managed<T>&, load) -> adhere<T>;
template <typename T>
adhere(const managed<T>&) -> adhere<const T>;
template <typename T>
adhere(const managed<T>&, load) -> adhere<const T>;

namespace managed_internal {

template <typename Object>
struct GuardOf;
template <typename T>
struct GuardOf<managed<T>> {
  using type = adhere<T>;
};
template <typename T>
struct GuardOf<const managed<T>> {
  using type = adhere<const T>;
};

struct All {
  template <typename... Guards, std::size_t... I>
  static std::tuple<Guards...> Take(const std::array<const Place*, sizeof...(Guards)>& places,
                                    std::index_sequence<I...>) {
    const nram_managed_object* const wanted[] = {&places[I]->object...};
    const int flags[] = {Guards::kFlags...};
    nram_managed_guard guards[sizeof...(Guards)];
    void* addresses[sizeof...(Guards)];
    if (nram_managed_adhere_all(places[0]->m, sizeof...(Guards), wanted, flags, guards, addresses) != 0) {
      ThrowLastError();
    }
    return std::tuple<Guards...>(Guards(*places[I], guards[I], addresses[I])...);
  }
};

}  // namespace managed_internal

// Guards of several objects of one managed_memory, as a tuple: all or none. Room for all is taken at once, so threads
// that adhere only in this way never wait for each other in a circle. Const objects (std::as_const) get guards for
// reading. Throws over_budget and managed_error, EINVAL for objects of several managed_memory.
template <typename... Objects>
auto adhere_all(Objects&... objects) {
  static_assert(sizeof...(Objects) > 0);
  const std::array<const managed_internal::Place*, sizeof...(Objects)> places = {&objects.place()...};
  for (const managed_internal::Place* place : places) {
    if (place->m != places[0]->m) throw managed_error(EINVAL, "adhere_all: objects of several managed_memory");
  }
  return managed_internal::All::Take<typename managed_internal::GuardOf<Objects>::type...>(
      places, std::make_index_sequence<sizeof...(Objects)>());
}

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_NRAM_ADHERE_HPP_
