// Sorts an array in the pool's memory again and again, with a quarter of it local.
//
//   exercise_array MIB SEED
//
// Each time it fills the array anew, sorts it, and verifies that it is in order, and that its elements have the same
// sum and xor. A pause is a time in which no element was touched. It reports as exerciser.py describes; an operation is
// a sort. $NRAM_COPIES is the number of copies of each page.

#include <nram.hpp>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLongestMs = 60'000;  // the program hangs

std::atomic<bool> ends{false};
std::atomic<uint64_t> touched{0};  // elements; one thread writes
std::atomic<uint64_t> sorts{0};

void Touch() { touched.store(touched.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

int MsSince(Clock::time_point began) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count());
}

void Tell(int pause_ms, const char* more) {
  printf("{\"operations\":%llu,\"pause_ms\":%d,\"pause_of\":\"sort of an array\"%s}\n",
         static_cast<unsigned long long>(sorts.load()), pause_ms, more);
  fflush(stdout);
}

// A thread of its own sees pauses, because the sorting thread stands still then.
void Watch() {
  uint64_t last = touched;
  Clock::time_point since = Clock::now(), told = since;
  for (int longest_ms = 0;;) {
    usleep(1000);
    if (const uint64_t now = touched; now != last) {
      last = now;
      since = Clock::now();
    }
    longest_ms = std::max(longest_ms, MsSince(since));
    if (longest_ms > kLongestMs) {
      fprintf(stderr, "no element was touched for %d ms, in sort %llu\n", longest_ms,
              static_cast<unsigned long long>(sorts.load()));
      _exit(1);
    }
    if (MsSince(told) > 1000) {
      Tell(longest_ms, "");
      told = Clock::now();
      longest_ms = 0;
    }
  }
}

struct Sums {
  uint64_t sum = 0, all_xor = 0;
  void Add(uint64_t element) {
    sum += element;
    all_xor ^= element;
    Touch();
  }
  bool operator==(const Sums& other) const { return sum == other.sum && all_xor == other.all_xor; }
};

// Reports a wrong array and returns false.
bool SortOnce(const nram::memory::Array<uint64_t>& array, std::mt19937_64* random) {
  Sums before, after;
  for (uint64_t& element : array) {
    element = (*random)();
    before.Add(element);
  }
  std::sort(array.begin(), array.end(), [](uint64_t a, uint64_t b) {
    Touch();
    return a < b;
  });
  size_t disorders = 0, first = 0;
  uint64_t last = 0;
  for (size_t i = 0; i < array.size(); ++i) {
    const uint64_t element = array[i];
    after.Add(element);
    if (element < last && disorders++ == 0) first = i;
    last = element;
  }
  if (disorders == 0 && before == after) return true;
  fprintf(stderr, "sort %llu: %zu elements are out of order, the first is number %zu; the elements are %s\n",
          static_cast<unsigned long long>(sorts.load()), disorders, first,
          before == after ? "the same" : "not the same");
  return false;
}

void Lost(const nram_loss* loss, void*) {
  fprintf(stderr, "the page at %p is lost: %s\n", loss->address, loss->reason);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: exercise_array MIB SEED\n");
    return 2;
  }
  signal(SIGINT, SIG_IGN);  // the terminal's: survive.py ends it
  signal(SIGTERM, [](int) { ends = true; });
  const uint64_t bytes = strtoull(argv[1], nullptr, 0) << 20;
  std::mt19937_64 random(strtoull(argv[2], nullptr, 0));
  nram_options options = nram::memory::DefaultOptions();
  options.budget_bytes = bytes / 4;
  options.on_loss = Lost;
  try {
    nram::memory::Memory memory(nullptr, options);
    const nram::memory::Array<uint64_t> array(memory, bytes / sizeof(uint64_t));
    std::thread(Watch).detach();
    Tell(0, "");
    while (!ends || sorts == 0) {
      if (!SortOnce(array, &random)) return 1;
      ++sorts;
    }
    const nram_stats stats = memory.Stats();
    if (stats.written_bytes < bytes) {
      fprintf(stderr, "only %llu bytes were written to servers: that has shown nothing\n",
              static_cast<unsigned long long>(stats.written_bytes));
      return 1;
    }
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  Tell(0, ",\"ended\":true");
  _exit(0);
}
