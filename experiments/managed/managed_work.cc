// nram-managed-work: managed memory at work. Runs one workload and prints one line of JSON.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <nram/managed.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "client/managed/region_store.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool_spec.h"

namespace nram {
namespace {

constexpr char kHelp[] = R"(usage: nram-managed-work WORK [flags]

Does one workload and prints one line of JSON: seconds, bytes, bytes a second, the counters of managed
memory, and whether everything was right. Ends with 0; 4 if something was not right; 1 if it could not be
done. The pool is $NRAM_POOL, or that of `nram up`.

  resident   sums objects that all fit the budget, in turns with plain vectors of the same sizes
  scan       --rounds over objects of --mib, which take four times the budget
  transpose  of a matrix of --mib, four times the budget, by rows
  stream     writes and reads --mib of a region in order, in pieces of 1 MiB, eight under way: what
             the others are compared with

  --mib=N          of all objects (default 512)
  --object-bytes=N of an object; transpose: rows are as long as they are (default 131072)
  --rounds=N       timed ones (default 5)
  --write          resident, scan: adds one to each number
  --help           this text

example: nram-managed-work scan --mib=512 --write
)";

constexpr int kUnderWay = 8;

struct Options {
  int64_t mib = 512;
  int64_t object_bytes = 128 * 1024;
  int64_t rounds = 5;
  bool write = false;
};

struct Result {
  double seconds = 0;
  double bytes = 0;
  bool verified = true;
  std::vector<std::pair<std::string, double>> more;
};

double SecondsSince(int64_t began_ns) { return static_cast<double>(MonotonicNs() - began_ns) / kNsPerSecond; }

std::unique_ptr<managed_memory> Open(uint64_t budget_bytes) {
  managed_options options = managed_memory::default_options();
  options.budget_bytes = std::max(budget_bytes, kMiB);
  return std::make_unique<managed_memory>(nullptr, options);
}

void AddStats(const managed_memory& memory, const nram_managed_stats& before, Result* result) {
  const nram_managed_stats now = memory.stats();
  result->more.emplace_back("fetched_bytes", now.fetched_bytes - before.fetched_bytes);
  result->more.emplace_back("ahead_bytes", now.ahead_bytes - before.ahead_bytes);
  result->more.emplace_back("written_bytes", now.written_bytes - before.written_bytes);
  result->more.emplace_back("misses", now.misses - before.misses);
  result->more.emplace_back("ahead_wasted", now.ahead_wasted - before.ahead_wasted);
  result->more.emplace_back("budget_bytes", now.budget_bytes);
  result->more.emplace_back("local_bytes", now.local_bytes);
}

// Both kinds of memory in the same loop; not inlined, so that both are the same code.
__attribute__((noinline)) uint64_t SumOf(uint64_t* numbers, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += numbers[i]++;
  return sum;
}
__attribute__((noinline)) uint64_t SumOf(const uint64_t* numbers, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += numbers[i];
  return sum;
}

using Objects = std::vector<managed<uint64_t>>;

uint64_t Round(Objects& objects, bool write) {
  uint64_t sum = 0;
  for (managed<uint64_t>& object : objects) {
    sum += write ? SumOf(adhere<uint64_t>(object).get(), object.size())
                 : SumOf(adhere<const uint64_t>(object).get(), object.size());
  }
  return sum;
}

uint64_t Round(std::vector<std::vector<uint64_t>>& objects, bool write) {
  uint64_t sum = 0;
  for (std::vector<uint64_t>& object : objects) {
    sum +=
        write ? SumOf(object.data(), object.size()) : SumOf(static_cast<const uint64_t*>(object.data()), object.size());
  }
  return sum;
}

template <typename Of>
double TimedRound(Of& objects, bool write, uint64_t* sum) {
  const int64_t began_ns = MonotonicNs();
  *sum = Round(objects, write);
  return SecondsSince(began_ns);
}

// The noise of a shared machine affects both kinds: one round of each in turns, and the median of their ratios.
Result RunResident(const Options& options) {
  const uint64_t bytes = options.mib * kMiB;
  const auto memory = Open(bytes * 2);
  const size_t count = options.object_bytes / sizeof(uint64_t);
  Objects objects;
  std::vector<std::vector<uint64_t>> plain;
  for (uint64_t i = 0; i < bytes / options.object_bytes; ++i) {
    objects.emplace_back(*memory, count, i);
    plain.emplace_back(count, i);
  }
  Result result;
  const nram_managed_stats before = memory->stats();
  std::vector<double> ratios;
  for (int64_t round = 0; round < options.rounds; ++round) {
    uint64_t sums[2] = {};
    double took[2] = {};
    for (const int64_t which : {round % 2, 1 - round % 2}) {
      took[which] =
          which == 0 ? TimedRound(objects, options.write, &sums[0]) : TimedRound(plain, options.write, &sums[1]);
    }
    result.verified &= sums[0] == sums[1];
    result.seconds += took[0];
    result.bytes += static_cast<double>(bytes);
    ratios.push_back(took[0] / took[1]);
  }
  std::sort(ratios.begin(), ratios.end());
  result.more.emplace_back("ratio", ratios[ratios.size() / 2]);
  AddStats(*memory, before, &result);
  return result;
}

Result RunScan(const Options& options) {
  const uint64_t bytes = options.mib * kMiB;
  const auto memory = Open(bytes / 4);
  const size_t count = options.object_bytes / sizeof(uint64_t);
  Objects objects;
  for (uint64_t i = 0; i < bytes / options.object_bytes; ++i) objects.emplace_back(*memory, count, i);
  const uint64_t first = Round(objects, /*write=*/false);
  Result result;
  const nram_managed_stats before = memory->stats();
  for (int64_t round = 0; round < options.rounds; ++round) {
    uint64_t sum;
    result.seconds += TimedRound(objects, options.write, &sum);
    result.verified &= sum == first + (options.write ? round * objects.size() * count : 0);
    result.bytes += static_cast<double>(bytes);
  }
  AddStats(*memory, before, &result);
  return result;
}

Result RunTranspose(const Options& options) {
  size_t n = 1;
  while ((n + 1) * (n + 1) * sizeof(double) <= options.mib * kMiB) ++n;
  const auto memory = Open(options.mib * kMiB / 4);
  managed<double, 2> matrix(*memory, n, n);
  for (size_t i = 0; i < n; ++i) {
    const adhere<double> row(matrix[i]);
    for (size_t j = 0; j < n; ++j) row[j] = static_cast<double>(i * n + j);
  }
  Result result;
  const nram_managed_stats before = memory->stats();
  const int64_t began_ns = MonotonicNs();
  const size_t block = std::max<size_t>(n / 16, 1);  // a quarter of the budget, and another one
  using Rows = std::vector<adhere<double>>;
  const auto take = [&](size_t first) {
    Rows rows;
    for (size_t i = first; i < std::min(first + block, n); ++i) rows.emplace_back(matrix[i]);
    return rows;
  };
  for (size_t first = 0; first < n; first += block) {
    const Rows upper = take(first);
    for (size_t second = first; second < n; second += block) {
      const Rows lower = second == first ? upper : take(second);
      for (size_t i = 0; i < upper.size(); ++i) {
        for (size_t j = 0; j < lower.size(); ++j) {
          if (first + i < second + j) std::swap(upper[i][second + j], lower[j][first + i]);
        }
      }
    }
  }
  result.seconds = SecondsSince(began_ns);
  AddStats(*memory, before, &result);
  // Each row, there and back, for each block before it.
  result.bytes = result.more[0].second + result.more[2].second;
  for (size_t i = 0; i < n; ++i) {
    const adhere<const double> row(matrix[i]);
    for (size_t j = 0; j < n; ++j) result.verified &= row[j] == static_cast<double>(j * n + i);
  }
  return result;
}

absl::StatusOr<Result> RunStream(const Options& options) {
  PoolOptions pool;
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(""));
  NRAM_ASSIGN_OR_RETURN(pool.servers, ParsePoolSpec(spec));
  NRAM_ASSIGN_OR_RETURN(pool.tls, FindClientTls(pool.servers));
  NRAM_ASSIGN_OR_RETURN(const auto store, RegionStore::Open(pool, 1));
  NRAM_RETURN_IF_ERROR(store->Reserve(0, options.mib * kMiB));
  std::vector<std::unique_ptr<ManagedStore::Op>> ops(kUnderWay);
  std::vector<std::vector<std::byte>> buffers(kUnderWay, std::vector<std::byte>(kMiB, std::byte{1}));
  for (auto& op : ops) op = store->NewOp();
  Result result;
  for (const bool writes : {true, false}) {
    const int64_t began_ns = MonotonicNs();
    for (int64_t piece = 0; piece < options.mib + kUnderWay; ++piece) {
      const int64_t lane = piece % kUnderWay;
      if (piece >= kUnderWay) NRAM_RETURN_IF_ERROR(ops[lane]->Wait());
      if (piece >= options.mib) continue;
      if (writes) {
        store->StartWrite(ops[lane].get(), piece * kMiB, absl::MakeConstSpan(buffers[lane]), nullptr, nullptr);
      } else {
        store->StartRead(ops[lane].get(), piece * kMiB, absl::MakeSpan(buffers[lane]), nullptr, nullptr);
      }
    }
    const double seconds = SecondsSince(began_ns);
    result.more.emplace_back(writes ? "write_bytes_per_s" : "read_bytes_per_s",
                             static_cast<double>(options.mib * kMiB) / seconds);
    result.seconds += seconds;
    result.bytes += static_cast<double>(options.mib * kMiB);
  }
  return result;
}

