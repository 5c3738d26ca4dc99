// The arrays of a version, by the C API on real servers: the arrays that observers find, and the refusals to producers.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "client/memory/nram.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/memory/cpp_face_util.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::nram::memory::Memory;
using ::testing::HasSubstr;
using ::testing::StrEq;

constexpr uint32_t kPatienceMs = 120'000;
constexpr uint64_t kBytes = kMiB;

nram_array ArrayOf(const char* name, const void* data, nram_element type, std::vector<uint64_t> extents,
                   nram_order order = NRAM_ORDER_C) {
  nram_array array;
  nram_array_init(&array);
  array.name = name;
  array.data = data;
  array.type = type;
  array.order = order;
  array.dimensions = static_cast<uint32_t>(extents.size());
  for (size_t i = 0; i < extents.size() && i < NRAM_DIMENSIONS_MAX; ++i) array.extents[i] = extents[i];
  return array;
}

class PublishedArraysTest : public ::testing::Test {
 protected:
  PublishedArraysTest() : producer_(Open(servers_)), observer_(Open(servers_)) {
    field_ = Map("field");
    facts_ = Map("facts");
  }

  double* Map(const char* name) {
    void* const base = nram_mmap(producer_.get(), kBytes, name, 0);
    EXPECT_NE(base, nullptr) << nram_error();
    return static_cast<double*>(base);
  }
  static nram_publish_options Options(const std::vector<nram_array>& arrays) {
    nram_publish_options options;
    nram_publish_options_init(&options);
    options.arrays = arrays.data();
    options.array_count = arrays.size();
    return options;
  }
  int TryPublish(const nram_publish_options& options) {
    const void* const bases[] = {field_, facts_};
    uint64_t version = 0;
    return nram_publish_all(producer_.get(), bases, 2, &options, &version);
  }
  void Publish(const nram_publish_options& options) {
    ASSERT_EQ(TryPublish(options), 0) << nram_error();
    ASSERT_EQ(nram_published(producer_.get(), field_, 0, kPatienceMs), 0) << nram_error();
  }
  nram_array Find(const void* seen, const char* name) {
    nram_array array;
    nram_array_init(&array);
    EXPECT_EQ(nram_find_array(observer_.get(), seen, name, &array), 0) << nram_error();
    return array;
  }
  // The errno of a publication with this array beside a good one; nram_error() has its message.
  int ErrorOf(const nram_array& array) {
    const std::vector<nram_array> arrays = {ArrayOf("good", field_, NRAM_FLOAT64, {4}), array};
    errno = 0;
    return TryPublish(Options(arrays)) == 0 ? 0 : errno;
  }

  TestPool servers_{2};
  Memory producer_;
  Memory observer_;
  double* field_ = nullptr;
  double* facts_ = nullptr;
};

