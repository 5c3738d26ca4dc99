// Workloads on memory that is larger than the budget: in order, and at random.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

#include "base/status.h"
#include "experiments/memory/backing.h"
#include "experiments/memory/pattern.h"
#include "experiments/memory/work.h"

namespace nram {
namespace {

// Each page uses another word, so that no two pages share a cache set or a fast path.
uint64_t WordOf(uint64_t page) { return page * 0x9E3779B97F4A7C15u >> 55; }
static_assert(kWordsPerPage == 512, "WordOf takes nine bits");

// Reads a word of each page in order; with `write`, writes its next generation. Returns true if all were of
// `generation`.
bool ScanOnce(uint64_t* words, uint64_t pages, const WorkOptions& options, uint64_t generation, bool write) {
  std::atomic<bool> right{true};
  const uint64_t seed = options.seed;
  RunThreads(options.threads, [&](int64_t thread) {
    bool mine = true;
    const uint64_t end = pages * (thread + 1) / options.threads;
    for (uint64_t page = pages * thread / options.threads; page < end; ++page) {
      const uint64_t word = WordOf(page);
      uint64_t* at = words + page * kWordsPerPage + word;
      mine &= *at == PageWord(seed, page, word, generation);
      if (write) *at = PageWord(seed, page, word, generation + 1);
    }
    if (!mine) right = false;
  });
  return right;
}

// Checks the words beside those that ScanOnce writes.
bool OthersAreAsFilled(const uint64_t* words, uint64_t pages, uint64_t seed) {
  bool right = true;
  for (uint64_t page = 0; page < pages; ++page) {
    const uint64_t word = (WordOf(page) + 1) % kWordsPerPage;
    right &= words[page * kWordsPerPage + word] == PageWord(seed, page, word, 0);
  }
  return right;
}

// Draws a page at random: with a skew of 1 all are equally likely; with n, half of the draws fall on one page of 2^n.
uint64_t Draw(uint64_t drawn, uint64_t pages, int64_t skew) {
  if (skew == 1) return (drawn >> 9) % pages;
  const double u = static_cast<double>(drawn >> 11) / static_cast<double>(uint64_t{1} << 53);
  const auto rank = static_cast<uint64_t>(std::pow(u, static_cast<double>(skew)) * static_cast<double>(pages));
  return rank * 0x9E3779B1 % pages;  // likely pages are no neighbours
}

// Reads a word at a time; with --write, adds one to it. Returns true if all words were as filled, except for such
// additions.
bool AccessAtRandom(uint64_t* words, uint64_t pages, const WorkOptions& options, uint64_t count, uint64_t salt) {
  constexpr uint64_t kAdditionsMax = uint64_t{1} << 32;
  std::atomic<bool> right{true};
  const uint64_t seed = options.seed;
  RunThreads(options.threads, [&](int64_t thread) {
    bool mine = true;
    std::mt19937_64 random(Mix(seed + salt) + thread);
    const uint64_t share = count * (thread + 1) / options.threads - count * thread / options.threads;
    for (uint64_t i = 0; i < share; ++i) {
      const uint64_t drawn = random();
      const uint64_t page = Draw(drawn, pages, options.skew), word = drawn % kWordsPerPage;
      const std::atomic_ref<uint64_t> at(words[page * kWordsPerPage + word]);
      const uint64_t filled = PageWord(seed, page, word, 0);
      if (options.write) {
        mine &= at.fetch_add(1, std::memory_order_relaxed) - filled < kAdditionsMax;
      } else {
        mine &= at.load(std::memory_order_relaxed) == filled;
      }
    }
    if (!mine) right = false;
  });
  return right;
}

// Returns the sum of all additions since the words were filled.
uint64_t Additions(const uint64_t* words, uint64_t pages, uint64_t seed) {
  uint64_t additions = 0;
  for (uint64_t page = 0; page < pages; ++page) {
    for (uint64_t word = 0; word < kWordsPerPage; ++word) {
      additions += words[page * kWordsPerPage + word] - PageWord(seed, page, word, 0);
    }
  }
  return additions;
}

}  // namespace

absl::StatusOr<WorkResult> RunScan(const WorkOptions& options, Backing* backing) {
  WorkResult result;
  result.bytes = options.mib * kMiB;
  if (!backing->keeps_writes() && result.bytes < 2 * options.budget_bytes) {
    return absl::FailedPreconditionError("the bare loop scans twice its budget or more");
  }
  const uint64_t pages = result.bytes / kPageBytes;
  NRAM_ASSIGN_OR_RETURN(const Backing::Memory memory, backing->Map(result.bytes));
  FillPages(memory.fill, pages, options.seed);
  NRAM_RETURN_IF_ERROR(backing->Settle(memory, result.bytes));

  // The pass before leaves the memory as the timed pass will, so both begin with as much to write back.
  const uint64_t step = options.write && backing->keeps_writes() ? 1 : 0;
  result.verified = ScanOnce(memory.words, pages, options, 0, options.write);
  const Timing timing(backing);
  result.verified &= ScanOnce(memory.words, pages, options, step, options.write);
  timing.Stop(&result);
  result.ops = pages;
  if (step > 0) {
    result.verified &= ScanOnce(memory.words, pages, options, 2, false);
    result.verified &= OthersAreAsFilled(memory.words, pages, options.seed);
  }
  return result;
}

absl::StatusOr<WorkResult> RunRandom(const WorkOptions& options, Backing* backing) {
  WorkResult result;
  result.bytes = options.mib * kMiB;
  const uint64_t pages = result.bytes / kPageBytes;
  NRAM_ASSIGN_OR_RETURN(const Backing::Memory memory, backing->Map(result.bytes));
  FillPages(memory.fill, pages, options.seed);
  NRAM_RETURN_IF_ERROR(backing->Settle(memory, result.bytes));

  // Reads until the budget is full of random pages.
  const uint64_t warm = 2 * std::min<uint64_t>(options.budget_bytes / kPageBytes, pages);
  result.verified = AccessAtRandom(memory.words, pages, options, warm, 1);
  const Timing timing(backing);
  result.verified &= AccessAtRandom(memory.words, pages, options, options.count, 2);
  timing.Stop(&result);
  result.ops = options.count;
  if (options.write) result.verified &= Additions(memory.words, pages, options.seed) == warm + options.count;
  return result;
}

}  // namespace nram
