// Runs each fuzz target on its corpus, and on random input, so that all of them run wherever tests do.

#include <glog/logging.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

class ReplayTest : public ::testing::TestWithParam<FuzzTarget> {
 protected:
  // Servers log each refusal of the targets' inputs, again and again.
  ReplayTest() { FLAGS_minloglevel = google::FATAL; }

  static void Run(const std::string& input) {
    GetParam().run(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
};

// The inputs of a pack, as tests/fuzz/pack.py writes it.
std::vector<std::string> ReadPack(const std::string& path) {
  const absl::StatusOr<std::string> pack = ReadFile(path);
  EXPECT_TRUE(pack.ok()) << pack.status();
  std::vector<std::string> inputs;
  if (!pack.ok()) return inputs;
  for (size_t at = 0; at < pack->size();) {
    uint32_t bytes = 0;
    EXPECT_GE(pack->size() - at, sizeof bytes) << path << " ends within a length";
    if (pack->size() - at < sizeof bytes) break;
    std::memcpy(&bytes, pack->data() + at, sizeof bytes);
    at += sizeof bytes;
    EXPECT_GE(pack->size() - at, bytes) << path << " ends within an input";
    inputs.push_back(pack->substr(at, bytes));
    at += inputs.back().size();
  }
  return inputs;
}

TEST_P(ReplayTest, Corpus) {
  const std::string path = std::string("tests/fuzz/corpus/") + GetParam().name + ".pack";
  const std::vector<std::string> inputs = ReadPack(path);
  ASSERT_FALSE(inputs.empty()) << path;
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "input " << i << " of " << path);
    RecordProperty("last", std::to_string(i));
    Run(inputs[i]);
  }
}

TEST_P(ReplayTest, RandomInput) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    std::string input(random() % 700, '\0');
    for (char& c : input) c = static_cast<char>(random());
    Run(input);
  }
}

TEST_P(ReplayTest, StandsInTheReadme) {
  const absl::StatusOr<std::string> readme = ReadFile("tests/fuzz/README.md");
  ASSERT_TRUE(readme.ok()) << readme.status();
  EXPECT_THAT(*readme, ::testing::HasSubstr(std::string("\n| ") + GetParam().name + " | "));
}

INSTANTIATE_TEST_SUITE_P(Targets, ReplayTest, ::testing::ValuesIn(FuzzTargets().begin(), FuzzTargets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nram
