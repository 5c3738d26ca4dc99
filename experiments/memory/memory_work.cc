// nram-memory-work: the workloads of experiments/memory_bench.py. Runs one workload and prints one line of JSON.

#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/args.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "experiments/memory/backing.h"
#include "experiments/memory/ping_pong.h"
#include "experiments/memory/work.h"

namespace nram {
namespace {

constexpr char kHelp[] = R"(usage: nram-memory-work WORK [flags]

Does one workload on one kind of memory and prints one line of JSON: seconds and processor
seconds of the timed part, operations, bytes, whether everything was right, and nram's counters.
Ends with 0; 4 if something was not right; 1 if it could not be done. The pool is $NRAM_POOL, or
that of `nram up`.

  scan       a word of each page, in order, of --mib
  random     --count words at random of --mib, all of which was written before
  resident   random and sequential reads of --mib within the budget, in turns with plain memory;
             then the same pages moved out of nram, again in turns with it
  sort       sorts --mib of random 64-bit numbers
  matrix     multiplies two matrices of --n x --n doubles
  ping-pong  --count round trips over TCP loopback: 64 bytes there, 64 + 4096 back

  --backing=WHAT      nram, malloc, file, or bare: a userfaultfd with nothing behind it (scan,
                      random; default nram)
  --budget=BYTES      of local memory, for nram and bare (default 256M)
  --mib=N             size of the array (default 1024)
  --n=N               of the matrices, a multiple of 64 (default 4096: 384 MiB in all)
  --threads=N         1..64, that work: scan, random, matrix (default 1)
  --seed=N            of all that is random (default 1)
  --count=N           accesses or round trips (default 100000)
  --skew=N            random: half of the accesses go to one page of 2^N (default 1: all are alike)
  --write             scan, random: write what was read, too
  --libc-qsort        sort: by qsort(), not std::sort
  --apart             ping-pong: keep the ends on two processors
  --directory=DIR     where file has its file (default /var/tmp)
  --batch=N           1..256, pages with which bare answers a fault (default 16)
  --handlers=N        1..64, threads that answer faults (default: nram's own; bare 1)
  --page-bytes=BYTES  nram's unit of faults
  --policy=WHAT       default, second-chance, fifo or random
  --advice=WHAT       normal, sequential or random: what nram is told of all memory
  --help              this text

example: nram-memory-work scan --backing=nram --budget=256M --mib=1024
)";

using Run = absl::StatusOr<WorkResult> (*)(const WorkOptions&, Backing*);

const std::map<std::string, Run>& Works() {
  static const auto* works = new std::map<std::string, Run>{{"scan", &RunScan},
                                                            {"random", &RunRandom},
                                                            {"resident", &RunResident},
                                                            {"sort", &RunSort},
                                                            {"matrix", &RunMatrix}};
  return *works;
}

const std::map<std::string, BackingKind> kBackings = {{"nram", BackingKind::kNram},
                                                      {"malloc", BackingKind::kMalloc},
                                                      {"file", BackingKind::kFile},
                                                      {"bare", BackingKind::kBare}};
const std::map<std::string, nram_policy> kPolicies = {{"default", NRAM_POLICY_DEFAULT},
                                                      {"second-chance", NRAM_POLICY_SECOND_CHANCE},
                                                      {"fifo", NRAM_POLICY_FIFO},
                                                      {"random", NRAM_POLICY_RANDOM}};
const std::map<std::string, nram_advice> kAdvices = {
    {"normal", NRAM_NORMAL}, {"sequential", NRAM_SEQUENTIAL}, {"random", NRAM_RANDOM}};

template <typename T>
void OneOf(ArgParser* parser, absl::string_view name, const std::map<std::string, T>& words, T* target) {
  parser->Custom(name, [&words, target](absl::string_view value) {
    const auto found = words.find(std::string(value));
    if (found == words.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", value, "\" is not accepted: expected one of ",
                       absl::StrJoin(words, ", ", [](std::string* out, const auto& word) { *out += word.first; })));
    }
    *target = found->second;
    return absl::OkStatus();
  });
}

