// nram run: a program as it is, with most of its memory in the pool.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/host/memory_balance.h"
#include "base/host/programs.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/placement.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"
#include "client/run/region_pages.h"
#include "client/run/supervisor.h"
#include "client/run/task_space.h"
#include "client/run/untraced_start.h"
#include "nlohmann/json.hpp"
#include "tools/nram/command.h"

namespace nram {
namespace {

// As of env(1): this command failed; the program cannot be executed; there is no such program.
constexpr int kFailed = 125;
constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;
// A part of the budget, for pages on their way.
constexpr uint64_t kBufferBytes = 4 * kMiB;
constexpr uint64_t kBudgetMin = 16 * kMiB;
constexpr uint64_t kBudgetMax = uint64_t{1} << 44;

struct RunFlags {
  uint64_t budget = 2 * kGiB;
  bool budget_auto = false;
  std::string pool;
  int64_t copies = 1;
  std::optional<bool> seal;
  bool stats = false;
  bool json = false;
  bool dry = false;

  absl::Status ParseBudget(absl::string_view value);

  void Register(ArgParser* parser) {
    parser->Custom("budget", [this](absl::string_view value) { return ParseBudget(value); },
                   {"SIZE|auto",
                    "local memory for the program's pages, at least 16 MiB (default 2GiB);\n"
                    "auto: the memory that the machine, or this command's memory cgroup, has\n"
                    "available at the start, less a sixteenth of its total (32 MiB to 1 GiB)\n"
                    "for other programs; it does not change later",
                    "auto"});
    parser->String("pool", &pool, {"POOL", kPoolFlag.text});
    RegisterTlsDir(parser);
    parser->Integer("copies", 1, kReplicasMax, &copies,
                    {"N", "1..4 copies of each remote page, on servers of different hosts (default 1)"});
    parser->Switch("seal", &seal,
                   {"",
                    "servers get only ciphertext (default: $NRAM_SEAL, else yes if some server\n"
                    "is on another machine; see docs/security.md)"});
    parser->Switch("stats", &stats, {"", "print statistics on standard error at the end"});
    parser->Switch("json", &json, {"", "print them, or what --dry finds, in JSON"});
    parser->Switch("dry", &dry, {"", "check whether the program can run and show its remote memory; run nothing"});
  }
};

absl::Status RunFlags::ParseBudget(absl::string_view value) {
  budget_auto = value == "auto";
  if (budget_auto) return absl::OkStatus();
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(value);
  if (!bytes.ok() || *bytes < kBudgetMin || *bytes > kBudgetMax) {
    return absl::InvalidArgumentError(absl::StrCat("\"", value, "\": expected ", FormatByteSize(kBudgetMin), " to ",
                                                   FormatByteSize(kBudgetMax), ", or auto"));
  }
  budget = *bytes;
  return absl::OkStatus();
}

// The memory that a program may have beside the others on this machine, which are there already.
absl::StatusOr<uint64_t> AvailableBudget() {
  NRAM_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  MemoryBalance balance({.floor_bytes = kBudgetMin, .ceiling_bytes = kBudgetMax});
  return RoundDown(balance.Update({MonotonicNs(), memory.total_bytes, memory.available_bytes, /*own_bytes=*/0}),
                   kPageBytes);
}

// The program that a shell would execute.
absl::StatusOr<std::string> FindExecutable(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (access(name.c_str(), F_OK) != 0) return absl::NotFoundError(absl::StrCat(name, ": no such program"));
    return name;
  }
  const char* const path = getenv("PATH");
  for (const auto folder : absl::StrSplit(path != nullptr ? path : "/usr/bin:/bin", ':')) {
    const std::string whole = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    struct stat info;
    if (stat(whole.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(whole.c_str(), X_OK) == 0) return whole;
  }
  return absl::NotFoundError(absl::StrCat(name, ": no such program in $PATH"));
}

// Whether nram run can do anything for it. The messages say why not.
absl::Status CheckExecutable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode) || access(path.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not an executable file"));
  }
  if (((info.st_mode & S_ISUID) != 0 && info.st_uid != geteuid()) ||
      ((info.st_mode & S_ISGID) != 0 && info.st_gid != getegid())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": a setuid or setgid program would not get its privileges under nram run"));
  }
  unsigned char head[20] = {};
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || read(file.get(), head, sizeof(head)) != sizeof(head)) return absl::OkStatus();
  const bool elf = head[0] == 0x7F && head[1] == 'E' && head[2] == 'L' && head[3] == 'F';
  if (elf && (head[4] != 2 || head[18] != 62)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a 64-bit program for x86-64"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Pool>> OpenPool(const RunFlags& flags) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(flags.pool));
  NRAM_RETURN_IF_ERROR(UsePool(spec, &options));
  NRAM_ASSIGN_OR_RETURN(options.seal, ChooseSeal(flags.seal));
  if (flags.copies > 1) options.ExpectCopies();
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool, Pool::Open(std::move(options)));
  // Without hosts for them, the program would be killed as soon as it outgrows its budget.
  NRAM_RETURN_IF_ERROR(CheckHosts(*pool, static_cast<int>(flags.copies), "--copies"));
  return pool;
}

