#ifndef NRAM_CLIENT_MEMORY_NRAM_HPP_
#define NRAM_CLIENT_MEMORY_NRAM_HPP_

// nram.h for C++17 and later: handles that close themselves, exceptions, arrays, and allocators for containers. Header
// only. The promises, limits and forbidden calls of nram.h hold here too.
//
//   nram::memory::Memory memory;                               // the pool and the budget from the environment
//   nram::memory::Array<double> numbers(memory, 1ull << 33);   // 64 GiB of zeros
//   std::vector<int, nram::memory::Allocator<int>> v(memory);  // its elements are in nram memory
//   nram::memory::MemoryResource resource(memory);
//   std::pmr::unordered_map<int, std::pmr::string> map(&resource);
//
// A program publishes versions, and others observe them:
//
//   nram::memory::Array<double> field(memory, n * m, "field");
//   field.Publish(nram::memory::Description().Add("u", field.data(), {n, m}));
//
//   nram::memory::Observer seen(memory, "field");  // elsewhere
//   nram::memory::View<const double> u = seen.Find<double>("u");
//   use(u(i, j), u.extent(0));
//   if (seen.Next(1000) != 0) u = seen.Find<double>("u");
//
// An Arena is a mapping to allocate from, so that the state of containers can be published.
//
// Lifetime: a Memory must outlive every array, observer, resource, allocator and container that was made from it. It
// may be moved meanwhile.
//
// Threads: any thread may use different objects at any time, and the const members of one object; its other members
// need the object alone. The memory itself, the allocators and the resources are as free as plain memory and malloc.
//
// Waiting: touching an element may wait for a server, as any page fault may wait for a disk. When a server does not
// answer, functions wait for up to three times the timeout of the options (10 s), as nram.h tells.
//
// Errors: std::system_error with the errno of nram.h and the text of nram_error(); std::bad_alloc from allocators and
// resources, as containers expect. Destructors do not throw; Close() and Unmap() report their failures.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory_resource>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "nram.h"
#include "nram_arrays.hpp"

