// Runs each fuzz target on its corpus, and on random input, so that all of them run wherever tests do.

#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
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
  // Servers log each refusal of what targets are given, again and again.
  ReplayTest() { FLAGS_minloglevel = google::FATAL; }

  static void Run(const std::string& input) {
    GetParam().run(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
};

TEST_P(ReplayTest, Corpus) {
  const std::string directory = std::string("tests/fuzz/corpus/") + GetParam().name;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  ASSERT_FALSE(paths.empty()) << directory;
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    std::ifstream file(path, std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    ASSERT_TRUE(file.good() || file.eof());
    RecordProperty("last", path);
    Run(input);
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