void PrintStats(const RunFlags& flags, const RunReport& report, const RunCounters& counters) {
  if (flags.json) {
    const nlohmann::json out = {{"budget_bytes", flags.budget},
                                {"outgrew_budget", report.armed},
                                {"peak_bytes", counters.peak_pages * kPageBytes},
                                {"faults", counters.faults.load()},
                                {"first_writes", counters.first_writes.load()},
                                {"zero_pages", counters.zero_pages.load()},
                                {"fetched_pages", counters.fetched_pages.load()},
                                {"ahead_pages", counters.ahead_pages.load()},
                                {"evicted_pages", counters.evicted_pages.load()},
                                {"written_pages", counters.written_pages.load()},
                                {"stayed_pages", counters.stayed_pages.load()},
                                {"budget_waits", counters.budget_waits.load()},
                                {"children", report.children},
                                {"armed_children", report.armed_children},
                                {"refused_forks", report.refused_forks},
                                {"local_programs", report.local_programs}};
    PrintJson(out, -1);
    return;
  }
  std::cerr << "nram run: budget " << FormatByteSize(flags.budget);
  if (!report.armed) {
    std::cerr << ", not outgrown: nothing was remote";
  } else {
    std::cerr << "; " << counters.faults << " faults, " << counters.budget_waits
              << " waited for room; pages: " << counters.zero_pages << " new, " << counters.fetched_pages
              << " fetched (" << counters.ahead_pages << " ahead), " << counters.evicted_pages << " evicted, "
              << counters.written_pages << " written; at most " << FormatByteSize(counters.peak_pages * kPageBytes)
              << " here";
  }
  if (report.refused_forks > 0) std::cerr << "; " << report.refused_forks << " forks refused";
  if (report.armed_children > 0) std::cerr << "; " << report.armed_children << " children with remote memory";
  if (report.children > 0) std::cerr << "; " << report.children << " local children";
  std::cerr << "\n";
}

// Ends as the program has, so that the parent of this process sees the same end.
int EndAs(const RunEnd& end) {
  if (end.signal == 0) return end.code;
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);  // the program has left its own
  signal(end.signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, end.signal);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  raise(end.signal);
  return 128 + end.signal;
}

int Fail(const absl::Status& status, int code) {
  PrintError(status.message(), "nram run");
  return code;
}

// The limits of a program that may not be traced.
std::string UntracedText(const absl::Status& may_trace) {
  return absl::StrCat("programs may not be traced here (", may_trace.message(),
                      "): a library is loaded first. The program cannot fork once it has outgrown its budget, and "
                      "programs that it executes are local");
}

int Dry(const RunFlags& flags, const std::string& path, const absl::Status& may_trace) {
  const absl::StatusOr<std::unique_ptr<Pool>> pool = OpenPool(flags);
  if (!pool.ok()) return Fail(pool.status(), kFailed);
  if (flags.json) {
    const nlohmann::json out = {{"program", path},
                                {"budget_bytes", flags.budget},
                                {"traced", may_trace.ok()},
                                {"pool_free_bytes", (*pool)->Capacity().free_bytes}};
    PrintJson(out, -1);
    return 0;
  }
  std::cout << path << ": can be run\n"
            << "remote, beyond " << FormatByteSize(flags.budget)
            << ": its heap, its large zero-initialised data, and mappings of 128 KiB and more\n"
            << "local: its code and files, shared memory, stacks, huge pages, smaller mappings, and programs that it "
               "starts\n"
            << (may_trace.ok() ? "the program will be traced at its start" : UntracedText(may_trace)) << "\n"
            << "the pool has " << FormatByteSize((*pool)->Capacity().free_bytes) << " free\n";
  return 0;
}

