// nram sort: an external merge sort in network RAM.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/client_tls.h"
#include "client/pool/placement.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"
#include "nlohmann/json.hpp"
#include "sort/external_sort.h"
#include "sort/input.h"
#include "sort/output.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

constexpr uint64_t kMemoryMin = 48 * kMiB;
// The share of the pool's client in the memory once it is open: gRPC, connections, stacks of threads.
constexpr uint64_t kPoolBytes = 8 * kMiB;
constexpr uint64_t kSealBytes = 8 * kMiB;  // ciphertext of the pages under way

std::atomic<bool> interrupted{false};

// Looked at before main opens /dev/null in place of a missing stream: sorted lines must not go there silently.
const bool no_standard_output = fcntl(STDOUT_FILENO, F_GETFD) < 0;

struct SortFlags {
  SortOptions sort;
  uint64_t memory = 256 * kMiB;
  int64_t threads = 0;  // 0: as many as are good
  int64_t record = 0;
  int64_t copies = 1;
  std::optional<bool> seal;
  bool expendable = false;
  std::string pool;
  std::string scratch = "pool";
  FastWake fast_wake = FastWake::kAuto;
  bool zero = false;
  bool merge = false;  // the result is the same
  bool progress = isatty(STDERR_FILENO) != 0;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->Heading("Order");
    RegisterOrder(parser, &sort.order);
    parser->Switch("merge", &merge, {"", "[m] the inputs are sorted already: accepted, and sorted all the same"});
    parser->Switch("zero-terminated", &zero, {"", "[z] lines end with a zero byte"});
    parser->Integer("record", 1, int64_t{1} << 20, &record,
                    {"BYTES", "1..1048576: sort records of BYTES instead of lines; equal ones keep their\norder"});
    parser->Heading("\nWhere and how");
    RegisterPlaces(parser);
    parser->Switch("progress", &progress, {"", "show the progress, or --no-progress (default: on a terminal)"});
    parser->Switch("json", &json, {"", "print statistics in JSON on standard error at the end"});
    parser->AllowRepeats();  // as sort(1): scripts append flags
  }

 private:
  static void RegisterOrder(ArgParser* parser, OrderOptions* order) {
    const auto add_key = [order](absl::string_view text) {
      order->keys.emplace_back(text);
      return absl::OkStatus();
    };
    parser->Repeated("key", add_key,
                     {"KEY",
                      "[k] sort by this part of the line, FIELD[.CHARACTER][LETTERS][,FIELD\n"
                      "[.CHARACTER][LETTERS]], counted from 1, with letters of b, d, f, g, h, i,\n"
                      "M, n, r, V; may be repeated. With --record: OFFSET:LENGTH[r], bytes\n"
                      "counted from 0"});
    const auto set_separator = [order](absl::string_view text) {
      if (text == "\\t") text = "\t";
      if (text.size() != 1 || text[0] == '\0') return absl::InvalidArgumentError("expected one character, or \\t");
      if (order->separator != '\0' && order->separator != text[0]) {
        return absl::InvalidArgumentError("two different separators");
      }
      order->separator = text[0];
      return absl::OkStatus();
    };
    parser->Custom("separator", set_separator,
                   {"C", "[t] separator of fields (\\t: a tab); without it, fields begin with blanks"});
    parser->Switch("numeric", &order->numeric, {"", "[n] compare as numbers"});
    parser->Switch("general-numeric", &order->general, {"", "[g] compare as floating-point numbers (1e3, inf)"});
    parser->Switch("human-numeric", &order->human, {"", "[h] compare numbers with units (2K, 1G)"});
    parser->Switch("month", &order->month, {"", "[M] compare names of months (JAN < DEC)"});
    parser->Switch("version", &order->version, {"", "[V] compare versions and names of files (1.9 < 1.10)"});
    parser->Switch("reverse", &order->reverse, {"", "[r] reverse the order"});
    parser->Switch("ignore-case", &order->fold, {"", "[f] treat lower case as upper case"});
    parser->Switch("dictionary-order", &order->dictionary, {"", "[d] only blanks, letters and digits count"});
    parser->Switch("ignore-nonprinting", &order->printable, {"", "[i] only printable characters count"});
    parser->Switch("ignore-leading-blanks", &order->blanks, {"", "[b] ignore blanks before a key"});
    parser->Switch("stable", &order->stable, {"", "[s] keep the input order of lines with equal keys"});
    parser->Switch("unique", &order->unique, {"", "[u] keep only the first of lines with equal keys"});
  }

  void RegisterPlaces(ArgParser* parser) {
    parser->String("output", &sort.output,
                   {"FILE",
                    "[o] output (default: standard output). It is written to a temporary file\n"
                    "beside FILE and renamed at the end, so FILE may be an input. If the\n"
                    "directory does not permit that, FILE is overwritten and must not be an\n"
                    "input. An existing FILE keeps its mode; symbolic links are followed,\n"
                    "other hard links keep the old text"});
    parser->ByteSize("memory", kMemoryMin, uint64_t{1} << 50, &memory,
                     {"SIZE", "[S] memory of the whole process, at least 48 MiB (default 256MiB)"});
    parser->Integer("threads", 1, 256, &threads,
                    {"N", "1..256 that sort runs (default: one per processor, fewer with little memory)"});
    parser->String(
        "scratch", &scratch,
        {"pool|DIR", "[T] pool: the pool, directly (default); or a file in DIR, on a mount or disk", "pool"});
    parser->String("pool", &pool, {"SERVERS", kPoolFlag.text});
    RegisterTlsDir(parser);
    parser->Integer("copies", 1, kReplicasMax, &copies,
                    {"N",
                     "1..4 copies of each page of the scratch, on servers of different hosts\n"
                     "(default 1). The sort survives the loss of N-1 of these hosts, and its\n"
                     "scratch takes N times as much of the pool"});
    parser->Switch("seal", &seal,
                   {"",
                    "seal the scratch: servers get only ciphertext (default: $NRAM_SEAL, else\n"
                    "yes if some server is on another machine; see docs/security.md)"});
    parser->Switch("expendable", &expendable,
                   {"",
                    "servers may destroy the scratch when their hosts need the memory and\n"
                    "nothing else helps; the sort then fails (docs/giving-back.md)"});
    const auto set_fast_wake = [this](absl::string_view text) { return ParseFastWake(text, &fast_wake); };
    parser->Custom("fast-wake", set_fast_wake,
                   {"WHEN",
                    "auto, on or off: keep this machine's idle processors from sleeping while\n"
                    "waits for the pool are frequent (default auto: on with up to 16\n"
                    "processors, if permitted; see docs/tuning.md)",
                    "auto on off"});
  }
};

