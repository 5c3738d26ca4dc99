// Sorts numbers in place with the library's own sort, which does not know where they are stored.

#include <stdlib.h>

#include <algorithm>

#include "base/status.h"
#include "experiments/memory/backing.h"
#include "experiments/memory/pattern.h"
#include "experiments/memory/work.h"

namespace nram {
namespace {

// A sum that is the same for all orders of the same numbers.
struct Digest {
  uint64_t sum = 0;
  uint64_t mixed = 0;
  void Add(uint64_t number) {
    sum += number;
    mixed += Mix(number ^ 0x9E3779B97F4A7C15u);
  }
  bool operator==(const Digest&) const = default;
};

int Compare(const void* a, const void* b) {
  const uint64_t left = *static_cast<const uint64_t*>(a), right = *static_cast<const uint64_t*>(b);
  return left < right ? -1 : left > right;
}

}  // namespace

absl::StatusOr<WorkResult> RunSort(const WorkOptions& options, Backing* backing) {
  if (!backing->keeps_writes()) return absl::FailedPreconditionError("the bare loop keeps nothing that is written");
  WorkResult result;
  result.bytes = options.mib * kMiB;
  const uint64_t count = result.bytes / sizeof(uint64_t);
  NRAM_ASSIGN_OR_RETURN(const Backing::Memory memory, backing->Map(result.bytes));
  uint64_t* const numbers = memory.words;
  Digest before, after;
  const uint64_t seed = Mix(options.seed);
  for (uint64_t i = 0; i < count; ++i) before.Add(numbers[i] = Mix(seed + i * 0x9E3779B97F4A7C15u));

  const Timing timing(backing);
  if (options.libc_qsort) {
    qsort(numbers, count, sizeof(uint64_t), Compare);
  } else {
    std::sort(numbers, numbers + count);
  }
  timing.Stop(&result);
  result.ops = count;

  result.verified = true;
  uint64_t last = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t number = numbers[i];
    result.verified &= last <= number;
    after.Add(last = number);
  }
  result.verified &= before == after;
  return result;
}

}  // namespace nram
