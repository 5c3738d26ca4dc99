// nram up, nram down: a pool on this machine.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/host/host_memory.h"
#include "base/signals.h"
#include "base/state_dir.h"
#include "base/units.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"
#include "swap/swap_area.h"
#include "tools/nram/command.h"
#include "tools/nram/local_pool.h"
#include "tools/nram/mounts.h"

namespace nram {
namespace {

absl::Status ParseDonate(absl::string_view value, std::string* donate) {
  *donate = std::string(value);
  if (value == "auto") return absl::OkStatus();
  const auto bytes = ParseByteSize(value);
  if (!bytes.ok()) return bytes.status();
  if (*bytes < 64 * kMiB) {
    return absl::InvalidArgumentError(absl::StrCat("\"", value, "\": expected 64M or more, or auto"));
  }
  return absl::OkStatus();
}

absl::Status ParseGiveBack(absl::string_view value, std::string* give_back) {
  *give_back = std::string(value);
  if (value == "off" || value == "idle" || value == "pressure") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not accepted: expected off, idle or pressure"));
}

struct UpFlags {
  int64_t servers = 2;
  std::string donate = "1GiB";
  std::string give_back;
  std::string spin;
  bool pretend_hosts = false;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->Integer("servers", 1, 64, &servers, {"N", "1..64 memory servers (default 2)"});
    parser->Custom("donate", [this](absl::string_view value) { return ParseDonate(value, &donate); },
                   {"SIZE|auto",
                    "ceiling on each server's memory, 64M or more (default 1GiB); auto: see\n"
                    "nram-memserver --help",
                    "auto"});
    parser->Custom("give-back", [this](absl::string_view value) { return ParseGiveBack(value, &give_back); },
                   {"WHAT",
                    "off, idle or pressure: memory that the servers give back when this machine\n"
                    "is short of memory (default: pressure with --donate=auto, else off; see\n"
                    "nram-memserver --help)",
                    "off idle pressure"});
    parser->String("spin", &spin,
                   {"WHEN",
                    "auto, off, on or microseconds: time that servers poll before they sleep\n"
                    "(default auto)",
                    "auto off on"});
    parser->Switch("pretend-hosts", &pretend_hosts,
                   {"", "each server counts as a separate machine, to try copies on one machine"});
    parser->Switch("json", &json, {"", "print the servers in JSON"});
  }
};

std::atomic<bool> interrupted{false};

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  const sigset_t ending = EndingSignals();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&ending, number) == 1) sigaction(number, &action, nullptr);
  }
}

// Each server refuses more than the machine's memory, and does not know of the others.
absl::Status CheckDonations(const UpFlags& flags) {
  const auto each = ParseByteSize(flags.donate);  // an error: auto
  const auto memory = ReadHostMemory();
  if (!each.ok() || !memory.ok()) return absl::OkStatus();
  const auto servers = static_cast<uint64_t>(flags.servers);
  if (servers == 1 || *each <= memory->total_bytes / servers) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--servers=", servers, " with --donate=", flags.donate, " is more than this machine's memory, ",
                   FormatByteSize(memory->total_bytes), ": lower one of them, or use --donate=auto with one server"));
}

int RunUp(UpFlags& options, const Invocation&) {
  if (const absl::Status status = CheckDonations(options); !status.ok()) return ToExitCode(status, "nram up");
  LocalPoolOptions pool;
  pool.directory = LocalStateDir();
  pool.servers = static_cast<int>(options.servers);
  pool.server_flags = {absl::StrCat("--donate=", options.donate)};
  pool.pretend_hosts = options.pretend_hosts;
  if (!options.give_back.empty()) pool.server_flags.push_back("--give-back=" + options.give_back);
  if (!options.spin.empty()) pool.server_flags.push_back(absl::StrCat("--spin=", options.spin));
  CatchSignals();
  pool.interrupted = &interrupted;
  const auto servers = StartLocalPool(pool);
  if (!servers.ok()) {
    const int code = ToExitCode(servers.status(), "nram up");
    return absl::IsCancelled(servers.status()) ? 128 + SIGINT : code;
  }
  const std::string host_file = pool.directory + "/pool";
  if (options.json) {
    nlohmann::json out = {{"pool", host_file}, {"servers", nlohmann::json::array()}};
    for (const LocalServer& server : *servers) {
      out["servers"].push_back({{"pid", server.pid}, {"address", server.Address()}});
    }
    PrintJson(out);
    return 0;
  }
  for (const LocalServer& server : *servers) {
    printf("memory server %d: %s, pid %d, donates %s\n", server.number, server.Address().c_str(), server.pid,
           options.donate.c_str());
  }
  printf(
      "The pool is up. Commands find it by themselves, programs through NRAM_POOL=%s\n"
      "Show it with `nram df`, end it with `nram down`.\n",
      host_file.c_str());
  return 0;
}

