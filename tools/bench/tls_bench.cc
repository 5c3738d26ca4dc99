#include "tools/bench/tls_bench.h"

#include <sys/uio.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/tls/records.h"
#include "client/seal/page_cipher.h"
#include "client/seal/seal_key.h"
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

absl::StatusOr<double> MeasurePageCipher() {
  constexpr int kPages = 32'768;
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<SealKey> key, SealKey::Random());
  PageCipher cipher;
  std::vector<std::byte> page(kPageBytes), sealed(kPageBytes);
  PageSeal seal;
  const int64_t began_ns = MonotonicNs();
  for (int i = 0; i < kPages; ++i) {
    if (i % static_cast<int>(kPagesPerMessage) == 0) (void)cipher.BeginSealing(*key);
    (void)cipher.Seal({1, RegionId{1}, 1}, static_cast<uint64_t>(i) + 1, page.data(), sealed.data(), &seal);
  }
  return 1e9 * kPages * kPageBytes / static_cast<double>(MonotonicNs() - began_ns);
}

namespace {

// A workload that is measured beside the plain one.
struct Subject {
  const char* name;
  double small_mark;  // the most of its time, as a multiple of the plain one's
  bool has_tls;
  bool is_sealed;
  std::unique_ptr<Workload> work;
};

absl::Status RunSmall(Workload* plain, const Subject& subject, bool write, const PoolBenchOptions& options,
                      absl::FunctionRef<void(const BenchRow&)> report) {
  BenchRow row;
  row.name = absl::StrCat(subject.name, ": ", write ? "write" : "read", " 4 KiB, sleeping, p50");
  row.unit = "us";
  row.mark = subject.small_mark;
  row.lower_is_better = true;
  if (!absl::StrContains(row.name, options.only)) return absl::OkStatus();
  const int count = options.quick ? 50 : 4'000;
  std::vector<double> plain_us, subject_us;
  for (int round = 0; round < options.rounds; ++round) {
    NRAM_ASSIGN_OR_RETURN(const auto plain_ns, plain->OneAtATime(write, kPageBytes, count));
    NRAM_ASSIGN_OR_RETURN(const auto subject_ns, subject.work->OneAtATime(write, kPageBytes, count));
    plain_us.push_back(Median(plain_ns) / 1e3);
    subject_us.push_back(Median(subject_ns) / 1e3);
  }
  report(Summarise(row, plain_us, subject_us));
  return absl::OkStatus();
}

struct Stream {
  bool write;
  uint32_t bytes;
  int depth;
};

absl::Status RunStream(Workload* plain, const Subject& subject, const Stream& at, const PoolBenchOptions& options,
                       absl::FunctionRef<void(const BenchRow&)> report) {
  BenchRow row;
  row.name = absl::StrCat(subject.name, ": ", at.write ? "write" : "read", " ", at.bytes / 1024, " KiB, ", at.depth,
                          " under way");
  row.unit = "MB/s";
  row.mark = 0.85;
  if (!absl::StrContains(row.name, options.only)) return absl::OkStatus();
  const int count = options.quick ? 2 * at.depth : static_cast<int>(2 * kGiB / at.bytes);
  const double scale = 1e3 * count * at.bytes;
  std::vector<double> plain_rate, sum_rate, subject_rate;
  for (int round = 0; round < options.rounds; ++round) {
    NRAM_ASSIGN_OR_RETURN(const int64_t plain_ns, plain->Stream(at.write, at.bytes, count, at.depth));
    NRAM_ASSIGN_OR_RETURN(const double page_cipher_rate, MeasurePageCipher());
    const double record_cipher_rate = MeasureCipher();
    NRAM_ASSIGN_OR_RETURN(const int64_t subject_ns, subject.work->Stream(at.write, at.bytes, count, at.depth));
    plain_rate.push_back(scale / plain_ns);
    double took = 1 / plain_rate.back();
    if (subject.has_tls) took += 1e6 / record_cipher_rate;
    if (subject.is_sealed) took += 1e6 / page_cipher_rate;
    sum_rate.push_back(1 / took);
    subject_rate.push_back(scale / subject_ns);
  }
  const BenchRow to_plain = Summarise(row, plain_rate, subject_rate);
  row.stored = to_plain.bare;
  row.ratio_to_stored = to_plain.ratio;
  report(Summarise(row, sum_rate, subject_rate));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTlsBench(Pool* plain, Pool* tls, const PoolBenchOptions& options,
                         absl::FunctionRef<void(const BenchRow&)> report) {
  NRAM_ASSIGN_OR_RETURN(const auto on_plain, Workload::Create(plain));
  Subject subjects[] = {
      {"TLS", 1.15, true, false, nullptr}, {"sealed", 1.15, false, true, nullptr}, {"both", 1.3, true, true, nullptr}};
  for (Subject& subject : subjects) {
    NRAM_ASSIGN_OR_RETURN(subject.work,
                          Workload::Create(subject.has_tls ? tls : plain, subject.is_sealed ? Seal::kYes : Seal::kNo));
  }
  for (const Subject& subject : subjects) {
    for (const bool write : {false, true}) {
      NRAM_RETURN_IF_ERROR(RunSmall(on_plain.get(), subject, write, options, report));
    }
  }
  for (const Subject& subject : subjects) {
    for (const Stream& at : {Stream{false, 65536, 16}, {true, 65536, 16}, {false, 1 << 20, 4}, {true, 1 << 20, 4}}) {
      NRAM_RETURN_IF_ERROR(RunStream(on_plain.get(), subject, at, options, report));
    }
  }
  return absl::OkStatus();
}

}  // namespace nram
