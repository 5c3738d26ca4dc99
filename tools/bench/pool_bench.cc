#include "tools/bench/pool_bench.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"
#include "proto/message.h"
#include "tools/bench/workload.h"

namespace nram {
namespace {

struct LatencyCase {
  bool write;
  bool spin;
};

struct StreamCase {
  bool write;
  uint32_t bytes;
  int depth;
};

}  // namespace

BenchRow Summarise(BenchRow row, const std::vector<double>& bare, const std::vector<double>& nram) {
  std::vector<double> ratios;
  for (size_t i = 0; i < bare.size(); ++i) ratios.push_back(nram[i] / bare[i]);
  row.bare = Median(bare);
  row.nram = Median(nram);
  row.ratio = Median(ratios);
  row.ratio_min = *std::min_element(ratios.begin(), ratios.end());
  row.ratio_max = *std::max_element(ratios.begin(), ratios.end());
  return row;
}

absl::Status RunPoolBench(BareSocket* bare, BareSocket* stored, Pool* pool, Pool* spinning_pool,
                          const PoolBenchOptions& options, absl::FunctionRef<void(const BenchRow&)> report) {
  NRAM_ASSIGN_OR_RETURN(const auto sleeping, Workload::Create(pool));
  std::unique_ptr<Workload> spinning;
  if (spinning_pool != nullptr) {
    NRAM_ASSIGN_OR_RETURN(spinning, Workload::Create(spinning_pool));
  }
  const auto wanted = [&](const std::string& name) { return absl::StrContains(name, options.only); };
  const auto shape = [](bool write, uint32_t bytes, bool spin) {
    constexpr uint32_t kHead = kMessageHeaderBytes;
    return BareSocket::Shape{write ? kHead + bytes : kHead, write ? kHead : kHead + bytes, spin};
  };

  for (const LatencyCase& at : {LatencyCase{false, false}, {true, false}, {false, true}, {true, true}}) {
    BenchRow row;
    row.name =
        absl::StrCat(at.write ? "write" : "read", " 4 KiB, one at a time, ", at.spin ? "polling" : "sleeping", ", p50");
    row.unit = "us";
    row.mark = 1.3;
    row.lower_is_better = true;
    Workload* workload = at.spin ? spinning.get() : sleeping.get();
    if (workload == nullptr || !wanted(row.name)) continue;
    const int count = options.quick ? 50 : at.spin ? 20'000 : 4'000;
    std::vector<double> bare_us, nram_us;
    for (int round = 0; round < options.rounds; ++round) {
      bare_us.push_back(Median(bare->PingPong(shape(at.write, kPageBytes, at.spin), count)) / 1e3);
      NRAM_ASSIGN_OR_RETURN(const std::vector<int64_t> took, workload->OneAtATime(at.write, kPageBytes, count));
      nram_us.push_back(Median(took) / 1e3);
    }
    report(Summarise(row, bare_us, nram_us));
  }

  for (const StreamCase& at : {StreamCase{false, 4096, 32},
                               {true, 4096, 32},
                               {false, 65536, 16},
                               {true, 65536, 16},
                               {false, 1 << 20, 4},
                               {true, 1 << 20, 4}}) {
    BenchRow row;
    row.name = absl::StrCat(at.write ? "write" : "read", " ", at.bytes / 1024, " KiB, ", at.depth, " under way");
    row.unit = at.bytes == 4096 ? "op/s" : "MB/s";
    row.mark = 0.7;
    if (!wanted(row.name)) continue;
    const int count =
        options.quick ? 2 * at.depth : static_cast<int>((at.bytes == 4096 ? 256 * kMiB : 2 * kGiB) / at.bytes);
    const double scale = at.bytes == 4096 ? 1e9 * count : 1e3 * count * at.bytes;
    std::vector<double> bare_rate, stored_rate, nram_rate;
    for (int round = 0; round < options.rounds; ++round) {
      bare_rate.push_back(scale / bare->Stream(shape(at.write, at.bytes, false), count, at.depth));
      if (at.bytes > 4096)
        stored_rate.push_back(scale / stored->Stream(shape(at.write, at.bytes, false), count, at.depth));
      NRAM_ASSIGN_OR_RETURN(const int64_t took_ns, sleeping->Stream(at.write, at.bytes, count, at.depth));
      nram_rate.push_back(scale / took_ns);
    }
    if (!stored_rate.empty()) {
      const BenchRow to_stored = Summarise(row, stored_rate, nram_rate);
      row.stored = to_stored.bare;
      row.ratio_to_stored = to_stored.ratio;
    }
    report(Summarise(row, bare_rate, nram_rate));
  }
  return absl::OkStatus();
}

}  // namespace nram
