// nram bench: the pool beside its reference.

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/tls/authority.h"
#include "base/tls/context.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"
#include "tools/bench/bare_socket.h"
#include "tools/bench/load_bench.h"
#include "tools/bench/pool_bench.h"
#include "tools/bench/tls_bench.h"
#include "tools/nram/command.h"
#include "tools/nram/local_pool.h"

namespace nram {
namespace {

struct BenchFlags {
  int64_t rounds = 7;
  bool quick = false;
  bool json = false;
  std::string only;
  int64_t spin_us = 50;
  int64_t seconds = 60;
  int64_t clients = 31;

  void Register(ArgParser* parser) {
    parser->Integer("rounds", 1, 1000, &rounds, {"N", "1..1000 rounds; the medians are shown (default 7)"});
    parser->String("only", &only, {"TEXT", "only rows whose name contains it"});
    parser->Integer("spin-us", 1, 10'000, &spin_us, {"N", "1..10000, time that polling rows poll (default 50)"});
    parser->Integer("seconds", 1, 86'400, &seconds, {"N", "1..86400, duration of the load (default 60)"});
    parser->Integer("clients", 1, 200, &clients,
                    {"N", "1..200 clients of the load, two connections each (default 31)"});
    parser->Switch("quick", &quick, {"", "one short round, as a smoke test; the numbers mean nothing"});
    parser->Switch("json", &json, {"", "the rows in JSON"});
  }
};

// `tls_dir`: certificates of both ends; empty: none.
absl::StatusOr<std::unique_ptr<Pool>> OpenLocal(const std::string& directory, int64_t spin_us,
                                                const std::string& tls_dir = "") {
  LocalPoolOptions local;
  local.directory = directory;
  local.servers = 1;
  local.server_flags = {"--donate=768MiB", absl::StrCat("--spin=", spin_us)};
  local.die_with_parent = true;
  local.tcp = true;
  if (!tls_dir.empty()) local.tls_dir = tls_dir;
  local.processor = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) - 1;
  NRAM_RETURN_IF_ERROR(StartLocalPool(local).status());
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(options.servers, ParsePoolSpec("@" + directory + "/pool"));
  options.unix_sockets = false;
  options.spin.limit_us = spin_us;
  if (!tls_dir.empty()) {
    NRAM_ASSIGN_OR_RETURN(const TlsFiles files, TlsFiles::In(tls_dir, TlsRole::kClient));
    NRAM_ASSIGN_OR_RETURN(options.tls, TlsContext::Load(files, TlsRole::kClient));
  }
  return Pool::Open(options);
}

void PrintRow(const BenchRow& row) {
  printf("%-46s %10.1f %10.1f %-5s %6.2f [%5.2f %5.2f] %s%.2f %-6s", row.name.c_str(), row.bare, row.nram,
         row.unit.c_str(), row.ratio, row.ratio_min, row.ratio_max, row.lower_is_better ? "<=" : ">=", row.mark,
         row.ok() ? "ok" : "missed");
  if (row.stored > 0) printf(" %10.1f %5.2f", row.stored, row.ratio_to_stored);
  printf("\n");
  fflush(stdout);
}

nlohmann::json ToJson(const BenchRow& row) {
  return {{"row", row.name},
          {"unit", row.unit},
          {"bare", row.bare},
          {"nram", row.nram},
          {"ratio", row.ratio},
          {"ratio_min", row.ratio_min},
          {"ratio_max", row.ratio_max},
          {"stored", row.stored},
          {"ratio_to_stored", row.ratio_to_stored},
          {"mark", row.mark},
          {"ok", row.ok()}};
}

absl::Status NoSuchRow(const std::string& only) {
  return absl::InvalidArgumentError(absl::StrCat("--only: no row's name contains \"", only, "\""));
}

absl::Status RunPool(const BenchFlags& options, const std::string& directory) {
  const std::string sleeping_dir = absl::StrCat(directory, "/sleeping");
  const std::string spinning_dir = absl::StrCat(directory, "/spinning");
  const auto cleanup = absl::MakeCleanup([&] {
    (void)StopLocalPool(sleeping_dir, 2'000);
    (void)StopLocalPool(spinning_dir, 2'000);
  });
  // The reference forks, so it comes before any thread.
  NRAM_ASSIGN_OR_RETURN(BareSocket bare, BareSocket::Start(BareSocket::Memory::kCached));
  NRAM_ASSIGN_OR_RETURN(BareSocket stored, BareSocket::Start(BareSocket::Memory::kStore));
  PinToProcessor(0);
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> sleeping, OpenLocal(sleeping_dir, 0));
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> spinning, OpenLocal(spinning_dir, options.spin_us));
  PoolBenchOptions bench;
  bench.rounds = options.quick ? 1 : static_cast<int>(options.rounds);
  bench.quick = options.quick;
  bench.only = options.only;
  nlohmann::json rows = nlohmann::json::array();
  if (!options.json) {
    printf(
        "TCP loopback; client on processor 0, server and reference on the last; medians of %d rounds, alternating.\n"
        "Stored: the bare socket, whose other end reads and writes 256 MiB in turn, as a store does.\n"
        "%-46s %10s %10s %-5s %6s %14s %7s %17s\n",
        bench.rounds, "", "bare", "nram", "", "ratio", "[min max]", "mark", "stored, ratio");
  }
  NRAM_RETURN_IF_ERROR(RunPoolBench(&bare, &stored, sleeping.get(), spinning.get(), bench, [&](const BenchRow& row) {
    if (!options.json) PrintRow(row);
    rows.push_back(ToJson(row));
  }));
  if (rows.empty()) return NoSuchRow(options.only);
  if (options.json) PrintJson(rows);
  return absl::OkStatus();
}

// An authority and its certificates for servers and clients of this machine.
absl::Status MakeCertificates(const std::string& directory) {
  NRAM_RETURN_IF_ERROR(MakeStateDir(directory));
  NRAM_ASSIGN_OR_RETURN(const Authority authority, Authority::Create("nram-bench"));
  NRAM_ASSIGN_OR_RETURN(const CertificatePair own, authority.Write());
  NRAM_RETURN_IF_ERROR(WriteFileAtomically(directory + "/ca.pem", own.certificate));
  const mode_t former = umask(0077);
  absl::Status status;
  for (const bool serves : {true, false}) {
    const std::string name = serves ? "server" : "client";
    const auto pair = authority.Issue({.name = name, .serves = serves, .hosts = {"127.0.0.1"}, .uri = "", .days = 1});
    status.Update(pair.status());
    if (!pair.ok()) continue;
    status.Update(WriteFileAtomically(absl::StrCat(directory, "/", name, ".pem"), pair->certificate));
    status.Update(WriteFileAtomically(absl::StrCat(directory, "/", name, ".key"), pair->key));
  }
  umask(former);
  return status;
}

absl::Status RunTls(const BenchFlags& options, const std::string& directory) {
  const std::string plain_dir = absl::StrCat(directory, "/plain");
  const std::string tls_dir = absl::StrCat(directory, "/tls");
  const auto cleanup = absl::MakeCleanup([&] {
    (void)StopLocalPool(plain_dir, 2'000);
    (void)StopLocalPool(tls_dir, 2'000);
  });
  NRAM_RETURN_IF_ERROR(MakeCertificates(directory + "/certificates"));
  PinToProcessor(0);
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> plain, OpenLocal(plain_dir, 0));
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> tls, OpenLocal(tls_dir, 0, directory + "/certificates"));
  PoolBenchOptions bench;
  bench.rounds = options.quick ? 1 : static_cast<int>(options.rounds);
  bench.quick = options.quick;
  bench.only = options.only;
  nlohmann::json rows = nlohmann::json::array();
  if (!options.json) {
    printf(
        "TCP loopback; client on processor 0, servers on the last; medians of %d rounds, alternating.\n"
        "Sum: the plain pool plus AES-256-GCM alone (%.1f GB/s here over records, %.1f over pages).\n"
        "Latency is compared with plain.\n"
        "%-46s %10s %10s %-5s %6s %14s %7s %17s\n",
        bench.rounds, MeasureCipher() / 1e9, MeasurePageCipher().value_or(0) / 1e9, "", "plain, sum", "so", "", "ratio",
        "[min max]", "mark", "plain, ratio");
  }
  NRAM_RETURN_IF_ERROR(RunTlsBench(plain.get(), tls.get(), bench, [&](const BenchRow& row) {
    if (!options.json) PrintRow(row);
    rows.push_back(ToJson(row));
  }));
  if (rows.empty()) return NoSuchRow(options.only);
  if (options.json) PrintJson(rows);
  return absl::OkStatus();
}

absl::Status RunLoad(const BenchFlags& options, const std::string& directory) {
  LocalPoolOptions local;
  local.directory = absl::StrCat(directory, "/load");
  local.servers = 1;
  local.server_flags = {"--donate=1GiB"};
  local.die_with_parent = true;
  local.tcp = true;
  const auto cleanup = absl::MakeCleanup([&] { (void)StopLocalPool(local.directory, 2'000); });
  NRAM_ASSIGN_OR_RETURN(const std::vector<LocalServer> servers, StartLocalPool(local));
  PoolOptions pool;
  NRAM_ASSIGN_OR_RETURN(pool.servers, ParsePoolSpec("@" + local.directory + "/pool"));
  pool.unix_sockets = false;
  const LoadBenchOptions load{static_cast<int>(options.clients), static_cast<int>(options.seconds), servers[0].pid};
  NRAM_ASSIGN_OR_RETURN(const LoadBenchResult result, RunLoadBench(pool, load));
  if (options.json) {
    const nlohmann::json out = {{"operations", result.operations},
                                {"bytes", result.bytes},
                                {"errors", result.errors},
                                {"wrong", result.wrong_bytes},
                                {"idle_p50_us", result.idle_p50_us},
                                {"idle_p99_us", result.idle_p99_us},
                                {"loaded_p50_us", result.loaded_p50_us},
                                {"loaded_p99_us", result.loaded_p99_us},
                                {"resident_bytes", result.resident_bytes}};
    PrintJson(out);
  } else {
    printf("%d connections, 512 bytes to 1 MiB each way, %lld s: %llu operations, %s, %llu errors, %llu wrong\n",
           2 * load.clients + 2, static_cast<long long>(options.seconds),
           static_cast<unsigned long long>(result.operations), FormatByteSize(result.bytes).c_str(),
           static_cast<unsigned long long>(result.errors), static_cast<unsigned long long>(result.wrong_bytes));
    printf("urgent 4 KiB read: p50 %.0f us, p99 %.0f us alone; p50 %.0f us, p99 %.0f us under load\n",
           result.idle_p50_us, result.idle_p99_us, result.loaded_p50_us, result.loaded_p99_us);
    printf("server's memory over the time:");
    for (const uint64_t bytes : result.resident_bytes) printf(" %s", FormatByteSize(bytes).c_str());
    printf("\n");
  }
  if (result.errors > 0) return absl::InternalError(absl::StrCat("operations failed: ", result.first_error));
  if (result.wrong_bytes > 0) return absl::DataLossError("wrong bytes were read");
  return absl::OkStatus();
}

// Calls `run` in a process of its own and returns the exit code. Signals are passed on.
int RunApart(absl::FunctionRef<int()> run) {
  sigset_t awaited, before;
  sigemptyset(&awaited);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&awaited, number);
  pthread_sigmask(SIG_BLOCK, &awaited, &before);
  std::cout << std::flush;
  fflush(stdout);
  SubprocessOptions options;
  options.death_signal = SIGTERM;
  absl::StatusOr<Subprocess> child = Subprocess::StartFunction(
      [&] {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return FinishOutput(run(), "nram bench");
      },
      options);
  std::optional<Subprocess::Ended> ended;
  while (child.ok() && !(ended = child->WaitUntil(0)).has_value()) {
    const int number = sigwaitinfo(&awaited, nullptr);
    if (number > 0 && number != SIGCHLD) child->Signal(number);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!child.ok()) return ToExitCode(child.status(), "nram bench");
  return ended->signal == 0 ? ended->code : 128 + ended->signal;
}

// Calls `run` with a directory that is removed afterwards, however the run ends; its servers end with it.
int RunWithServers(const BenchFlags& options, absl::Status (*run)(const BenchFlags&, const std::string&)) {
  char directory[] = "/tmp/nram-bench-XXXXXX";
  if (mkdtemp(directory) == nullptr) {
    return ToExitCode(ErrnoStatus(errno, "create a directory in /tmp"), "nram bench");
  }
  const int code = RunApart([&] { return ToExitCode(run(options, directory), "nram bench"); });
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return code;
}

// Runs a script, which does the other kinds of bench.
int RunScript(const std::string& script, const std::vector<std::string>& args) {
  const auto program = FindProgram(script, "tools/bench", "NRAM_BENCH");
  if (!program.ok()) return ToExitCode(program.status(), "nram bench");
  char self[PATH_MAX] = "";
  (void)!readlink("/proc/self/exe", self, sizeof self - 1);
  setenv("NRAM_SELF", self, 1);
  std::vector<std::string> words = {*program};
  words.insert(words.end(), args.begin(), args.end());
  const Argv argv(words);
  return RunApart([&] {
    execv(program->c_str(), argv.get());
    fprintf(stderr, "nram bench: cannot run %s: %s (it needs Debian's python3)\n", program->c_str(), strerror(errno));
    return 1;
  });
}

int Run(BenchFlags& flags, const Invocation& given) {
  if (given.words.size() == 1 && given.words[0] == "pool") return RunWithServers(flags, &RunPool);
  if (given.words.size() == 1 && given.words[0] == "load") return RunWithServers(flags, &RunLoad);
  if (given.words.size() == 1 && given.words[0] == "tls") return RunWithServers(flags, &RunTls);
  return ToExitCode(absl::InvalidArgumentError("expected nram bench pool, load or tls"), "nram bench");
}

}  // namespace

Command BenchCommand() {
  Command command = DefineCommand<BenchFlags>({"bench", "compare it with disk, tmpfs and a bare socket",
                                               R"(usage: nram bench [DIR...] [flags]            see `nram bench --help`
       nram bench report < RESULTS > PAGE    turns the results of --json into a page with
                                             plots, or with --picture into one picture
       nram bench pool|load|tls [flags]

pool: starts its own memory servers on this machine and measures the pool's reads and writes
over TCP loopback. Each row alternates with the same bytes over a bare socket, and the ratio is
printed. Client and server get a processor each, as on two machines. Takes about three minutes
and 1.3 GiB of memory; nothing else should run meanwhile.

load: many clients write, read and verify at once. One client measures urgent reads with and
without them, and the server's memory is recorded.

tls: as pool, but compares reads and writes with certificates, with sealed pages and with both
to those without.

)",
                                               R"(
example: nram bench pool --only='4 KiB'
)"},
                                              Words::kAny, &Run);
  // Other words, and their flags, are for the scripts.
  command.run = [run = command.run](const std::vector<std::string>& args) {
    if (!args.empty() && args[0] == "report") return RunScript("nram-bench-report", {args.begin() + 1, args.end()});
    if (args.empty() || (args[0] != "pool" && args[0] != "load" && args[0] != "tls"))
      return RunScript("nram-bench-dirs", args);
    return run(args);
  };
  return command;
}

}  // namespace nram
