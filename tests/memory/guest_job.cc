// A guest: a program whose budget follows the machine, and which knows its expected contents.
//
//   guest_job verify MIB
//       Writes all of MIB, again and again, and verifies each page before it writes it. Prints "filled" after the first
//       time. When its input ends, verifies all once more, and prints figures as JSON.
//   guest_job shrink MIB
//       Budgets and time: writes all of MIB and flushes three quarters, which gives the time of that write; writes all
//       again and changes the budget to a quarter. Prints both times as JSON.

#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/clock.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "client/memory/nram.hpp"

namespace nram {
namespace {

using Words = memory::Array<uint64_t>;

constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);

uint64_t WordOf(uint64_t index, uint64_t round) { return (index + 1) * 0x9E3779B97F4A7C15 ^ round; }

void Write(const Words& words, uint64_t page, uint64_t round) {
  for (uint64_t i = page * kWordsPerPage; i < (page + 1) * kWordsPerPage; ++i) words[i] = WordOf(i, round);
}

bool Verify(const Words& words, uint64_t page, uint64_t round) {
  uint64_t different = 0;
  for (uint64_t i = page * kWordsPerPage; i < (page + 1) * kWordsPerPage; ++i) different |= words[i] ^ WordOf(i, round);
  if (different == 0) return true;
  fprintf(stderr, "guest_job: page %llu is not what was written in round %llu\n", static_cast<unsigned long long>(page),
          static_cast<unsigned long long>(round));
  return false;
}

bool InputEnded() {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

int VerifyUntilInputEnds(uint64_t mib) {
  memory::Memory memory;
  const Words words(memory, mib * kMiB / sizeof(uint64_t));
  const uint64_t pages = mib * kMiB / kPageBytes;
  uint64_t round = 0;
  for (uint64_t page = 0; page < pages; ++page) Write(words, page, round);
  printf("filled\n");
  fflush(stdout);
  while (!InputEnded()) {
    for (uint64_t page = 0; page < pages; ++page) {
      if (!Verify(words, page, round)) return 1;
      Write(words, page, round + 1);
    }
    ++round;
  }
  for (uint64_t page = 0; page < pages; ++page) {
    if (!Verify(words, page, round)) return 1;
  }
  const nram_stats stats = memory.Stats();
  printf("{\"rounds\": %llu, \"lost_pages\": %llu, \"shrank\": %llu, \"grew\": %llu}\n",
         static_cast<unsigned long long>(round), static_cast<unsigned long long>(stats.lost_pages),
         static_cast<unsigned long long>(stats.budget_shrank), static_cast<unsigned long long>(stats.budget_grew));
  return stats.lost_pages == 0 ? 0 : 1;
}

int Shrink(uint64_t mib) {
  nram_options options = memory::DefaultOptions();
  options.budget_bytes = 2 * mib * kMiB;
  memory::Memory memory(nullptr, options);
  const Words words(memory, mib * kMiB / sizeof(uint64_t));
  const uint64_t pages = mib * kMiB / kPageBytes;
  // Once for the servers' memory, which is slow at its first use.
  for (uint64_t page = 0; page < pages; ++page) Write(words, page, 1);
  words.Flush();
  for (uint64_t page = 0; page < pages; ++page) Write(words, page, 2);
  const int64_t flush_ns = MonotonicNs();
  words.Flush(0, words.size() / 4 * 3);
  const int64_t flushed_ns = MonotonicNs();
  for (uint64_t page = 0; page < pages; ++page) Write(words, page, 3);
  const uint64_t quarter = mib * kMiB / 4;
  const int64_t shrink_ns = MonotonicNs();
  memory.SetBudget(quarter);
  if (!PollUntil(DeadlineAfterMs(600'000), 1, [&] { return memory.Stats().resident_bytes <= quarter; })) {
    fprintf(stderr, "guest_job: the budget is not kept after 600 s\n");
    return 1;
  }
  const int64_t shrunk_ns = MonotonicNs();
  for (uint64_t page = 0; page < pages; ++page) {
    if (!Verify(words, page, 3)) return 1;
  }
  printf("{\"flush_s\": %.3f, \"shrink_s\": %.3f}\n", static_cast<double>(flushed_ns - flush_ns) / kNsPerSecond,
         static_cast<double>(shrunk_ns - shrink_ns) / kNsPerSecond);
  return 0;
}

int Run(int argc, char** argv) {
  const uint64_t mib = argc == 3 ? strtoull(argv[2], nullptr, 10) : 0;
  if (mib >= 16 && strcmp(argv[1], "verify") == 0) return VerifyUntilInputEnds(mib);
  if (mib >= 16 && strcmp(argv[1], "shrink") == 0) return Shrink(mib);
  fprintf(stderr, "usage: guest_job verify|shrink MIB, 16 or more\n");
  return 2;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  try {
    return nram::Run(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "guest_job: %s\n", error.what());
    return 1;
  }
}
