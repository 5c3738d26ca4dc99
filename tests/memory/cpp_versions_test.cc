// Versions through the C++ face on real servers: arrays with dimensions, whose elements have the requested type.

#include <cerrno>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "client/memory/nram.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/memory/cpp_face_util.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::nram::memory::Array;
using ::nram::memory::Description;
using ::nram::memory::Memory;
using ::nram::memory::Observer;
using ::nram::memory::View;
using ::testing::HasSubstr;

constexpr uint32_t kPatienceMs = 120'000;

static_assert(memory::internal::ElementOf<long>() == NRAM_INT64);
static_assert(memory::internal::ElementOf<unsigned long long>() == NRAM_UINT64);
static_assert(memory::internal::ElementOf<signed char>() == NRAM_INT8);
static_assert(memory::internal::ElementOf<uint16_t>() == NRAM_UINT16);
static_assert(memory::internal::ElementOf<std::complex<float>>() == NRAM_COMPLEX64);
static_assert(memory::internal::ElementOf<bool>() == NRAM_BOOL);
static_assert(memory::internal::ElementOf<long double>() == 0);
static_assert(memory::internal::ElementOf<const double*>() == 0);
static_assert(!std::is_copy_constructible_v<Observer> && std::is_nothrow_move_constructible_v<Observer>);

int ErrorOf(const std::system_error& error) { return error.code().value(); }

TEST(CppVersionsTest, ArraysHaveTheirDimensions) {
  TestPool servers(2);
  Memory producer = Open(servers);
  Memory other = Open(servers);
  Array<double> field(producer, 1 << 16, "field");
  Array<std::byte> facts(producer, 4096, "facts");
  std::iota(field.begin(), field.end(), 0.0);
  auto* const steps = reinterpret_cast<int64_t*>(facts.data() + 64);
  *steps = 7;
  Description description;
  description.options.step = 70;
  description.header = R"({"run": "first"})";
  description.Add("c", field.data() + 1, {3, 4, 5}).Add("f", field.data() + 1, {3, 4, 5}, NRAM_ORDER_FORTRAN);
  description.Add("steps", steps);
  const uint64_t version = memory::Publish(producer.get(), {field.data(), facts.data()}, description);
  ASSERT_TRUE(field.AwaitPublished(version, kPatienceMs));

  Observer seen(other, "field");
  EXPECT_EQ(seen.Version(), version);
  EXPECT_EQ(seen.Step(), 70u);
  EXPECT_STREQ(seen.Header(), R"({"run": "first"})");
  EXPECT_EQ(seen.mappings().size(), 2u);
  const View<const double> c = seen.Find<double>("c");
  ASSERT_EQ(c.dimensions(), 3u);
  EXPECT_EQ(c.extent(0), 3u);
  EXPECT_EQ(c.extent(2), 5u);
  EXPECT_EQ(c.size(), 60u);
  EXPECT_EQ(c.order(), NRAM_ORDER_C);
  EXPECT_EQ(c(0, 0, 0), 1);
  EXPECT_EQ(c(2, 1, 3), 1 + 2 * 20 + 1 * 5 + 3);
  const View<const double> f = seen.Find<double>("f");
  EXPECT_EQ(f.data(), c.data());
  EXPECT_EQ(f(2, 1, 3), 1 + 2 + 1 * 3 + 3 * 12);
  EXPECT_EQ(std::accumulate(f.begin(), f.end(), 0.0), 60 * 61 / 2);
  EXPECT_EQ(f[59], 60);
  const View<const int64_t> scalar = seen.Find<int64_t>("steps");
  EXPECT_EQ(scalar.dimensions(), 0u);
  EXPECT_EQ(scalar.size(), 1u);
  EXPECT_EQ(scalar(), 7);
  const std::vector<nram_array> all = seen.Arrays();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_STREQ(all[2].name, "steps");
  EXPECT_EQ(all[2].mapping, 1u);
  EXPECT_EQ(View<const double>().size(), 0u);

  // The same description says where the elements are now.
  *steps = 8;
  field[1] = 100;
  memory::Publish(producer.get(), {field.data(), facts.data()}, description);
  EXPECT_EQ(scalar(), 7);
  EXPECT_GT(seen.Next(kPatienceMs), version);
  EXPECT_EQ(seen.Find<int64_t>("steps")(), 8);
  EXPECT_EQ(seen.Find<double>("c")(0, 0, 0), 100);
  EXPECT_EQ(seen.Next(0), 0u);
  Observer moved = std::move(seen);
  EXPECT_EQ(moved.Find<int64_t>("steps")(), 8);
  // Each mapping belongs to the handle that has made it.
  Memory third = Open(servers);
  {
    Observer elsewhere(third, "field");
    moved = std::move(elsewhere);
    EXPECT_EQ(other.Stats().mapped_bytes, 0u);
    EXPECT_EQ(moved.Find<int64_t>("steps")(), 8);
  }
  EXPECT_GT(third.Stats().mapped_bytes, 0u);
  moved = Observer(other, "field");
  EXPECT_EQ(third.Stats().mapped_bytes, 0u);
  EXPECT_EQ(moved.Find<int64_t>("steps")(), 8);
}

TEST(CppVersionsTest, AnotherTypeIsRefused) {
  TestPool servers(1);
  Memory producer = Open(servers);
  Memory other = Open(servers);
  Array<float> field(producer, 4096, "field");
  Array<float> more(producer, 4096, "more");
  memory::Publish(producer.get(), {field.data(), more.data()},
                  Description().Add("u", field.data(), {4096}).Add("v", more.data(), {4096}));
  ASSERT_TRUE(field.AwaitPublished(0, kPatienceMs));
  const auto seen = Array<const float>::Observe(other, "field");
  EXPECT_EQ(seen.Find<float>("u").data(), seen.data());
  const auto what = [&](auto find) -> std::string {
    try {
      find();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(what([&] { (void)seen.Find<double>("u"); }), HasSubstr("\"u\" has elements of float32, not float64"));
  EXPECT_THAT(what([&] { (void)seen.Find<int>("u"); }), HasSubstr("not int32"));
  EXPECT_THAT(what([&] { (void)seen.Find<float>("v"); }), HasSubstr("a new Observer maps all"));
  const Observer all(other, "field");
  EXPECT_EQ(all.Find<float>("v").size(), 4096u);
  try {
    (void)all.Find<float>("w");
    ADD_FAILURE() << "there is no w";
  } catch (const std::system_error& error) {
    EXPECT_EQ(ErrorOf(error), ENOENT);
  }
  try {
    const Observer none(other, "nothing");
    ADD_FAILURE() << "there is nothing";
  } catch (const std::system_error& error) {
    EXPECT_EQ(ErrorOf(error), ENOENT);
  }
  EXPECT_THAT(what([&] { Description().Add("a", field.data(), std::vector<uint64_t>(9, 1)); }),
              HasSubstr("\"a\" has 9 dimensions: expected 0 to 8"));
  EXPECT_THROW(Description().Add(std::string("a\0b", 3), field.data()), std::invalid_argument);
  const float local = 0;
  try {
    field.Publish(Description().Add("local", &local));
    ADD_FAILURE() << "it is in no mapping";
  } catch (const std::system_error& error) {
    EXPECT_EQ(ErrorOf(error), EINVAL);
  }
}

}  // namespace
}  // namespace nram