// Spells out sort(1)'s letters: "-k2,2nr", "-t ,", "-nru", "-S 1G". INVALID_ARGUMENT: a letter that is not had.
absl::StatusOr<std::vector<std::string>> SpellOut(const std::vector<std::string>& args) {
  static constexpr std::pair<char, const char*> kSwitches[] = {
      {'n', "--numeric"}, {'r', "--reverse"},         {'f', "--ignore-case"},     {'b', "--ignore-leading-blanks"},
      {'s', "--stable"},  {'u', "--unique"},          {'z', "--zero-terminated"}, {'d', "--dictionary-order"},
      {'M', "--month"},   {'g', "--general-numeric"}, {'h', "--human-numeric"},   {'i', "--ignore-nonprinting"},
      {'m', "--merge"},   {'V', "--version"}};
  static constexpr std::pair<char, const char*> kValues[] = {
      {'k', "--key="}, {'t', "--separator="}, {'o', "--output="}, {'S', "--memory="}, {'T', "--scratch="}};
  std::vector<std::string> words;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      words.insert(words.end(), args.begin() + static_cast<ptrdiff_t>(i), args.end());
      break;
    }
    if (arg.size() < 2 || arg[0] != '-' || arg[1] == '-') {
      words.push_back(arg);
      continue;
    }
    for (size_t at = 1; at < arg.size(); ++at) {
      const auto with = std::find_if(std::begin(kValues), std::end(kValues),
                                     [&](const auto& value) { return value.first == arg[at]; });
      if (with != std::end(kValues)) {
        const bool attached = at + 1 < arg.size();
        words.push_back(with->second + (attached ? arg.substr(at + 1) : i + 1 < args.size() ? args[++i] : ""));
        break;
      }
      const auto plain = std::find_if(std::begin(kSwitches), std::end(kSwitches),
                                      [&](const auto& one) { return one.first == arg[at]; });
      if (plain == std::end(kSwitches)) {
        return absl::InvalidArgumentError(absl::StrCat("unknown flag -", arg.substr(at, 1),
                                                       ": of sort(1)'s letters there are b d f g h i k m M n o r s S t "
                                                       "T u V z\nTry 'nram sort --help'."));
      }
      words.push_back(plain->second);
    }
  }
  return words;
}

// One line on the terminal, written over itself.
class ProgressLine {
 public:
  explicit ProgressLine(bool on) : on_(on) {}
  ~ProgressLine() {
    if (shown_) fprintf(stderr, "\r\033[K");
  }