TEST_F(PublishedArraysTest, ObserversFindThemByName) {
  for (int i = 0; i < 6; ++i) field_[512 + i] = i;
  facts_[3] = 0.5;
  Publish(Options({ArrayOf("u", field_ + 512, NRAM_FLOAT64, {2, 3}, NRAM_ORDER_FORTRAN),
                   ArrayOf("sum \xC3\xBC", facts_ + 3, NRAM_FLOAT64, {}), ArrayOf("none", field_, NRAM_INT32, {0, 7}),
                   ArrayOf("all", field_, NRAM_UINT8, {kBytes}), ArrayOf("nowhere", nullptr, NRAM_INT64, {3, 0})}));
  void* bases[2] = {};
  size_t count = 2;
  ASSERT_EQ(nram_observe_all(observer_.get(), "field", 0, bases, &count, nullptr), 0) << nram_error();
  ASSERT_EQ(count, 2u);
  // Through either mapping.
  for (const void* const base : bases) {
    const nram_array u = Find(base, "u");
    EXPECT_THAT(u.name, StrEq("u"));
    EXPECT_EQ(u.type, NRAM_FLOAT64);
    EXPECT_EQ(u.order, NRAM_ORDER_FORTRAN);
    ASSERT_EQ(u.dimensions, 2u);
    EXPECT_EQ(u.extents[0], 2u);
    EXPECT_EQ(u.extents[1], 3u);
    EXPECT_EQ(u.extents[2], 0u);
    EXPECT_EQ(u.mapping, 0u);
    EXPECT_EQ(u.offset, 4096u);
    ASSERT_EQ(u.data, static_cast<const double*>(bases[0]) + 512);
    EXPECT_EQ(static_cast<const double*>(u.data)[5], 5);
    const nram_array sum = Find(base, "sum \xC3\xBC");
    EXPECT_EQ(sum.dimensions, 0u);
    EXPECT_EQ(sum.mapping, 1u);
    ASSERT_EQ(sum.data, static_cast<const double*>(bases[1]) + 3);
    EXPECT_EQ(*static_cast<const double*>(sum.data), 0.5);
  }
  EXPECT_EQ(Find(bases[0], "nowhere").data, bases[0]);
  EXPECT_EQ(Find(bases[0], "nowhere").extents[0], 3u);
  nram_array array;
  nram_array_init(&array);
  std::string names;
  size_t i = 0;
  for (; nram_get_array(observer_.get(), bases[0], i, &array) == 0; ++i) names += std::string(array.name) + ",";
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(i, 5u);
  EXPECT_EQ(names, "u,sum \xC3\xBC,none,all,nowhere,");
  EXPECT_EQ(nram_find_array(observer_.get(), bases[0], "v", &array), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_THAT(nram_error(), HasSubstr("no array \"v\" among its 5"));
  EXPECT_EQ(nram_find_array(observer_.get(), bases[0], nullptr, &array), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(nram_find_array(producer_.get(), field_, "u", &array), -1);
  EXPECT_EQ(errno, EINVAL);
  array.size = 8;
  EXPECT_EQ(nram_find_array(observer_.get(), bases[0], "u", &array), -1);
  EXPECT_EQ(errno, EINVAL);
  // An array has no address after its mapping is unmapped.
  ASSERT_EQ(nram_munmap(observer_.get(), bases[1]), 0);
  EXPECT_EQ(Find(bases[0], "sum \xC3\xBC").data, nullptr);
}

TEST_F(PublishedArraysTest, EachVersionHasItsOwn) {
  Publish(Options({ArrayOf("u", field_, NRAM_FLOAT64, {4}), ArrayOf("n", facts_, NRAM_INT64, {})}));
  void* const seen = nram_observe(observer_.get(), "field", 0, nullptr);
  ASSERT_NE(seen, nullptr) << nram_error();
  EXPECT_EQ(Find(seen, "u").extents[0], 4u);
  // That mapping was not observed.
  EXPECT_EQ(Find(seen, "n").mapping, 1u);
  EXPECT_EQ(Find(seen, "n").data, nullptr);
  Publish(Options({ArrayOf("u", field_ + 8, NRAM_FLOAT32, {5})}));
  EXPECT_EQ(Find(seen, "u").extents[0], 4u) << "nobody has asked for the next";
  ASSERT_EQ(nram_next(observer_.get(), seen, kPatienceMs, nullptr), 0) << nram_error();
  EXPECT_EQ(Find(seen, "u").extents[0], 5u);
  EXPECT_EQ(Find(seen, "u").type, NRAM_FLOAT32);
  EXPECT_EQ(Find(seen, "u").data, static_cast<const double*>(seen) + 8);
  // A program that was built before there were arrays: its structure ends before them.
  nram_publish_options older;
  nram_publish_options_init(&older);
  older.arrays = reinterpret_cast<const nram_array*>(8);
  older.array_count = 77;
  older.size = offsetof(nram_publish_options, arrays);
  Publish(older);
  ASSERT_EQ(nram_next(observer_.get(), seen, kPatienceMs, nullptr), 0) << nram_error();
  nram_array array;
  nram_array_init(&array);
  EXPECT_EQ(nram_get_array(observer_.get(), seen, 0, &array), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(PublishedArraysTest, WhatCannotBeIsRefused) {
  const uint64_t count = kBytes / sizeof(double);
  EXPECT_EQ(ErrorOf(ArrayOf("a", field_, NRAM_FLOAT64, {count})), 0);
  EXPECT_EQ(ErrorOf(ArrayOf("a", field_, NRAM_FLOAT64, {count + 1})), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("does not fit"));
  EXPECT_EQ(ErrorOf(ArrayOf("a", field_ + 1, NRAM_FLOAT64, {count})), EINVAL);
  EXPECT_EQ(ErrorOf(ArrayOf("a", field_, NRAM_FLOAT64, {uint64_t{1} << 32, uint64_t{1} << 32})), EINVAL);
  EXPECT_EQ(ErrorOf(ArrayOf("a", reinterpret_cast<char*>(field_) + 4, NRAM_FLOAT64, {1})), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("multiples of 8"));
  EXPECT_EQ(ErrorOf(ArrayOf("a", &count, NRAM_UINT64, {})), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("\"a\" begins in none of the published mappings"));
  EXPECT_EQ(ErrorOf(ArrayOf("a", nullptr, NRAM_UINT64, {})), EINVAL);
  EXPECT_EQ(ErrorOf(ArrayOf("a", nullptr, NRAM_UINT64, {0, count + 1})), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("does not fit"));
  EXPECT_EQ(ErrorOf(ArrayOf(nullptr, field_, NRAM_UINT64, {})), EINVAL);
  EXPECT_EQ(ErrorOf(ArrayOf("", field_, NRAM_UINT64, {})), EINVAL);
  EXPECT_EQ(ErrorOf(ArrayOf("a\n", field_, NRAM_UINT64, {})), EINVAL);
  EXPECT_EQ(ErrorOf(ArrayOf("good", field_, NRAM_UINT64, {})), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("appears twice"));
  EXPECT_EQ(ErrorOf(ArrayOf("a", field_, static_cast<nram_element>(15), {})), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("type 15"));
  EXPECT_EQ(ErrorOf(ArrayOf("a", field_, NRAM_INT8, std::vector<uint64_t>(9, 1))), EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("9 dimensions"));
  nram_array short_one = ArrayOf("a", field_, NRAM_INT8, {1});
  short_one.size = 16;
  EXPECT_EQ(ErrorOf(short_one), EINVAL);
  const std::vector<nram_array> one = {ArrayOf("a", field_, NRAM_INT8, {1})};
  nram_publish_options options = Options(one);
  options.arrays = nullptr;
  EXPECT_EQ(TryPublish(options), -1);
  options = Options(one);
  options.array_count = 513;
  EXPECT_EQ(TryPublish(options), -1);
  EXPECT_THAT(nram_error(), HasSubstr("array_count is 513"));
  // Names as long as they may be, and too many of them for a record.
  std::vector<std::string> names;
  for (int i = 100; i < 400; ++i) names.push_back(std::string(252, 'n') + std::to_string(i));
  std::vector<nram_array> many;
  for (const std::string& name : names) many.push_back(ArrayOf(name.c_str(), field_, NRAM_INT8, {1}));
  EXPECT_EQ(TryPublish(Options(many)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_THAT(nram_error(), HasSubstr("300 arrays"));
  Publish(Options(one));
}

// A program that was built with a later library may have larger structures.
TEST_F(PublishedArraysTest, StructuresMayGrow) {
  struct Larger {
    nram_array array;
    uint64_t more = 0;
  };
  Larger larger[2];
  larger[0].array = ArrayOf("a", field_, NRAM_INT8, {1});
  larger[1].array = ArrayOf("b", field_, NRAM_INT16, {2});
  for (Larger& one : larger) one.array.size = sizeof(Larger);
  nram_publish_options options;
  nram_publish_options_init(&options);
  options.arrays = &larger[0].array;
  options.array_count = 2;
  Publish(options);
  const void* const seen = nram_observe(observer_.get(), "field", 0, nullptr);
  ASSERT_NE(seen, nullptr) << nram_error();
  Larger found;
  found.array.size = sizeof(found);
  found.more = 7;
  ASSERT_EQ(nram_find_array(observer_.get(), seen, "b", &found.array), 0) << nram_error();
  EXPECT_EQ(found.array.type, NRAM_INT16);
  EXPECT_EQ(found.more, 0u);
  EXPECT_EQ(found.array.size, sizeof(found));
  larger[1].more = 1;
  EXPECT_EQ(TryPublish(options), -1);
  EXPECT_THAT(nram_error(), HasSubstr("install a newer one"));
}

}  // namespace
}  // namespace nram
