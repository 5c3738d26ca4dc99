// Containers in nram memory, through the allocators of its C++ face, on real servers.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/memory/nram.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/memory/cpp_face_util.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::nram::memory::Allocator;
using ::nram::memory::Memory;
using ::nram::memory::MemoryResource;
using ::testing::Each;
using ::testing::ElementsAre;

template <typename T>
uint64_t Number(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

TEST(CppAllocatorTest, VectorsGrowBeyondTheBudget) {
  TestPool servers(2);
  Memory memory = Open(servers);
  std::vector<uint64_t, Allocator<uint64_t>> numbers(memory);
  std::vector<uint64_t> model;
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < 3 * kBudget / sizeof(uint64_t); ++i) {
    model.push_back(random());
    numbers.push_back(model.back());
  }
  EXPECT_TRUE(std::equal(model.begin(), model.end(), numbers.begin(), numbers.end()));
  std::sort(numbers.begin(), numbers.end());
  std::sort(model.begin(), model.end());
  EXPECT_TRUE(std::equal(model.begin(), model.end(), numbers.begin(), numbers.end()));
}

TEST(CppAllocatorTest, MapsRebindIt) {
  TestPool servers(2);
  Memory memory = Open(servers);
  using Map = std::map<int, int, std::less<int>, Allocator<std::pair<const int, int>>>;
  const Allocator<std::pair<const int, int>> allocator(memory);
  Map map(allocator);
  for (int i = 0; i < 20'000; ++i) map[i * 7919 % 20'000] = i;
  EXPECT_EQ(map.size(), 20'000);
  int wrong = 0;
  for (const auto& [key, value] : map) wrong += value * 7919 % 20'000 != key;
  EXPECT_EQ(wrong, 0);
  for (int i = 0; i < 20'000; i += 2) map.erase(i);
  EXPECT_EQ(map.size(), 10'000);
  EXPECT_GT(memory.Stats().mapped_bytes, 10'000 * sizeof(Map::value_type));
}

TEST(CppAllocatorTest, IsEqualByMemoryAndGoesWithItsContainer) {
  TestPool servers(1);
  Memory one = Open(servers);
  Memory two = Open(servers);
  EXPECT_TRUE(Allocator<int>(one) == Allocator<char>(one));
  EXPECT_TRUE(Allocator<int>(one) != Allocator<int>(two));

  using Vector = std::vector<int, Allocator<int>>;
  Vector a(1000, 1, one);
  Vector b(2000, 2, two);
  const int* const a_data = a.data();
  const int* const b_data = b.data();
  swap(a, b);
  EXPECT_EQ(a.data(), b_data);
  EXPECT_EQ(b.data(), a_data);
  EXPECT_TRUE(a.get_allocator() == Allocator<int>(two));
  a = std::move(b);
  EXPECT_EQ(a.data(), a_data);
  EXPECT_TRUE(a.get_allocator() == Allocator<int>(one));
  Vector c(two);
  c = a;
  EXPECT_TRUE(c.get_allocator() == Allocator<int>(one));
  EXPECT_THAT(c, Each(1));
  EXPECT_EQ(c.size(), 1000);
  const Vector d(c);
  EXPECT_TRUE(d.get_allocator() == c.get_allocator());
}

TEST(CppAllocatorTest, ThrowsBadAllocAndGoesOn) {
  TestPool servers(1);
  Memory memory = Open(servers);
  Allocator<uint64_t> allocator(memory);
  EXPECT_THROW((void)allocator.allocate(uint64_t{1} << 40), std::bad_alloc);
  EXPECT_THROW((void)allocator.allocate(std::numeric_limits<size_t>::max() / 4), std::bad_array_new_length);
  std::vector<uint64_t, Allocator<uint64_t>> numbers(100, 3, memory);
  EXPECT_THROW(numbers.reserve(uint64_t{1} << 40), std::bad_alloc);
  EXPECT_THAT(numbers, Each(3));
}

TEST(CppAllocatorTest, AlignsAsTheTypeAsks) {
  struct alignas(256) Line {
    char bytes[256];
  };
  TestPool servers(1);
  Memory memory = Open(servers);
  Allocator<Line> allocator(memory);
  for (const size_t count : {1, 3, 100}) {
    Line* const lines = allocator.allocate(count);
    EXPECT_EQ(Number(lines) % 256, 0);
    lines[count - 1].bytes[255] = 'x';
    allocator.deallocate(lines, count);
  }
}

TEST(CppMemoryResourceTest, NestedContainersAllocateInIt) {
  TestPool servers(2);
  Memory memory = Open(servers);
  MemoryResource resource(memory);
  std::pmr::unordered_map<int, std::pmr::string> map(&resource);
  for (int i = 0; i < 50'000; ++i) map[i].assign(100, static_cast<char>('a' + i % 26));
  EXPECT_GT(memory.Stats().mapped_bytes, 50'000 * 100);
  EXPECT_TRUE(map[0].get_allocator().resource()->is_equal(resource));
  int wrong = 0;
  for (const auto& [key, text] : map) wrong += text != std::pmr::string(100, static_cast<char>('a' + key % 26));
  EXPECT_EQ(wrong, 0);

  std::pmr::vector<std::pmr::vector<int>> rows(&resource);
  for (int i = 0; i < 100; ++i) rows.emplace_back(i, i);
  for (int i = 0; i < 100; ++i) EXPECT_THAT(rows[i], Each(i));
}

TEST(CppMemoryResourceTest, IsEqualByMemory) {
  TestPool servers(1);
  Memory memory = Open(servers);
  Memory other = Open(servers);
  const MemoryResource a(memory), b(memory), c(other);
  EXPECT_TRUE(a == b);
  EXPECT_TRUE(a != c);
  EXPECT_TRUE(a != *std::pmr::new_delete_resource());
  EXPECT_TRUE(*std::pmr::new_delete_resource() != a);
}

TEST(CppMemoryResourceTest, AlignsAndThrowsBadAlloc) {
  TestPool servers(1);
  Memory memory = Open(servers);
  MemoryResource resource(memory);
  for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
    void* const block = resource.allocate(100, alignment);
    EXPECT_EQ(Number(static_cast<char*>(block)) % alignment, 0);
    resource.deallocate(block, 100, alignment);
  }
  void* const nothing = resource.allocate(0);
  EXPECT_NE(nothing, nullptr);
  resource.deallocate(nothing, 0);
  EXPECT_THROW((void)resource.allocate(uint64_t{1} << 50), std::bad_alloc);
  std::pmr::vector<int> numbers({1, 2, 3}, &resource);
  EXPECT_THROW(numbers.reserve(uint64_t{1} << 40), std::bad_alloc);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace nram