  void operator()(const SortProgress& progress) {
    const int64_t now_ns = MonotonicNs();
    if (progress.phase != phase_ || began_ns_ == 0) {
      phase_ = progress.phase;
      began_ns_ = now_ns;
      next_ns_ = 0;
    }
    if (!on_ || now_ns < next_ns_) return;
    next_ns_ = now_ns + kNsPerSecond / 5;
    static constexpr const char* kNames[] = {"reading and sorting", "merging", "merging and writing"};
    const double seconds = static_cast<double>(now_ns - began_ns_) / kNsPerSecond;
    const double rate = seconds > 0 ? static_cast<double>(progress.done_bytes) / seconds : 0;
    std::string line =
        absl::StrCat(kNames[static_cast<int>(progress.phase)], ": ", FormatByteSize(progress.done_bytes));
    if (progress.total_bytes != Input::kUnknown && progress.total_bytes > 0) {
      const uint64_t left = progress.total_bytes - std::min(progress.done_bytes, progress.total_bytes);
      absl::StrAppend(&line, " of ", FormatByteSize(progress.total_bytes), " (",
                      progress.done_bytes * 100 / progress.total_bytes, " %)");
      if (rate > 0)
        absl::StrAppend(&line, ", ", static_cast<int64_t>(static_cast<double>(left) / rate + 0.5), " s left");
    }
    if (rate > 0) absl::StrAppend(&line, ", ", FormatByteSize(static_cast<uint64_t>(rate)), "/s");
    fprintf(stderr, "\r%s\033[K", line.c_str());
    shown_ = true;
  }

 private:
  const bool on_;
  bool shown_ = false;
  SortPhase phase_ = SortPhase::kBuilding;
  int64_t began_ns_ = 0;
  int64_t next_ns_ = 0;
};

constexpr int kInterrupted = 130;

// The first signal asks for an orderly end. If the sort cannot end (a pipe without a reader), it is ended three
// seconds later.
void OnSignal(int) {
  if (!interrupted.exchange(true)) alarm(3);
}

void OnLate(int) {
  Output::RemoveTemporaryInSignal();
  _exit(kInterrupted);
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = &OnSignal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    // A signal that the starter has told it to ignore (nohup) stays ignored.
    struct sigaction old;
    if (sigaction(signal, nullptr, &old) != 0 || old.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  action.sa_handler = &OnLate;
  sigaction(SIGALRM, &action, nullptr);
}

// The scratch's pool, as it is to be opened.
absl::StatusOr<PoolOptions> PoolOf(const SortFlags& flags) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(flags.pool));
  NRAM_RETURN_IF_ERROR(UsePool(spec, &options));
  options.fast_wake = flags.fast_wake;
  NRAM_ASSIGN_OR_RETURN(options.seal, ChooseSeal(flags.seal));
  options.expendable = flags.expendable;
  return options;
}

absl::StatusOr<std::unique_ptr<Scratch>> OpenScratch(const SortFlags& flags) {
  if (flags.scratch != "pool") return OpenFileScratch(flags.scratch);
  NRAM_ASSIGN_OR_RETURN(PoolOptions options, PoolOf(flags));
  return OpenPoolScratch(std::move(options), static_cast<int>(flags.copies));
}

// 0 if it cannot be read. getrusage(2) would count the program that this process was before exec, too.
uint64_t PeakResidentBytes() {
  return NumberField(ReadFile("/proc/self/status").value_or(""), "VmHWM").value_or(0) * kKiB;
}