namespace nram::memory {

namespace internal {

// std::bad_array_new_length if the product is no size_t.
inline std::size_t Bytes(std::size_t count, std::size_t element_bytes) {
  if (count > std::numeric_limits<std::size_t>::max() / element_bytes) throw std::bad_array_new_length();
  return count * element_bytes;
}

inline void* Allocate(nram_t* handle, std::size_t bytes, std::size_t alignment) {
  if (bytes == 0) bytes = 1;
  void* const block = alignment <= alignof(std::max_align_t) ? nram_malloc(handle, bytes)
                                                             : nram_aligned_alloc(handle, alignment, bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace internal

// The defaults, to be changed and given to Memory.
inline nram_options DefaultOptions() {
  nram_options options{};
  nram_options_init(&options);
  return options;
}

// An open pool, and a budget of local memory. Owns the nram_t. A Memory that was moved from, or closed, can only be
// assigned to and destroyed.
class Memory {
 public:
  // nram_open(); `pool` as there, NULL: from the environment. Throws std::system_error: ENOENT, EINVAL, EIO, EPERM,
  // EBUSY, ENOTSUP.
  explicit Memory(const char* pool = nullptr) : handle_(nram_open(pool, nullptr)) {
    if (handle_ == nullptr) internal::ThrowLastError();
  }
  Memory(const char* pool, const nram_options& options) : handle_(nram_open(pool, &options)) {
    if (handle_ == nullptr) internal::ThrowLastError();
  }
  Memory(Memory&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Memory& operator=(Memory&& other) noexcept {
    if (this != &other) {
      if (handle_ != nullptr) nram_close(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Memory() {
    if (handle_ != nullptr) nram_close(handle_);
  }

  // As the destructor, but throws std::system_error if nram_close() fails; the handle is gone in either case. A second
  // call does nothing.
  void Close() {
    nram_t* const handle = std::exchange(handle_, nullptr);
    if (handle != nullptr && nram_close(handle) != 0) internal::ThrowLastError();
  }

  // Changes the budget in bytes, or its ceiling if it follows the machine; returns at once. Throws std::system_error:
  // EINVAL, EBUSY if more than half of it would be pinned.
  void SetBudget(std::uint64_t bytes) {
    if (nram_set_budget(handle_, bytes) != 0) internal::ThrowLastError();
  }

  // For the functions of nram.h; still owned by this object. NULL after a move or Close().
  nram_t* get() const { return handle_; }

  // Counters, see nram.h. Does not wait for servers. Throws std::system_error.
  nram_stats Stats() const {
    nram_stats stats{};
    stats.size = sizeof stats;
    if (nram_get_stats(handle_, &stats) != 0) internal::ThrowLastError();
    return stats;
  }

 private:
  nram_t* handle_;
};

// A mapping of elements, which begin as zero bytes. Owns the mapping. Like a std::span it gives T& whether or not the
// Array itself is const. Array<const T> is for reading only.
template <typename T>
class Array {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "elements must be trivially copyable and destructible: no constructor or destructor would run");
  static_assert(alignof(T) <= 4096, "mappings begin at pages of 4096 bytes");

 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using size_type = std::size_t;
  using iterator = T*;
  using const_iterator = T*;
  // As a count: all elements that follow.
  static constexpr std::size_t kRest = std::numeric_limits<std::size_t>::max();

  // No elements, no mapping.
  Array() = default;

  // `count` elements of zero bytes; 0 maps nothing. A `name` lets others attach it; `flags` may then be NRAM_MAP_KEEP.
  // Throws std::system_error: ENOMEM if the pool has no room for all of them, EEXIST if the name is taken, and
  // std::bad_array_new_length if their bytes are no size_t.
  Array(Memory& memory, std::size_t count, const char* name = nullptr, int flags = 0) {
    static_assert(!std::is_const_v<T>, "use Attach()");
    if (count == 0) return;
    Map(memory, internal::Bytes(count, sizeof(T)), name, flags);
    size_ = count;
  }

  // The first `count` elements of the region of that name; 0: all that its pages hold, which can be a few more than it
  // was made with. Array<const T> attaches for reading, in any number; Array<T> for writing, one process at a time.
  // `flags` may be NRAM_MAP_KEEP. Throws std::system_error: ENOENT, or EBUSY if another process, or another Array of
  // this Memory, writes.
  static Array Attach(Memory& memory, const char* name, std::size_t count = 0, int flags = 0) {
    Array array;
    array.Map(memory, internal::Bytes(count, sizeof(T)), name,
              flags | (std::is_const_v<T> ? NRAM_MAP_READ_ONLY : NRAM_MAP_ATTACH));
    array.size_ = count != 0 ? count : nram_length(array.handle_, array.data_) / sizeof(T);
    return array;
  }

  // A published version (NRAM_VERSION_NEWEST, or a number) of the mapping of that name, unchanging until Next(). For
  // Array<const T> only. Throws std::system_error: ENOENT if there is none, EIO if it was dropped.
  static Array Observe(Memory& memory, const char* name, std::uint64_t version = NRAM_VERSION_NEWEST,
                       std::size_t count = 0) {
    static_assert(std::is_const_v<T>, "observed arrays are read-only: use Array<const T>");
    void* const address = nram_observe(memory.get(), name, version, nullptr);
    if (address == nullptr) internal::ThrowLastError();
    Array array;
    array.handle_ = memory.get();
    array.data_ = static_cast<T*>(address);
    const std::size_t most = nram_length(array.handle_, address) / sizeof(T);
    if (count > most) throw std::out_of_range("nram::memory::Array: the version has fewer elements");
    array.size_ = count != 0 ? count : most;
    return array;
  }

  Array(Array&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  // Unmaps the present elements, as the destructor does.
  Array& operator=(Array&& other) noexcept {
    if (this != &other) {
      if (data_ != nullptr) nram_munmap(handle_, Address(0));
      handle_ = std::exchange(other.handle_, nullptr);
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  // A kept region that cannot be flushed remains mapped until the Memory is closed.
  ~Array() {
    if (data_ != nullptr) nram_munmap(handle_, Address(0));
  }

  // Flushes a kept region, then unmaps: the array is empty afterwards. If it throws std::system_error (EIO), all is as
  // before. On an empty array it does nothing.
  void Unmap() {
    if (data_ == nullptr) return;
    if (nram_munmap(handle_, Address(0)) != 0) internal::ThrowLastError();
    handle_ = nullptr;
    data_ = nullptr;
    size_ = 0;
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t size_bytes() const { return size_ * sizeof(T); }
  bool empty() const { return size_ == 0; }
  // `i` is not checked.
  T& operator[](std::size_t i) const { return data_[i]; }
  T& front() const { return data_[0]; }
  T& back() const { return data_[size_ - 1]; }
  iterator begin() const { return data_; }
  iterator end() const { return data_ + size_; }

  // nram_advise() for the pages of `count` elements from `first` on. Throws std::system_error, and std::out_of_range if
  // the array has fewer elements. NRAM_WILL_NEED waits only while 16 windows are on their way, the others may wait for
  // servers. Does nothing for no elements.
  void Advise(nram_advice advice, std::size_t first = 0, std::size_t count = kRest) const {
    count = Checked(first, count);
    if (count == 0) return;
    if (nram_advise(handle_, Address(first), count * sizeof(T), advice) != 0) internal::ThrowLastError();
  }
  // Begins to fetch the first of them, as much as half of the budget. Errors as above.
  void Prefetch(std::size_t first = 0, std::size_t count = kRest) const { Advise(NRAM_WILL_NEED, first, count); }
  // Waits until the servers have the changed pages. Errors as above, EIO if they do not get them.
  void Flush(std::size_t first = 0, std::size_t count = kRest) const {
    count = Checked(first, count);
    if (count == 0) return;
    if (nram_flush(handle_, Address(first), count * sizeof(T)) != 0) internal::ThrowLastError();
  }

  // Makes the present contents a version, and returns its number. The function Publish() takes several mappings, and
  // has the same errors.
  std::uint64_t Publish(const Description& description = Description()) const {
    return memory::Publish(handle_, {data_}, description);
  }
  // Waits until the version (0: the last) can be observed; false after the timeout. Throws std::system_error: EIO if it
  // could not be published, EINPROGRESS if it may exist or not, until a later one does.
  bool AwaitPublished(std::uint64_t version, std::uint32_t timeout_ms) const {
    return internal::AwaitPublished(handle_, data_, version, timeout_ms);
  }
  // Needs an observed array. Goes on to the newest version as soon as there is a newer one, and returns its number; 0
  // after the timeout. Unchanged pages remain resident. No other thread may use the elements meanwhile. Throws
  // std::system_error, with all as before.
  std::uint64_t Next(std::uint32_t timeout_ms) { return internal::Next(handle_, Address(0), timeout_ms); }
  // The number of the observed version. Throws std::system_error: EINVAL if the array does not observe.
  std::uint64_t Version() const { return internal::InfoOf(handle_, data_).version; }
  // The producer's header of the observed version, JSON or ""; valid until Next(). Throws std::system_error.
  const char* VersionHeader() const { return internal::HeaderOf(handle_, data_); }
  // The array of the observed version that has this name. Throws std::system_error: ENOENT if there is none;
  // std::invalid_argument if its elements are not U, or it is in another mapping (an Observer has all mappings).
  template <typename U>
  View<const U> Find(const char* name) const {
    return internal::Find<U>(handle_, data_, name);
  }

 private:
  void Map(Memory& memory, std::size_t bytes, const char* name, int flags) {
    void* const address = nram_mmap(memory.get(), bytes, name, flags);
    if (address == nullptr) internal::ThrowLastError();
    handle_ = memory.get();
    data_ = static_cast<T*>(address);
  }
  void* Address(std::size_t first) const { return const_cast<value_type*>(data_ + first); }
  std::size_t Checked(std::size_t first, std::size_t count) const {
    if (first > size_ || (count != kRest && count > size_ - first)) {
      throw std::out_of_range("nram::memory::Array: the range goes beyond the end");
    }
    return count == kRest ? size_ - first : count;
  }

  nram_t* handle_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// All mappings of a published version, to read its arrays by their names. The state is unchanging until Next(). The
// mappings are the Observer's to unmap.
class Observer {
 public:
  // A version (NRAM_VERSION_NEWEST, or a number) of the mapping of that name. Throws std::system_error: ENOENT if there
  // is none, EIO if it was dropped.
  Observer(Memory& memory, const char* name, std::uint64_t version = NRAM_VERSION_NEWEST) : handle_(memory.get()) {
    mappings_.resize(kMappingsMax);
    std::size_t count = mappings_.size();
    if (nram_observe_all(handle_, name, version, mappings_.data(), &count, nullptr) != 0) internal::ThrowLastError();
    mappings_.resize(count);
  }
  // An Observer that was moved from can only be assigned to and destroyed.
  Observer(Observer&& other) noexcept : handle_(other.handle_), mappings_(std::exchange(other.mappings_, {})) {}
  // Unmaps the present version, as the destructor does.
  Observer& operator=(Observer&& other) noexcept {
    if (this != &other) {
      Unmap();
      handle_ = other.handle_;
      mappings_ = std::exchange(other.mappings_, {});
    }
    return *this;
  }
  ~Observer() { Unmap(); }

  // As Array::Find.
  template <typename T>
  View<const T> Find(const char* name) const {
    return internal::Find<T>(handle_, mappings_[0], name);
  }
  // All arrays, in their producer's order. Names and data are valid as long as views are.
  std::vector<nram_array> Arrays() const {
    std::vector<nram_array> arrays;
    nram_array array{};
    nram_array_init(&array);
    while (nram_get_array(handle_, mappings_[0], arrays.size(), &array) == 0) arrays.push_back(array);
    if (errno != ENOENT) internal::ThrowLastError();
    return arrays;
  }
  // As Array::Next; find views anew afterwards.
  std::uint64_t Next(std::uint32_t timeout_ms) { return internal::Next(handle_, mappings_[0], timeout_ms); }
  std::uint64_t Version() const { return internal::InfoOf(handle_, mappings_[0]).version; }
  // The producer's own count.
  std::uint64_t Step() const { return internal::InfoOf(handle_, mappings_[0]).step; }
  // As Array::VersionHeader.
  const char* Header() const { return internal::HeaderOf(handle_, mappings_[0]); }
  // In the order of their publication.
  const std::vector<void*>& mappings() const { return mappings_; }

 private:
  static constexpr std::size_t kMappingsMax = 64;  // of a version

  void Unmap() {
    for (void* const mapping : mappings_) nram_munmap(handle_, mapping);
  }

  nram_t* handle_;
  std::vector<void*> mappings_;
};

// For the containers of std::pmr, and so for their strings and nested containers: all their allocations are in nram
// memory. Resources of the same Memory are equal. allocate() throws std::bad_alloc; it and deallocate() seldom wait for
// servers. Must outlive the containers that use it.
class MemoryResource : public std::pmr::memory_resource {
 public:
  explicit MemoryResource(Memory& memory) : handle_(memory.get()) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return internal::Allocate(handle_, bytes, alignment);
  }
  void do_deallocate(void* block, std::size_t, std::size_t) override { nram_free(handle_, block); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const auto* const same = dynamic_cast<const MemoryResource*>(&other);
    return same != nullptr && same->handle_ == handle_;
  }

  nram_t* handle_;
};

namespace internal {

// An allocator for the containers of std over a source of blocks, which is copied with it.
template <typename T, typename Source>
class ContainerAllocator {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;

  // Not explicit, so that a container can be made from the source's owner, a Memory or an Arena.
  ContainerAllocator(typename Source::Owner& owner) noexcept : source_(owner) {}
  template <typename U>
  ContainerAllocator(const ContainerAllocator<U, Source>& other) noexcept : source_(other.source_) {}

  T* allocate(std::size_t count) { return static_cast<T*>(source_.Allocate(Bytes(count, sizeof(T)), alignof(T))); }
  void deallocate(T* block, std::size_t count) noexcept { source_.Free(block, count * sizeof(T), alignof(T)); }

  template <typename U>
  bool operator==(const ContainerAllocator<U, Source>& other) const noexcept {
    return source_ == other.source_;
  }
  template <typename U>
  bool operator!=(const ContainerAllocator<U, Source>& other) const noexcept {
    return !(*this == other);
  }

 private:
  template <typename U, typename OtherSource>
  friend class ContainerAllocator;

  Source source_;
};

struct HeapSource {
  using Owner = Memory;
  explicit HeapSource(Memory& memory) noexcept : handle(memory.get()) {}
  void* Allocate(std::size_t bytes, std::size_t alignment) const {
    return internal::Allocate(handle, bytes, alignment);
  }
  void Free(void* block, std::size_t, std::size_t) const noexcept { nram_free(handle, block); }
  bool operator==(const HeapSource& other) const noexcept { return handle == other.handle; }

  nram_t* handle;
};

}  // namespace internal

// For the containers of std. Allocators of the same Memory are equal; assigning or swapping containers takes the
// allocator along, so that a moved container never copies its elements. allocate() throws std::bad_alloc.
template <typename T>
using Allocator = internal::ContainerAllocator<T, internal::HeapSource>;

// A mapping with a name, to allocate from: the contents of containers can be published, and their arrays described by
// address (Description::Add("u", u.data(), {u.size()})). A memory_resource for the containers of std::pmr;
// ArenaAllocator is for those of std.
//
//   Arena arena(memory, 1 << 30, "run");
//   std::pmr::vector<double> u(n, &arena);
//   arena.Publish(Description().Add("u", u.data(), {u.size()}));
//
// Observers see bytes: pointers in them, as in a std::list, are the producer's addresses. A program that starts anew
// cannot go on with the containers in a kept arena.
//
// Its size is fixed. allocate() takes the first free piece that fits, lowest address first, looking at one piece after
// the other, and throws std::bad_alloc if none fits. deallocate() joins a piece with its neighbours. The list of free
// pieces is in local memory, so neither call touches a page or waits for servers. Any thread may call both at any time;
// the program guards its containers, also while it publishes. An Arena must outlive its blocks, and cannot be moved.
class Arena : public std::pmr::memory_resource {
 public:
  // `bytes`, rounded up to pages. Throws as the constructor of Array. `flags` may be NRAM_MAP_KEEP.
  Arena(Memory& memory, std::size_t bytes, const char* name, int flags = 0)
      : handle_(memory.get()), mapping_(memory, bytes, name, flags) {
    if (mapping_.empty()) return;
    size_ = nram_length(handle_, mapping_.data());
    free_.emplace(reinterpret_cast<std::uintptr_t>(mapping_.data()), size_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return mapping_.data(); }
  std::size_t size() const { return size_; }
  // Bytes without a block. They may be in many pieces.
  std::size_t free_bytes() const {
    const std::lock_guard<std::mutex> lock(mu_);
    std::size_t bytes = 0;
    for (const auto& room : free_) bytes += room.second;
    return bytes;
  }

  // As those of Array. The function Publish() takes data() with other mappings.
  std::uint64_t Publish(const Description& description) const { return mapping_.Publish(description); }
  bool AwaitPublished(std::uint64_t version, std::uint32_t timeout_ms) const {
    return mapping_.AwaitPublished(version, timeout_ms);
  }

 private:
  static constexpr std::size_t kUnit = alignof(std::max_align_t);  // of block sizes

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > size_ || alignment > size_) throw std::bad_alloc();
    bytes = Rounded(bytes);
    const std::lock_guard<std::mutex> lock(mu_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const std::uintptr_t at = (it->first + alignment - 1) / alignment * alignment;
      const std::size_t before = at - it->first;
      if (before > it->second || it->second - before < bytes) continue;
      // Calls that may throw come first.
      const std::size_t after = it->second - before - bytes;
      if (after > 0) free_.emplace_hint(std::next(it), at + bytes, after);
      if (before > 0) {
        it->second = before;
      } else {
        free_.erase(it);
      }
      return reinterpret_cast<void*>(at);
    }
    throw std::bad_alloc();
  }

  void do_deallocate(void* block, std::size_t bytes, std::size_t) override {
    const auto at = reinterpret_cast<std::uintptr_t>(block);
    bytes = Rounded(bytes);
    const std::lock_guard<std::mutex> lock(mu_);
    const auto next = free_.upper_bound(at);
    const bool meets_next = next != free_.end() && next->first == at + bytes;
    if (next != free_.begin()) {
      const auto former = std::prev(next);
      if (former->first + former->second == at) {
        former->second += bytes;
        if (meets_next) {
          former->second += next->second;
          free_.erase(next);
        }
        return;
      }
    }
    if (meets_next) {
      auto node = free_.extract(next);
      node.key() = at;
      node.mapped() += bytes;
      free_.insert(std::move(node));
      return;
    }
    try {
      free_.emplace_hint(next, at, bytes);
    } catch (const std::bad_alloc&) {
      // Destructors of containers call this: better to lose the piece than the program.
    }
  }

  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  static std::size_t Rounded(std::size_t bytes) { return bytes == 0 ? kUnit : (bytes + kUnit - 1) / kUnit * kUnit; }

  nram_t* handle_;
  Array<std::byte> mapping_;
  std::size_t size_ = 0;
  mutable std::mutex mu_;
  std::map<std::uintptr_t, std::size_t> free_;  // pieces by address: no two meet
};

namespace internal {

struct ArenaSource {
  using Owner = Arena;
  explicit ArenaSource(Arena& owner) noexcept : arena(&owner) {}
  void* Allocate(std::size_t bytes, std::size_t alignment) const { return arena->allocate(bytes, alignment); }
  void Free(void* block, std::size_t bytes, std::size_t alignment) const noexcept {
    arena->deallocate(block, bytes, alignment);
  }
  bool operator==(const ArenaSource& other) const noexcept { return arena == other.arena; }

  Arena* arena;
};

}  // namespace internal

// For the containers of std, in an Arena. Allocators of the same Arena are equal; assigning or swapping containers
// takes the allocator along, as with Allocator.
template <typename T>
using ArenaAllocator = internal::ContainerAllocator<T, internal::ArenaSource>;

}  // namespace nram::memory

#endif  // NRAM_CLIENT_MEMORY_NRAM_HPP_
