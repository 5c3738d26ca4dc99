// rambrain-work: the access patterns of the paper behind Rambrain, in a program without knowledge of nram. The same
// source is built with Rambrain's headers and with nram's compatibility header (rambrain.py), so it is C++11.

#include <rambrain/managedPtr.h>
#if __has_include(<rambrain/rambrainconfig.h>)
#include <rambrain/rambrainconfig.h>
#endif

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using rambrain::adhereTo;
using rambrain::managedPtr;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
// The matrix is a square of kGrid * kGrid squares.
constexpr uint64_t kGrid = 16;

const char kHelp[] =
    "usage: rambrain-work WORK CONST|WRITE MIB BUDGET_MIB OBJECT_KIB ROUNDS\n"
    "\n"
    "Prints one line of JSON. Ends with 0, or with 4 if something was not right.\n"
    "\n"
    "  sequential  sums objects, round after round\n"
    "  random      sums objects picked at random, as many a round\n"
    "  transpose   transposes a matrix once, two of its 256 squares at a time\n"
    "\n"
    "CONST adheres for reading, WRITE does not say that it only reads.\n";

struct Options {
  std::string work;
  bool constant = false;
  uint64_t mib = 0, budget_mib = 0, object_kib = 0, rounds = 0;
};

struct Result {
  double seconds = 0, bytes = 0;
  bool verified = true;
};

using Objects = std::vector<std::unique_ptr<managedPtr<double>>>;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double SumOf(const double* numbers, uint64_t count) {
  double sums[4] = {};
  for (uint64_t i = 0; i + 4 <= count; i += 4) {
    for (uint64_t j = 0; j < 4; ++j) sums[j] += numbers[i + j];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

double Visit(const managedPtr<double>& object, bool constant, uint64_t count) {
  if (constant) {
    const adhereTo<double> glue(object);
    const double* const numbers = glue;
    return SumOf(numbers, count);
  }
  adhereTo<double> glue(object);
  double* const numbers = glue;
  return SumOf(numbers, count);
}

Result Rounds(const Options& options) {
  const uint64_t count = options.object_kib * 1024 / sizeof(double);
  const uint64_t objects_count = options.mib * 1024 / options.object_kib;
  Objects objects;
  for (uint64_t i = 0; i < objects_count; ++i) {
    objects.emplace_back(new managedPtr<double>(count));
    adhereTo<double> glue(*objects.back());
    double* const numbers = glue;
    for (uint64_t j = 0; j < count; ++j) numbers[j] = static_cast<double>(i);
  }
  std::mt19937_64 random(1);
  Result result;
  // The first round is not timed: it teaches the order.
  for (uint64_t round = 0; round <= options.rounds; ++round) {
    const double began = Now();
    for (uint64_t i = 0; i < objects_count; ++i) {
      const uint64_t which = options.work == "random" ? random() % objects_count : i;
      const double sum = Visit(*objects[which], options.constant, count);
      result.verified &= sum == static_cast<double>(which * (count / 4 * 4));
    }
    if (round > 0) result.seconds += Now() - began;
    if (round > 0) result.bytes += static_cast<double>(objects_count * count * sizeof(double));
  }
  return result;
}

void Exchange(double* upper, double* lower, uint64_t edge) {
  for (uint64_t i = 0; i < edge; ++i) {
    for (uint64_t j = upper == lower ? i + 1 : 0; j < edge; ++j) std::swap(upper[i * edge + j], lower[j * edge + i]);
  }
}

Result Transpose(const Options& options) {
  uint64_t edge = 1;
  while ((edge + 1) * (edge + 1) * kGrid * kGrid * sizeof(double) <= options.mib * kMebibyte) ++edge;
  const uint64_t n = edge * kGrid;
  Objects squares;
  const auto each = [&](bool transposed, bool* verified) {
    for (uint64_t s = 0; s < kGrid * kGrid; ++s) {
      if (verified == nullptr) squares.emplace_back(new managedPtr<double>(edge * edge));
      adhereTo<double> glue(*squares[s]);
      double* const numbers = glue;
      for (uint64_t at = 0; at < edge * edge; ++at) {
        const uint64_t row = s / kGrid * edge + at / edge, column = s % kGrid * edge + at % edge;
        const double wanted = static_cast<double>(transposed ? column * n + row : row * n + column);
        if (verified == nullptr) numbers[at] = wanted;
        if (verified != nullptr) *verified &= numbers[at] == wanted;
      }
    }
  };
  each(false, nullptr);
  Result result;
  const double began = Now();
  for (uint64_t i = 0; i < kGrid; ++i) {
    for (uint64_t j = i; j < kGrid; ++j) {
      adhereTo<double> upper_glue(*squares[i * kGrid + j]);
      double* const upper = upper_glue;
      if (i == j) {
        Exchange(upper, upper, edge);
        continue;
      }
      adhereTo<double> lower_glue(*squares[j * kGrid + i]);
      double* const lower = lower_glue;
      Exchange(upper, lower, edge);
    }
  }
  result.seconds = Now() - began;
  result.bytes = static_cast<double>(n * n * sizeof(double));
  each(true, &result.verified);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc == 7) {
    options.work = argv[1];
    options.constant = std::string(argv[2]) == "CONST";
    options.mib = std::strtoull(argv[3], nullptr, 10);
    options.budget_mib = std::strtoull(argv[4], nullptr, 10);
    options.object_kib = std::strtoull(argv[5], nullptr, 10);
    options.rounds = std::strtoull(argv[6], nullptr, 10);
  }
  const bool known = options.work == "sequential" || options.work == "random" || options.work == "transpose";
  if (!known || options.mib == 0 || options.budget_mib == 0 || options.object_kib == 0 || options.rounds == 0) {
    std::fputs(kHelp, stderr);
    return 2;
  }
#if __has_include(<rambrain/rambrainconfig.h>)
  if (const char* const path = std::getenv("RAMBRAIN_CONFIG")) {
    rambrain::rambrainglobals::config.setCustomConfigPath(path);
    rambrain::rambrainglobals::config.reinit();
  }
#endif
  rambrain::rambrainglobals::config.resizeMemory(options.budget_mib * kMebibyte);
  rambrain::rambrainglobals::config.resizeSwap(2 * options.mib * kMebibyte);
  const Result result = options.work == "transpose" ? Transpose(options) : Rounds(options);
  std::printf("{\"work\":\"%s\",\"verified\":%s,\"seconds\":%.6f,\"bytes\":%.0f}\n", options.work.c_str(),
              result.verified ? "true" : "false", result.seconds, result.bytes);
  return result.verified ? 0 : 4;
}