// Everything of the pool has gone when this returns.
absl::StatusOr<RunEnd> RunInPool(const RunFlags& flags, Supervisor* supervisor) {
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, OpenPool(flags));
  RegionOptions how;
  how.gc = true;
  how.copies = static_cast<int>(flags.copies);
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool->CreateRegion(how));
  RegionPages store(std::move(region));
  return supervisor->Run(&store);
}

int RunProgram(RunFlags& flags, const Invocation& given) {
  if (flags.dry) ExpectJson(given.args, /*on_stderr=*/false);  // there is no program that prints
  const auto dashes = std::find(given.args.begin(), given.args.end(), "--");
  const auto after = static_cast<size_t>(given.args.end() - dashes);
  if (given.words.empty() || after != given.words.size() + 1) {
    return ToExitCode(absl::InvalidArgumentError("expected flags, then --, then a program and its arguments"),
                      "nram run");
  }
  const absl::StatusOr<std::string> path = FindExecutable(given.words[0]);
  if (!path.ok()) return Fail(path.status(), kNotFound);
  if (const absl::Status status = CheckExecutable(*path); !status.ok()) return Fail(status, kCannotExecute);
  if (const absl::Status status = TaskSpace::Probe(); !status.ok()) return Fail(status, kFailed);
  if (flags.budget_auto) {
    const absl::StatusOr<uint64_t> budget = AvailableBudget();
    if (!budget.ok()) return Fail(budget.status(), kFailed);
    flags.budget = *budget;
  }
  std::string library;
  const absl::Status may_trace = MayTrace();
  if (!may_trace.ok()) {
    if (!absl::IsPermissionDenied(may_trace)) return Fail(may_trace, kFailed);
    if (const absl::Status status = CheckLoads(*path); !status.ok()) return Fail(status, kCannotExecute);
    const absl::StatusOr<std::string> found = FindProgram("libnram-run.so", "client/run", "NRAM_RUN_LIBRARY");
    if (!found.ok()) return Fail(Annotate(found.status(), UntracedText(may_trace)), kFailed);
    library = *found;
  }
  if (flags.dry) return Dry(flags, *path, may_trace);
  if (!may_trace.ok()) std::cerr << "nram run: " << UntracedText(may_trace) << "\n";
  RunCounters counters;
  RunOptions options;
  options.budget_pages = (flags.budget - kBufferBytes) / kPageBytes;
  Supervisor supervisor(*path, given.words, options, &counters);
  // Before the pool has its threads.
  if (const absl::Status status = supervisor.Start(library); !status.ok()) return Fail(status, kFailed);
  const absl::StatusOr<RunEnd> end = RunInPool(flags, &supervisor);
  if (flags.stats || flags.json) PrintStats(flags, supervisor.report(), counters);
  if (!end.ok()) {
    return Fail(supervisor.report().begun ? Annotate(end.status(), "the program was killed") : end.status(),
                supervisor.report().refused ? kCannotExecute : kFailed);
  }
  return EndAs(*end);
}

}  // namespace

Command RunCommand() {
  return DefineCommand<RunFlags>(
      {"run", "run a program with most of its memory in the pool", R"(usage: nram run [flags] -- PROGRAM [ARGUMENT...]

Runs an unmodified program with no more of this machine's memory than the budget. The other pages
are stored in the pool and are fetched when the program touches them. A program that fits into the
budget runs as without nram.

)",
       R"(
Remote memory is the heap, large mappings and large zero-initialised data. Code, files, shared
memory and stacks are local. Threads, static programs and programs with their own allocator are
supported. A child that is forked after the program has outgrown its budget gets a budget of the
same size. Other children, and programs that children execute, use local memory only.

If the pool fails, or this command is killed, the program is killed, so that it never reads zeros
instead of lost data.
Needs Linux 6.8 and the right to use userfaultfd. Setuid and 32-bit programs are refused. Where
programs may not be traced (Yama, containers, a debugger), a library is loaded first. Then static
programs and later forks are refused, and programs that the program executes are local (adr/0026).

This command is new. It ends a program that it cannot support, with the reason (docs/run.md,
adr/0021, "Open"). Check the program's results.

Exit codes: the program's own, or its signal; 125 if nram run itself fails, 126 if the program
cannot be executed, 127 if it does not exist, 2 for a bad command line.

example: nram up && nram run --budget=512MiB --stats -- sort -S 4G big.txt -o sorted.txt
)",
       /*table_width=*/22, /*json_on_stderr=*/true},
      Words::kAny, &RunProgram);
}

}  // namespace nram