absl::StatusOr<Result> Run(const std::string& work, const Options& options) {
  if (work == "resident") return RunResident(options);
  if (work == "scan") return RunScan(options);
  if (work == "transpose") return RunTranspose(options);
  if (work == "stream") return RunStream(options);
  return absl::InvalidArgumentError("which? resident, scan, transpose or stream; see --help");
}

int Main(const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("nram-managed-work");
  parser.Integer("mib", 4, 1 << 24, &options.mib);
  parser.Integer("object-bytes", 8, int64_t{1} << 30, &options.object_bytes);
  parser.Integer("rounds", 1, 1'000'000, &options.rounds);
  parser.Switch("write", &options.write);
  std::vector<std::string> words;
  absl::Status status = parser.Parse(args, &words);
  if (parser.help()) {
    fputs(kHelp, stdout);
    return 0;
  }
  if (status.ok()) {
    const absl::StatusOr<Result> result = Run(words.size() == 1 ? words[0] : "", options);
    if (result.ok()) {
      std::string out = absl::StrCat("{\"work\":\"", words[0], "\",\"verified\":", result->verified ? "true" : "false",
                                     ",\"seconds\":", result->seconds, ",\"bytes\":", result->bytes,
                                     ",\"bytes_per_s\":", result->bytes / result->seconds);
      for (const auto& [name, number] : result->more) absl::StrAppend(&out, ",\"", name, "\":", number);
      printf("%s}\n", out.c_str());
      return result->verified ? 0 : 4;
    }
    status = result.status();
  }
  std::cerr << "nram-managed-work: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  try {
    return nram::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "nram-managed-work: " << error.what() << std::endl;
    return 1;
  }
}