struct DownFlags {
  bool force = false;

  void Register(ArgParser* parser) {
    parser->Switch("force", &force,
                   {"",
                    "also if mounts or swap areas use the pool: their data is lost, and programs\n"
                    "that touch swapped-out pages get SIGBUS"});
  }
};

// Whether the pool that `spec` names has one of these servers.
bool Names(const std::string& spec, const std::set<std::string>& servers) {
  // Those ask the network, and no local pool is there.
  if (absl::StartsWith(spec, "dns:") || absl::StartsWith(spec, "etcd:")) return false;
  const auto named = ParsePoolSpec(spec);
  return named.ok() && std::any_of(named->begin(), named->end(),
                                   [&](const Endpoint& server) { return servers.contains(server.ToString()); });
}

// The mounts and swap areas on these servers, each with the command that ends it.
std::vector<std::string> DoorsOn(const std::vector<LocalServer>& servers) {
  std::set<std::string> addresses;
  for (const LocalServer& server : servers) addresses.insert(server.Address());
  std::set<std::string> doors;
  // An area's name by the mount of its daemon, where the state directory of its owner, root, cannot be seen.
  const auto name_of_area = [](absl::string_view directory) -> std::string {
    const std::vector<absl::string_view> parts = absl::StrSplit(directory, '/');
    const size_t n = parts.size();
    return n > 3 && parts[n - 3] == "swap" && parts[n - 1] == "mount" ? std::string(parts[n - 2]) : "";
  };
  for (const MountPoint& mount : FindMounts("self")) {
    if (!Names(mount.source, addresses)) continue;
    const std::string area = name_of_area(mount.directory);
    doors.insert(area.empty() ? "nram umount " + mount.directory : "nram swapoff " + area);
  }
  for (const SwapArea& area : FindSwaps()) {
    if (!area.pool.empty() && Names(area.pool, addresses)) doors.insert(absl::StrCat("nram swapoff ", area.name));
  }
  return {doors.begin(), doors.end()};
}

int RunDown(DownFlags& flags, const Invocation&) {
  const std::string directory = LocalStateDir();
  if (!flags.force && CheckStateDir(directory).ok()) {
    const std::vector<LocalServer> running = FindLocalPool(directory);
    const std::vector<std::string> doors = running.empty() ? std::vector<std::string>() : DoorsOn(running);
    if (!doors.empty()) {
      return ToExitCode(absl::FailedPreconditionError(
                            absl::StrCat("mounts or swap areas use this pool, and their data would be lost. "
                                         "End them first: ",
                                         absl::StrJoin(doors, "; "), ". Or use --force")),
                        "nram down");
    }
  }
  const auto ended = StopLocalPool(directory, 5'000);
  if (!ended.ok()) return ToExitCode(ended.status(), "nram down");
  if (*ended == 0) {
    printf("No local pool was running.\n");
  } else {
    printf("Ended %d memory server%s; the data stored there is lost.\n", *ended, *ended == 1 ? "" : "s");
  }
  return 0;
}

}  // namespace

Command UpCommand() {
  return DefineCommand<UpFlags>({"up", "start memory servers on this machine", R"(usage: nram up [flags]

Starts memory servers on this machine and makes them the local pool, which all other
commands then use. Use it to try nram, or to lend this machine's idle memory to its own
programs. The servers listen only on Unix sockets and refuse other users except root. On a
cluster, run nram-memserver on each node instead and list the servers in a host file.

)",
                                 R"(
The pool's files (host file, process ids, logs) are in $NRAM_STATE_DIR, else in /run/nram for
root and in $XDG_RUNTIME_DIR/nram or /tmp/nram-UID for other users. The directory must belong to
this user.

example: nram up --servers=4 --donate=2GiB
)"},
                                Words::kNone, &RunUp);
}

Command DownCommand() {
  return DefineCommand<DownFlags>({"down", "end the servers that `nram up` started", R"(usage: nram down [flags]

Ends the local pool: every server that `nram up` started, and its files. The data stored in
the pool is lost, so the command refuses while a mount or a swap area uses the pool, and names
them. Does nothing without a local pool. Servers that do not end within 5 seconds are killed.
Logs of mounts remain in the state directory.

)",
                                   R"(
example: nram umount /mnt/nram && nram down
)"},
                                  Words::kNone, &RunDown);
}

}  // namespace nram
