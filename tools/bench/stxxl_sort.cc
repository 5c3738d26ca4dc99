#include "tools/bench/stxxl_sort.h"

#include <cstdio>
#include <limits>
#include <random>

#include "base/clock.h"
#include "tools/bench/work_done.h"

// STXXL's headers use GCC's parallel mode.
#if __has_include(<stxxl/vector>) && !defined(__clang__)
#include <stxxl/sort>
#include <stxxl/vector>
#define NRAM_HAS_STXXL 1
#endif

namespace nram {

#ifdef NRAM_HAS_STXXL

namespace {

struct Less {
  bool operator()(uint64_t a, uint64_t b) const { return a < b; }
  static uint64_t min_value() { return std::numeric_limits<uint64_t>::min(); }
  static uint64_t max_value() { return std::numeric_limits<uint64_t>::max(); }
};

}  // namespace

absl::Status SortWithStxxl(const std::string& directory, uint64_t bytes, uint64_t memory_bytes) try {
  // The file has room for the data and for the runs. It has no name once it is open.
  stxxl::disk_config disk(directory + "/stxxl", 2 * bytes + (uint64_t{64} << 20), "syscall unlink");
  disk.direct = stxxl::disk_config::DIRECT_TRY;
  disk.autogrow = true;
  stxxl::config::get_instance()->add_disk(disk);
  using Vector = stxxl::VECTOR_GENERATOR<uint64_t>::result;
  const uint64_t count = bytes / sizeof(uint64_t);
  uint64_t sum = 0;
  const int64_t began_ns = MonotonicNs();
  Vector keys(count);
  {
    std::mt19937_64 random(7);
    Vector::bufwriter_type writer(keys);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t key = random();
      sum += key;
      writer << key;
    }
    writer.finish();
  }
  const int64_t filled_ns = MonotonicNs();
  const Work before = WorkSoFar();
  stxxl::sort(keys.begin(), keys.end(), Less(), memory_bytes);
  const int64_t sorted_ns = MonotonicNs();
  const Work work = WorkSince(before);
  uint64_t last = 0;
  bool rises = true;
  for (Vector::bufreader_type reader(keys); !reader.empty(); ++reader) {
    rises = rises && *reader >= last;
    last = *reader;
    sum -= last;
  }
  const int64_t checked_ns = MonotonicNs();
  if (!rises || sum != 0) return absl::DataLossError("STXXL's result is not the sorted input");
  const auto seconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) / kNsPerSecond; };
  printf("{\"fill_s\":%.6f,\"sort_s\":%.6f,\"check_s\":%.6f,\"cpu_s\":%.6f,\"busy\":%.4f}\n",
         seconds(began_ns, filled_ns), seconds(filled_ns, sorted_ns), seconds(sorted_ns, checked_ns), work.cpu_s,
         work.busy);
  return absl::OkStatus();
} catch (const std::exception& error) {
  return absl::InternalError(error.what());
}

#else

absl::Status SortWithStxxl(const std::string&, uint64_t, uint64_t) {
  return absl::UnimplementedError("built without STXXL (Debian's libstxxl-dev)");
}

#endif

}  // namespace nram
