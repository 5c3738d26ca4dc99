// A program under memory pressure that knows the contents of its pages. Run by tests/swap/harness.py in a memory
// cgroup.
//
//   pressure fill|random|reread|fork MIB SECONDS SEED
//
//   fill     writes MIB, then verifies all of it in order
//   random   the same; between, verifies and rewrites pages at random for SECONDS
//   reread   the same, but only reads; one word of each page
//   fork     writes MIB, then has children verify and rewrite parts of their copies for SECONDS, eight at a time
//
// Prints one line of JSON. Exit codes: 0 all was right; 3 a page was lost (SIGBUS); 4 a wrong byte; 5 something else.
// A thread beats every 100 ms and tells the longest pause that it has seen, a stall if the program hangs.

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace nram {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kWords = kPage / sizeof(uint64_t);

uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

class Memory {
 public:
  Memory(uint64_t mib, uint64_t seed) : pages_(mib * 256), seed_(seed), generations_(pages_, 0) {
    data_ = static_cast<uint64_t*>(
        mmap(nullptr, pages_ * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (data_ == MAP_FAILED) {
      perror("mmap");
      _exit(5);
    }
    // Huge pages would be swapped out whole and fault in one by one: a different test.
    madvise(data_, pages_ * kPage, MADV_NOHUGEPAGE);
  }

  uint64_t pages() const { return pages_; }
  void Write(uint64_t page, uint32_t generation) {
    generations_[page] = generation;
    uint64_t word = Mix(seed_ ^ page << 20 ^ generation);
    for (size_t i = 0; i < kWords; ++i) data_[page * kWords + i] = word += 0x9E3779B97F4A7C15u;
  }
  void Rewrite(uint64_t page) { Write(page, generations_[page] + 1); }
  // Ends the program if it is wrong.
  void Verify(uint64_t page) const {
    uint64_t word = Mix(seed_ ^ page << 20 ^ generations_[page]);
    for (size_t i = 0; i < kWords; ++i) {
      if (data_[page * kWords + i] != (word += 0x9E3779B97F4A7C15u)) Wrong(page, i);
    }
  }
  void VerifyWord(uint64_t page, size_t i) const {
    const uint64_t word = Mix(seed_ ^ page << 20 ^ generations_[page]) + (i + 1) * 0x9E3779B97F4A7C15u;
    if (data_[page * kWords + i] != word) Wrong(page, i);
  }

 private:
  [[noreturn]] void Wrong(uint64_t page, size_t word) const {
    fprintf(stderr, "pressure: page %llu, word %zu is %llx, generation %u\n", static_cast<unsigned long long>(page),
            word, static_cast<unsigned long long>(data_[page * kWords + word]), generations_[page]);
    _exit(4);
  }

  const uint64_t pages_;
  const uint64_t seed_;
  std::vector<uint32_t> generations_;
  uint64_t* data_;
};

std::atomic<int64_t> longest_pause_ns{0};

void Beat() {
  for (int64_t last_ns = MonotonicNs();;) {
    usleep(100'000);
    const int64_t now_ns = MonotonicNs();
    longest_pause_ns = std::max(longest_pause_ns.load(), now_ns - last_ns);
    last_ns = now_ns;
  }
}

double SecondsSince(int64_t began_ns) { return static_cast<double>(MonotonicNs() - began_ns) / kNsPerSecond; }

int ForkStorm(Memory* memory, int64_t seconds, uint64_t seed) {
  int children = 0, running = 0;
  std::mt19937_64 random(seed);
  for (const int64_t began_ns = MonotonicNs(); SecondsSince(began_ns) < static_cast<double>(seconds) || running > 0;) {
    if (running < 8 && SecondsSince(began_ns) < static_cast<double>(seconds)) {
      const uint64_t child_seed = random();
      const pid_t child = fork();
      if (child < 0) {
        perror("fork");
        _exit(5);
      }
      if (child == 0) {
        std::mt19937_64 mine(child_seed);
        for (int i = 0; i < 300; ++i) {
          const uint64_t page = mine() % memory->pages();
          memory->Verify(page);
          if (i % 4 == 0) memory->Rewrite(page);
          memory->Verify(page);
        }
        _exit(0);
      }
      ++children;
      ++running;
      continue;
    }
    int status = 0;
    if (wait(&status) < 0) continue;
    --running;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
  }
  return children;
}

int Main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: pressure fill|random|reread|fork MIB SECONDS SEED\n");
    return 5;
  }
  const std::string mode = argv[1];
  const int64_t seconds = atoll(argv[3]);
  const uint64_t seed = strtoull(argv[4], nullptr, 0);
  struct sigaction lost {};
  lost.sa_handler = [](int) { _exit(3); };
  sigaction(SIGBUS, &lost, nullptr);
  Memory memory(strtoull(argv[2], nullptr, 0), seed);
  if (mode != "fork") std::thread(Beat).detach();

  const int64_t write_ns = MonotonicNs();
  for (uint64_t page = 0; page < memory.pages(); ++page) memory.Write(page, 1);
  const double write_s = SecondsSince(write_ns);

  std::mt19937_64 random(seed);
  uint64_t operations = 0;
  double random_s = 0;
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  if (mode == "random" || mode == "reread") {
    const int64_t began_ns = MonotonicNs();
    for (; (operations & 15) != 0 || SecondsSince(began_ns) < static_cast<double>(seconds); ++operations) {
      const uint64_t page = random() % memory.pages();
      if (mode == "reread") {
        memory.VerifyWord(page, random() % kWords);
        continue;
      }
      memory.Verify(page);
      if (random() % 3 == 0) memory.Rewrite(page);
    }
    random_s = SecondsSince(began_ns);
  } else if (mode == "fork") {
    operations = static_cast<uint64_t>(ForkStorm(&memory, seconds, seed));
  }
  getrusage(RUSAGE_SELF, &after);
  const int64_t verify_ns = MonotonicNs();
  for (uint64_t page = 0; page < memory.pages(); ++page) memory.Verify(page);
  printf(
      "{\"write_s\":%.3f,\"random_s\":%.3f,\"operations\":%llu,\"faults\":%ld,\"verify_s\":%.3f,\"pause_ms\":%lld}\n",
      write_s, random_s, static_cast<unsigned long long>(operations), after.ru_majflt - before.ru_majflt,
      SecondsSince(verify_ns), static_cast<long long>(longest_pause_ns / kNsPerMs));
  fflush(stdout);
  _exit(0);
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Main(argc, argv); }
