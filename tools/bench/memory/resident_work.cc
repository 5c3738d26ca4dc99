// Reads of memory that is all here. What is asked for is a ratio near one, so both kinds of memory are read in turns by
// one process: the noise of a shared machine then meets both.

#include <algorithm>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "tools/bench/memory/backing.h"
#include "tools/bench/memory/pattern.h"
#include "tools/bench/memory/work.h"

namespace nram {
namespace {

constexpr int kTurns = 9;

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

struct Turn {
  int64_t in_order_ns;
  int64_t at_random_ns;
  uint64_t sum;
};

Turn ReadAll(const uint64_t* words, uint64_t count, uint64_t reads, uint64_t seed) {
  Turn turn{};
  int64_t began_ns = MonotonicNs();
  turn.sum = SumInOrder(words, count);
  turn.in_order_ns = MonotonicNs() - began_ns;
  began_ns = MonotonicNs();
  turn.sum ^= SumAtRandom(words, count, reads, seed);
  turn.at_random_ns = MonotonicNs() - began_ns;
  return turn;
}

double MedianSeconds(std::vector<Turn> turns, int64_t Turn::*value) {
  std::sort(turns.begin(), turns.end(), [&](const Turn& a, const Turn& b) { return a.*value < b.*value; });
  return static_cast<double>(turns[turns.size() / 2].*value) / kNsPerSecond;
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
  (void)ReadAll(memory.words, count, options.count, options.seed);
  (void)ReadAll(plain_words, count, options.count, options.seed);

  result.verified = true;
  std::vector<Turn> turns, plain_turns;
  const Timing timing(backing);
  for (int i = 0; i < kTurns; ++i) {
    const uint64_t seed = options.seed + i;
    // Neither is always the first.
    if (i % 2 == 0) plain_turns.push_back(ReadAll(plain_words, count, options.count, seed));
    turns.push_back(ReadAll(memory.words, count, options.count, seed));
    if (i % 2 == 1) plain_turns.push_back(ReadAll(plain_words, count, options.count, seed));
    result.verified &= turns.back().sum == plain_turns.back().sum;
  }
  timing.Stop(&result);
  result.ops = kTurns * (count + options.count);
  result.more = {{"in_order_s", MedianSeconds(turns, &Turn::in_order_ns)},
                 {"in_order_plain_s", MedianSeconds(plain_turns, &Turn::in_order_ns)},
                 {"at_random_s", MedianSeconds(turns, &Turn::at_random_ns)},
                 {"at_random_plain_s", MedianSeconds(plain_turns, &Turn::at_random_ns)}};
  return result;
}

}  // namespace nram
