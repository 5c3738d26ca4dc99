// Reads of memory that is all here. The result is a ratio near one, so one process reads both kinds of memory in turns:
// the noise of a shared machine then meets both.

#include <sys/mman.h>

#include <algorithm>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "experiments/memory/backing.h"
#include "experiments/memory/pattern.h"
#include "experiments/memory/work.h"

namespace nram {
namespace {

constexpr int kTurnsInOrder = 81;  // of some ten milliseconds each
constexpr int kTurnsAtRandom = 9;

__attribute__((noinline)) uint64_t SumInOrder(const uint64_t* words, uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

__attribute__((noinline)) uint64_t SumAtRandom(const uint64_t* words, uint64_t count, uint64_t reads, uint64_t seed) {
  uint64_t sum = 0, state = Mix(seed) | 1;
  for (uint64_t i = 0; i < reads; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    sum += words[(state >> 32) * count >> 32];
  }
  return sum;
}

struct Comparison {
  double seconds = 0;        // medians
  double plain_seconds = 0;  // of the plain array's turns between
  double ratio = 0;          // of a turn to its neighbour; the machine's noise affects it less
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads both arrays in turns; neither is always the first. Sets *right to false if their sums differ.
template <typename Read>
Comparison Compare(const uint64_t* words, const uint64_t* plain_words, int turns, Read read, bool* right) {
  std::vector<double> seconds, plain_seconds, ratios;
  for (int i = 0; i < turns; ++i) {
    double took[2];
    uint64_t sums[2];
    for (const int which : {i % 2, 1 - i % 2}) {
      const int64_t began_ns = MonotonicNs();
      sums[which] = read(which == 0 ? words : plain_words, i);
      took[which] = static_cast<double>(MonotonicNs() - began_ns) / kNsPerSecond;
    }
    *right &= sums[0] == sums[1];
    seconds.push_back(took[0]);
    plain_seconds.push_back(took[1]);
    ratios.push_back(took[0] / took[1]);
  }
  return {Median(seconds), Median(plain_seconds), Median(ratios)};
}

// Reads of both kinds, noted as "in_order_...", "at_random_...".
void CompareBoth(const uint64_t* words, const uint64_t* plain_words, uint64_t count, const WorkOptions& options,
                 const std::string& suffix, WorkResult* result) {
  const auto in_order = [&](const uint64_t* at, int) { return SumInOrder(at, count); };
  const auto at_random = [&](const uint64_t* at, int turn) {
    return SumAtRandom(at, count, options.count, options.seed + turn);
  };
  const Comparison both[] = {Compare(words, plain_words, kTurnsInOrder, in_order, &result->verified),
                             Compare(words, plain_words, kTurnsAtRandom, at_random, &result->verified)};
  for (int i = 0; i < 2; ++i) {
    const std::string name = std::string(i == 0 ? "in_order" : "at_random") + suffix;
    result->more.push_back({name + "_s", both[i].seconds});
    result->more.push_back({name + "_plain_s", both[i].plain_seconds});
    result->more.push_back({name + "_to_plain", both[i].ratio});
  }
}

}  // namespace

absl::StatusOr<WorkResult> RunResident(const WorkOptions& options, Backing* backing) {
  WorkResult result;
  result.bytes = options.mib * kMiB;
  const uint64_t count = result.bytes / sizeof(uint64_t);
  if (count >= uint64_t{1} << 32) return absl::InvalidArgumentError("--mib: at most 32767 here");
  if (options.backing == BackingKind::kNram && options.budget_bytes <= result.bytes) {
    return absl::FailedPreconditionError("--budget must be larger than --mib here");
  }
  NRAM_ASSIGN_OR_RETURN(const Backing::Memory memory, backing->Map(result.bytes));
  NRAM_ASSIGN_OR_RETURN(const Mapping plain, Mapping::Anonymous(result.bytes));
  if (madvise(plain.data(), plain.size(), MADV_NOHUGEPAGE) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, "MADV_NOHUGEPAGE");
  }
  auto* plain_words = reinterpret_cast<uint64_t*>(plain.data());
  FillPages(memory.fill, result.bytes / kPageBytes, options.seed);
  FillPages(plain_words, result.bytes / kPageBytes, options.seed);
  NRAM_RETURN_IF_ERROR(backing->Settle(memory, result.bytes));
  result.verified = SumInOrder(memory.words, count) == SumInOrder(plain_words, count);
  const Timing timing(backing);
  CompareBoth(memory.words, plain_words, count, options, "", &result);
  timing.Stop(&result);
  result.ops = kTurnsInOrder * count + kTurnsAtRandom * options.count;
  if (options.backing != BackingKind::kNram) return result;

  // An array's physical pages make more of a difference than its kind of memory. So the test reads the very same pages
  // once more as ordinary memory, again beside the plain array. No thread may touch the addresses that they leave.
  void* const moved = mremap(memory.words, result.bytes, result.bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  if (moved == MAP_FAILED) return ErrnoStatus(errno, "mremap with MREMAP_DONTUNMAP");
  CompareBoth(static_cast<uint64_t*>(moved), plain_words, count, options, "_moved", &result);
  munmap(moved, result.bytes);
  return result;
}

}  // namespace nram
