// Containers in a mapping with a name, on real servers: the places of blocks, the reuse of freed room, and the
// observers' view of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "client/memory/nram.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/memory/cpp_face_util.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::nram::memory::Arena;
using ::nram::memory::ArenaAllocator;
using ::nram::memory::Description;
using ::nram::memory::Memory;
using ::nram::memory::Observer;
using ::testing::Each;

constexpr uint64_t kBytes = 16 * kMiB;
constexpr uint32_t kPatienceMs = 120'000;

static_assert(!std::is_copy_constructible_v<Arena> && !std::is_move_constructible_v<Arena>);

class CppArenaTest : public ::testing::Test {
 protected:
  CppArenaTest() : memory_(Open(servers_)), arena_(memory_, kBytes, "arena") {}
  bool IsInside(const void* block, size_t bytes) const {
    const auto* const at = static_cast<const std::byte*>(block);
    return at >= arena_.data() && at + bytes <= arena_.data() + arena_.size();
  }

  TestPool servers_{2};
  Memory memory_;
  Arena arena_;
};

TEST_F(CppArenaTest, ContainersLieInTheMappingAndGiveItBack) {
  EXPECT_EQ(arena_.size(), kBytes);
  {
    std::vector<uint64_t, ArenaAllocator<uint64_t>> numbers(arena_);
    for (uint64_t i = 0; i < 500'000; ++i) numbers.push_back(i);
    EXPECT_TRUE(IsInside(numbers.data(), numbers.size() * sizeof(uint64_t)));
    std::pmr::unordered_map<int, std::pmr::string> map(&arena_);
    for (int i = 0; i < 5'000; ++i) map[i].assign(100, static_cast<char>('a' + i % 26));
    EXPECT_TRUE(IsInside(map[7].data(), 100));
    for (int i = 0; i < 5'000; i += 2) map.erase(i);
    uint64_t wrong = 0;
    for (const auto& [key, text] : map) wrong += text != std::pmr::string(100, static_cast<char>('a' + key % 26));
    for (uint64_t i = 0; i < numbers.size(); ++i) wrong += numbers[i] != i;
    EXPECT_EQ(wrong, 0u);
    EXPECT_LT(arena_.free_bytes(), kBytes - 500'000 * sizeof(uint64_t));
  }
  EXPECT_EQ(arena_.free_bytes(), kBytes);
  // The free room is one piece.
  void* const all = arena_.allocate(kBytes, 4096);
  EXPECT_EQ(all, arena_.data());
  arena_.deallocate(all, kBytes, 4096);
}

TEST_F(CppArenaTest, ItEndsWithTheMapping) {
  std::pmr::vector<char> most(kBytes - 4096, 'x', &arena_);
  std::pmr::vector<char> rest(4096, 'y', &arena_);
  EXPECT_EQ(arena_.free_bytes(), 0u);
  EXPECT_THROW((void)arena_.allocate(1), std::bad_alloc);
  EXPECT_THROW((void)arena_.allocate(0), std::bad_alloc);
  EXPECT_THROW(rest.push_back('z'), std::bad_alloc);
  EXPECT_THAT(rest, Each('y'));
  most = std::pmr::vector<char>(&arena_);
  EXPECT_EQ(arena_.free_bytes(), kBytes - 4096);
  EXPECT_THROW((void)arena_.allocate(kBytes - 4096 + 1), std::bad_alloc);
  EXPECT_THROW((void)arena_.allocate(std::numeric_limits<size_t>::max()), std::bad_alloc);
  size_t alignment = size_t{1} << 62;  // no constant: compilers know that it is too much
  EXPECT_THROW((void)arena_.allocate(1, alignment), std::bad_alloc);
  EXPECT_THROW((void)ArenaAllocator<uint64_t>(arena_).allocate(std::numeric_limits<size_t>::max() / 4),
               std::bad_array_new_length);
  EXPECT_EQ(arena_.free_bytes(), kBytes - 4096);
  rest.push_back('z');
  EXPECT_EQ(rest.size(), 4097u);
  // With a name that is taken there is no arena.
  EXPECT_THROW(Arena(memory_, kBytes, "arena"), std::system_error);
}

// Blocks of all sizes and alignments are made and freed in any order: none overlaps another or leaves its place, and in
// the end there is one piece again.
TEST_F(CppArenaTest, BlocksDoNotOverlapAndRoomMeets) {
  struct Block {
    std::byte* data;
    size_t bytes;
    size_t alignment;
    int seed;
  };
  std::mt19937_64 random(TestSeed());
  std::vector<Block> blocks;
  std::map<std::byte*, size_t> used;
  size_t most = 0;
  const auto give_back = [&](size_t i) {
    const Block block = blocks[i];
    const auto is_mine = [&](std::byte byte) { return byte == static_cast<std::byte>(block.seed); };
    EXPECT_TRUE(std::all_of(block.data, block.data + std::min<size_t>(block.bytes, 64), is_mine));
    EXPECT_TRUE(
        std::all_of(block.data + block.bytes - std::min<size_t>(block.bytes, 64), block.data + block.bytes, is_mine));
    arena_.deallocate(block.data, block.bytes, block.alignment);
    used.erase(block.data);
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  for (int i = 0; i < 20'000; ++i) {
    if (!blocks.empty() && random() % 100 < (i / 2'000 % 2 == 0 ? 35 : 65)) {
      give_back(random() % blocks.size());
      continue;
    }
    const size_t alignment = size_t{1} << random() % 13;
    const size_t bytes = 1 + random() % (size_t{1} << random() % 18);
    std::byte* data = nullptr;
    try {
      data = static_cast<std::byte*>(arena_.allocate(bytes, alignment));
    } catch (const std::bad_alloc&) {
      continue;  // it is full
    }
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0u);
    ASSERT_TRUE(IsInside(data, bytes));
    const auto next = used.lower_bound(data);
    if (next != used.end()) {
      ASSERT_LE(data + bytes, next->first);
    }
    if (next != used.begin()) {
      ASSERT_LE(std::prev(next)->first + std::prev(next)->second, data);
    }
    used[data] = bytes;
    // The ends of it only: pages in between would cost time.
    memset(data, i % 251, std::min<size_t>(bytes, 64));
    memset(data + bytes - std::min<size_t>(bytes, 64), i % 251, std::min<size_t>(bytes, 64));
    blocks.push_back({data, bytes, alignment, i % 251});
    most = std::max(most, blocks.size());
  }
  EXPECT_GT(most, 100u);
  while (!blocks.empty()) give_back(random() % blocks.size());
  EXPECT_EQ(arena_.free_bytes(), kBytes);
  EXPECT_EQ(arena_.allocate(kBytes, 4096), arena_.data());
}

TEST_F(CppArenaTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  std::vector<uint64_t> wrong(4);
  for (uint64_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t round = 0; round < 200; ++round) {
        std::vector<uint64_t, ArenaAllocator<uint64_t>> numbers(arena_);
        for (uint64_t i = 0; i < 300; ++i) numbers.push_back(thread * 1'000 + i);
        for (uint64_t i = 0; i < 300; ++i) wrong[thread] += numbers[i] != thread * 1'000 + i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0u));
  EXPECT_EQ(arena_.free_bytes(), kBytes);
}

TEST_F(CppArenaTest, ItsAllocatorGoesWithItsContainer) {
  Arena other(memory_, kBytes, "other");
  EXPECT_TRUE(ArenaAllocator<int>(arena_) == ArenaAllocator<char>(arena_));
  EXPECT_TRUE(ArenaAllocator<int>(arena_) != ArenaAllocator<int>(other));
  EXPECT_TRUE(arena_ != other);
  using Vector = std::vector<int, ArenaAllocator<int>>;
  Vector a(1000, 1, arena_);
  Vector b(2000, 2, other);
  const int* const data = b.data();
  a = std::move(b);
  EXPECT_EQ(a.data(), data);
  EXPECT_EQ(arena_.free_bytes(), kBytes);
  swap(a, b);
  EXPECT_EQ(b.data(), data);
}

TEST_F(CppArenaTest, TheStateOfContainersIsPublished) {
  Memory elsewhere = Open(servers_);
  std::pmr::vector<double> u(&arena_);
  std::vector<int32_t, ArenaAllocator<int32_t>> marks(7, 3, arena_);
  const auto publish = [&](uint64_t step) {
    Description description;
    description.options.step = step;
    description.Add("u", u.data(), {u.size() / 2, 2}).Add("marks", marks.data(), {marks.size()});
    const uint64_t version = arena_.Publish(description);
    EXPECT_TRUE(arena_.AwaitPublished(version, kPatienceMs));
  };
  u.resize(100'000, 1.5);
  publish(1);
  Observer seen(elsewhere, "arena");
  EXPECT_EQ(seen.Step(), 1u);
  EXPECT_EQ(seen.Find<double>("u").extent(0), 50'000u);
  EXPECT_THAT(seen.Find<double>("u"), Each(1.5));
  // It grows, and lies elsewhere then.
  const double* const before = u.data();
  u.resize(300'000, 2.5);
  u[299'999] = 3.5;
  EXPECT_NE(u.data(), before);
  marks.assign(9, 4);
  publish(2);
  EXPECT_EQ(seen.Find<double>("u").extent(0), 50'000u);
  EXPECT_THAT(seen.Find<double>("u"), Each(1.5));
  ASSERT_NE(seen.Next(kPatienceMs), 0u);
  const auto next = seen.Find<double>("u");
  EXPECT_EQ(next.extent(0), 150'000u);
  EXPECT_EQ(next(149'999, 1), 3.5);
  EXPECT_EQ(next(0, 0), 1.5);
  EXPECT_EQ(next(50'000, 0), 2.5);
  EXPECT_EQ(seen.Find<int32_t>("marks").size(), 9u);
  EXPECT_THAT(seen.Find<int32_t>("marks"), Each(4));
  // An empty one has no place.
  marks = {};
  u.clear();
  publish(3);
  ASSERT_NE(seen.Next(kPatienceMs), 0u);
  EXPECT_EQ(seen.Find<int32_t>("marks").size(), 0u);
  EXPECT_EQ(seen.Find<double>("u").size(), 0u);
  EXPECT_EQ(seen.Find<double>("u").extent(1), 2u);
}

}  // namespace
}  // namespace nram
