#include "tools/bench/tls_bench.h"

#include <sys/uio.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/tls/records.h"
#include "tools/bench/workload.h"

namespace nram {

double MeasureCipher() {
  constexpr int kRecords = 8'192;
  std::vector<std::byte> content(kRecordContentMax), out(kRecordContentMax + RecordSealer::kRoomBytes);
  RecordSealer sealer(TrafficSecret{});
  const int64_t began_ns = MonotonicNs();
  for (int i = 0; i < kRecords; ++i) {
    const iovec piece{content.data(), content.size()};
    PieceCursor from({&piece, 1});
    (void)sealer.Seal(RecordType::kData, &from, content.size(), out.data());
  }
  return 1e9 * kRecords * kRecordContentMax / static_cast<double>(MonotonicNs() - began_ns);
}

absl::Status RunTlsBench(Pool* plain, Pool* tls, const PoolBenchOptions& options,
                         absl::FunctionRef<void(const BenchRow&)> report) {
  NRAM_ASSIGN_OR_RETURN(const auto on_plain, Workload::Create(plain));
  NRAM_ASSIGN_OR_RETURN(const auto on_tls, Workload::Create(tls));
  const auto wanted = [&](const std::string& name) { return absl::StrContains(name, options.only); };
  for (const bool write : {false, true}) {
    BenchRow row;
    row.name = absl::StrCat(write ? "write" : "read", " 4 KiB, one at a time, sleeping, p50");
    row.unit = "us";
    row.mark = 1.15;
    row.lower_is_better = true;
    if (!wanted(row.name)) continue;
    const int count = options.quick ? 50 : 4'000;
    std::vector<double> plain_us, tls_us;
    for (int round = 0; round < options.rounds; ++round) {
      NRAM_ASSIGN_OR_RETURN(const auto plain_ns, on_plain->OneAtATime(write, kPageBytes, count));
      NRAM_ASSIGN_OR_RETURN(const auto tls_ns, on_tls->OneAtATime(write, kPageBytes, count));
      plain_us.push_back(Median(plain_ns) / 1e3);
      tls_us.push_back(Median(tls_ns) / 1e3);
    }
    report(Summarise(row, plain_us, tls_us));
  }
  struct Stream {
    bool write;
    uint32_t bytes;
    int depth;
  };
  for (const Stream& at : {Stream{false, 65536, 16}, {true, 65536, 16}, {false, 1 << 20, 4}, {true, 1 << 20, 4}}) {
    BenchRow row;
    row.name = absl::StrCat(at.write ? "write" : "read", " ", at.bytes / 1024, " KiB, ", at.depth, " under way");
    row.unit = "MB/s";
    row.mark = 0.85;
    if (!wanted(row.name)) continue;
    const int count = options.quick ? 2 * at.depth : static_cast<int>(2 * kGiB / at.bytes);
    const double scale = 1e3 * count * at.bytes;
    std::vector<double> plain_rate, sum_rate, tls_rate;
    for (int round = 0; round < options.rounds; ++round) {
      NRAM_ASSIGN_OR_RETURN(const int64_t plain_ns, on_plain->Stream(at.write, at.bytes, count, at.depth));
      const double cipher_rate = MeasureCipher() / 1e6;
      NRAM_ASSIGN_OR_RETURN(const int64_t tls_ns, on_tls->Stream(at.write, at.bytes, count, at.depth));
      plain_rate.push_back(scale / plain_ns);
      sum_rate.push_back(1 / (1 / plain_rate.back() + 1 / cipher_rate));
      tls_rate.push_back(scale / tls_ns);
    }
    const BenchRow to_plain = Summarise(row, plain_rate, tls_rate);
    row.stored = to_plain.bare;
    row.ratio_to_stored = to_plain.ratio;
    report(Summarise(row, sum_rate, tls_rate));
  }
  return absl::OkStatus();
}

}  // namespace nram
