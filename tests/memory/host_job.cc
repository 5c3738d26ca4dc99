// The job of a machine's owner, beside which guests live. It touches its memory at random, writes a report as JSON and
// ends; or it holds the amount of memory that its input names.
//
//   host_job touch MIB SECONDS ON_S FILL_MIB_S
//       Fills MIB at FILL_MIB_S MiB a second, and prints "ready". After a line of input, touches random pages for
//       SECONDS. With ON_S, it gives its memory back after ON_S seconds, waits as long, and fills it again, by turns.
//   host_job hold
//       For each line "N" holds N MiB, and prints "N"; ends with its input.

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/poll_until.h"
#include "base/units.h"

namespace nram {
namespace {

class Memory {
 public:
  explicit Memory(uint64_t bytes) : mapping_(Mapping::Anonymous(bytes).value()) {
    // Otherwise one touch takes 512 pages.
    madvise(mapping_.data(), bytes, MADV_NOHUGEPAGE);
  }
  uint64_t pages() const { return mapping_.size() / kPageBytes; }
  void Touch(uint64_t page) {
    auto* const word = reinterpret_cast<volatile uint64_t*>(mapping_.data() + page * kPageBytes);
    *word = *word + 1;
  }
  void FreeFrom(uint64_t page) {
    madvise(mapping_.data() + page * kPageBytes, (pages() - page) * kPageBytes, MADV_DONTNEED);
  }

 private:
  Mapping mapping_;
};

// Fills it at a pace: the pace of a real program is of interest, not that of memset.
void Fill(Memory* memory, uint64_t mib_a_second, int64_t until_ns) {
  const int64_t began_ns = MonotonicNs();
  constexpr uint64_t kStep = kMiB / kPageBytes;
  for (uint64_t page = 0; page < memory->pages() && MonotonicNs() < until_ns; ++page) {
    memory->Touch(page);
    if (page % kStep != 0 || mib_a_second == 0) continue;
    const int64_t due_ns =
        began_ns + static_cast<int64_t>(page / kStep) * kNsPerSecond / static_cast<int64_t>(mib_a_second);
    if (const int64_t early_ns = due_ns - MonotonicNs(); early_ns > kNsPerMs) SleepMs(early_ns / kNsPerMs);
  }
}

int TouchAtRandom(uint64_t mib, uint64_t seconds, uint64_t on_s, uint64_t fill_mib_s) {
  Memory memory(mib * kMiB);
  if (on_s == 0) Fill(&memory, fill_mib_s, INT64_MAX);
  printf("ready\n");
  fflush(stdout);
  char line[64];
  if (fgets(line, sizeof(line), stdin) == nullptr) return 1;

  std::mt19937_64 random(1);
  const int64_t end_ns = DeadlineAfterMs(static_cast<int64_t>(seconds) * 1'000);
  uint64_t touches = 0;
  int64_t touching_ns = 0;
  while (MonotonicNs() < end_ns) {
    const int64_t off_ns = on_s == 0 ? end_ns : std::min(end_ns, DeadlineAfterMs(static_cast<int64_t>(on_s) * 1'000));
    if (on_s != 0) Fill(&memory, fill_mib_s, off_ns);
    const int64_t began_ns = MonotonicNs();
    while (MonotonicNs() < off_ns) {
      for (int i = 0; i < 1'000; ++i) memory.Touch(random() % memory.pages());
      touches += 1'000;
    }
    touching_ns += MonotonicNs() - began_ns;
    if (on_s == 0) break;
    memory.FreeFrom(0);
    SleepMs(std::min((end_ns - MonotonicNs()) / kNsPerMs, static_cast<int64_t>(on_s) * 1'000));
  }
  printf("{\"touches\": %llu, \"touching_s\": %.3f}\n", static_cast<unsigned long long>(touches),
         static_cast<double>(touching_ns) / kNsPerSecond);
  return 0;
}

int Hold() {
  constexpr uint64_t kMostMib = 1 << 20;
  Memory memory(kMostMib * kMiB);
  char line[64];
  uint64_t held = 0;
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    const uint64_t pages = std::min<uint64_t>(strtoull(line, nullptr, 10), kMostMib) * kMiB / kPageBytes;
    for (; held < pages; ++held) memory.Touch(held);
    if (held > pages) memory.FreeFrom(pages);
    held = pages;
    printf("%llu\n", static_cast<unsigned long long>(pages * kPageBytes / kMiB));
    fflush(stdout);
  }
  return 0;
}

int Run(int argc, char** argv) {
  const auto number = [&](int i) { return strtoull(argv[i], nullptr, 10); };
  if (argc == 6 && strcmp(argv[1], "touch") == 0 && number(2) > 0) {
    return TouchAtRandom(number(2), number(3), number(4), number(5));
  }
  if (argc == 2 && strcmp(argv[1], "hold") == 0) return Hold();
  fprintf(stderr, "usage: host_job touch MIB SECONDS ON_S FILL_MIB_S | host_job hold\n");
  return 2;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Run(argc, argv); }