absl::Status Sort(SortFlags flags) {
  SortOptions& sort = flags.sort;
  sort.format.record_bytes = sort.order.record_bytes = static_cast<uint32_t>(flags.record);
  if (flags.zero) sort.format.terminator = '\0';
  sort.interrupted = &interrupted;
  const bool to_pool = flags.scratch == "pool";
  if (!to_pool && flags.copies > 1) return absl::InvalidArgumentError("--copies needs --scratch=pool");
  if (!to_pool && flags.seal.value_or(false)) return absl::InvalidArgumentError("--seal needs --scratch=pool");
  if (!to_pool && flags.expendable) return absl::InvalidArgumentError("--expendable needs --scratch=pool");
  // --memory is for the whole process, so the memory that it has already comes off.
  uint64_t taken = ReadProcessMemory().resident_bytes + (to_pool ? kPoolBytes : kMiB);
  if (to_pool) {
    NRAM_ASSIGN_OR_RETURN(const PoolOptions pool, PoolOf(flags));
    if (Pool::WouldSeal(pool)) taken += kSealBytes;
  }
  if (flags.memory < taken + SortOptions::kMemoryMin * 8) {
    return absl::InvalidArgumentError(absl::StrCat("--memory=", FormatByteSize(flags.memory), " is too little: ",
                                                   FormatByteSize(taken), " are needed for the program itself"));
  }
  sort.memory_bytes = flags.memory - taken;
  const int processors = std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
  sort.threads = flags.threads > 0 ? static_cast<int>(flags.threads) : ChooseSortThreads(sort.memory_bytes, processors);
  if (sort.output.empty() && no_standard_output) {
    return absl::FailedPreconditionError("the standard output is closed; open it, or give --output=FILE");
  }
  sort.open_scratch = [&flags]() -> absl::StatusOr<std::unique_ptr<Scratch>> {
    auto scratch = OpenScratch(flags);
    if (scratch.ok()) return scratch;
    return Annotate(scratch.status(), "the input does not fit into --memory, and there is no scratch");
  };
  CatchSignals();
  SortReport report;
  {
    ProgressLine line(flags.progress);
    sort.on_progress = std::ref(line);
    NRAM_ASSIGN_OR_RETURN(report, ExternalSort(sort));
  }
  if (flags.json) {
    const nlohmann::json out = {{"input_bytes", report.input_bytes},
                                {"output_bytes", report.output_bytes},
                                {"records", report.records},
                                {"runs", report.runs},
                                {"passes", report.passes},
                                {"scratch_bytes", report.scratch_bytes},
                                {"build_seconds", static_cast<double>(report.build_ns) / kNsPerSecond},
                                {"merge_seconds", static_cast<double>(report.merge_ns) / kNsPerSecond},
                                {"memory_limit_bytes", flags.memory},
                                {"memory_peak_bytes", PeakResidentBytes()}};
    PrintJson(out, -1);
  } else if (flags.progress) {
    const double seconds = static_cast<double>(report.build_ns + report.merge_ns) / kNsPerSecond;
    fprintf(stderr, "%s in %llu records, %llu runs, %.1f s (%s/s), at most %s of memory\n",
            FormatByteSize(report.input_bytes).c_str(), static_cast<unsigned long long>(report.records),
            static_cast<unsigned long long>(report.runs), seconds,
            FormatByteSize(static_cast<uint64_t>(static_cast<double>(report.input_bytes) / std::max(seconds, 1e-6)))
                .c_str(),
            FormatByteSize(PeakResidentBytes()).c_str());
  }
  return absl::OkStatus();
}

int Run(SortFlags& flags, const Invocation& given) {
  if (!given.words.empty()) flags.sort.inputs = given.words;
  const absl::Status status = Sort(flags);
  if (absl::IsCancelled(status)) {
    PrintError(Output::WroteInPlace() ? "interrupted; the output is incomplete, the scratch is freed"
                                      : "interrupted; the output is unchanged, the scratch is freed",
               "nram sort");
    return kInterrupted;
  }
  return ToExitCode(status, "nram sort");
}

}  // namespace

Command SortCommand() {
  Command command = DefineCommand<SortFlags>(
      {"sort", "sort files larger than memory, with network RAM as scratch", R"(usage: nram sort [flags] [FILE...]

Sorts lines, or records of a fixed size, as `LC_ALL=C sort` does: an external merge sort whose
runs are stored in the pool's RAM. Without FILE, or for -, reads the standard input. The letters
of sort(1) in brackets work as well, and a flag may be repeated. sort's -c, -C, -R and sizes in
percent are missing.

)",
       R"(
The scratch takes as much room as the input, for each copy. If the pool has less room, the sort
fails before it reads anything (with pipes, whose size is unknown, when the pool is full). An input
so large for --memory that it is merged more than once (passes in --json) needs up to a sixteenth
of its size plus --memory in addition. A sort that is stopped (Ctrl-Z) for longer than its lease in
the pool, 10 s, fails: its scratch is freed.

A line may have about a tenth of --memory, or 64 MiB if that is less. With --threads=N, it may have
a tenth, or the memory of one thread if that is less: --memory / (N + 1).

Exit codes: 0 sorted, 1 failed, 2 bad command line, or lines or records that it cannot sort,
130 interrupted. Except after 0, an output that is not overwritten in place is unchanged.

example: nram up && nram sort --memory=100MiB --key=2,2nr --output=sorted.txt big.txt
)",
       /*table_width=*/22, /*json_on_stderr=*/true},
      Words::kAny, &Run);
  command.run = [run = command.run](const std::vector<std::string>& args) {
    const auto words = SpellOut(args);
    if (words.ok()) return run(*words);
    ExpectJson(args, /*on_stderr=*/true);
    return FinishOutput(ToExitCode(words.status(), "nram sort"), "nram sort");
  };
  return command;
}

}  // namespace nram