void Register(WorkOptions* options, ArgParser* parser) {
  OneOf(parser, "backing", kBackings, &options->backing);
  OneOf(parser, "policy", kPolicies, &options->policy);
  OneOf(parser, "advice", kAdvices, &options->advice);
  parser->ByteSize("budget", kMiB, kRegionBytesMax, &options->budget_bytes);
  parser->ByteSize("page-bytes", kPageBytes, kMiB, &options->page_bytes);
  parser->Integer("mib", 1, 1 << 24, &options->mib);
  parser->Integer("n", 64, 1 << 17, &options->n);
  parser->Integer("threads", 1, 64, &options->threads);
  parser->Integer("seed", 0, INT64_MAX, &options->seed);
  parser->Integer("count", 1, int64_t{1} << 40, &options->count);
  parser->Integer("skew", 1, 16, &options->skew);
  parser->Integer("batch", 1, 256, &options->batch_pages);
  parser->Integer("handlers", 1, 64, &options->handlers);
  parser->String("directory", &options->directory);
  parser->Switch("write", &options->write);
  parser->Switch("libc-qsort", &options->libc_qsort);
  parser->Switch("apart", &options->apart);
}

absl::StatusOr<WorkResult> PingPong(const WorkOptions& options) {
  NRAM_ASSIGN_OR_RETURN(const int64_t took_ns, PingPongNs(options.count, options.apart));
  WorkResult result;
  result.seconds = static_cast<double>(took_ns) / kNsPerSecond;
  result.ops = options.count;
  result.verified = true;
  return result;
}

void Print(const std::string& work, const WorkResult& result) {
  const nram_stats& stats = result.stats;
  std::string out = absl::StrCat("{\"work\":\"", work, "\",\"verified\":", result.verified ? "true" : "false",
                                 ",\"seconds\":", result.seconds, ",\"cpu_s\":", result.cpu_seconds);
  const std::pair<const char*, uint64_t> numbers[] = {{"ops", result.ops},
                                                      {"bytes", result.bytes},
                                                      {"rss_bytes", ReadProcessMemory().resident_bytes},
                                                      {"budget_bytes", stats.budget_bytes},
                                                      {"mapped_bytes", stats.mapped_bytes},
                                                      {"resident_bytes", stats.resident_bytes},
                                                      {"metadata_bytes", stats.metadata_bytes},
                                                      {"faults", stats.faults},
                                                      {"write_faults", stats.write_faults},
                                                      {"hits", stats.hits},
                                                      {"zero_pages", stats.zero_pages},
                                                      {"fetched_bytes", stats.fetched_bytes},
                                                      {"prefetched_bytes", stats.prefetched_bytes},
                                                      {"prefetch_wasted_bytes", stats.prefetch_wasted_bytes},
                                                      {"written_bytes", stats.written_bytes},
                                                      {"evicted_pages", stats.evicted_pages},
                                                      {"lost_pages", stats.lost_pages},
                                                      {"wait_ns", stats.wait_ns}};
  for (const auto& [name, number] : numbers) absl::StrAppend(&out, ",\"", name, "\":", number);
  for (const auto& [name, number] : result.more) absl::StrAppend(&out, ",\"", name, "\":", number);
  printf("%s}\n", out.c_str());
}

int Main(const std::vector<std::string>& args) {
  WorkOptions options;
  ArgParser parser("nram-memory-work");
  Register(&options, &parser);
  std::vector<std::string> words;
  absl::Status status = parser.Parse(args, &words);
  if (parser.help()) {
    fputs(kHelp, stdout);
    return 0;
  }
  if (status.ok() && (words.size() != 1 || (words[0] != "ping-pong" && Works().count(words[0]) == 0))) {
    status = absl::InvalidArgumentError("which? scan, random, resident, sort, matrix or ping-pong; see --help");
  }
  if (status.ok()) {
    std::unique_ptr<Backing> backing;
    const auto result = [&]() -> absl::StatusOr<WorkResult> {
      if (words[0] == "ping-pong") return PingPong(options);
      NRAM_ASSIGN_OR_RETURN(backing, Backing::Open(options));
      return Works().at(words[0])(options, backing.get());
    }();
    if (result.ok()) {
      Print(words[0], *result);
      return result->verified ? 0 : 4;
    }
    status = result.status();
  }
  std::cerr << "nram-memory-work: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Main({argv + 1, argv + argc}); }
