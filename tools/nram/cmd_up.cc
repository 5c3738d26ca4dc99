// nram up, nram down: a pool on this machine.

#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/state_dir.h"
#include "base/units.h"
#include "nlohmann/json.hpp"
#include "tools/nram/command.h"
#include "tools/nram/local_pool.h"

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
                    "nram-memserver --help"});
    parser->Custom("give-back", [this](absl::string_view value) { return ParseGiveBack(value, &give_back); },
                   {"WHAT",
                    "off, idle or pressure: memory that the servers give back when this machine\n"
                    "is short of memory (default: pressure with --donate=auto, else off; see\n"
                    "nram-memserver --help)"});
    parser->String("spin", &spin,
                   {"WHEN",
                    "auto, off, on or microseconds: time that servers poll before they sleep\n"
                    "(default auto)"});
    parser->Switch("pretend-hosts", &pretend_hosts,
                   {"", "each server counts as a separate machine, to try copies on one machine"});
    parser->Switch("json", &json, {"", "print the servers in JSON"});
  }
};

int RunUp(UpFlags& options, const Invocation&) {
  LocalPoolOptions pool;
  pool.directory = LocalStateDir();
  pool.servers = static_cast<int>(options.servers);
  pool.server_flags = {absl::StrCat("--donate=", options.donate)};
  pool.pretend_hosts = options.pretend_hosts;
  if (!options.give_back.empty()) pool.server_flags.push_back("--give-back=" + options.give_back);
  if (!options.spin.empty()) pool.server_flags.push_back(absl::StrCat("--spin=", options.spin));
  const auto servers = StartLocalPool(pool);
  if (!servers.ok()) return ToExitCode(servers.status(), "nram up");
  const std::string host_file = pool.directory + "/pool";
  if (options.json) {
    nlohmann::json out = {{"pool", host_file}, {"servers", nlohmann::json::array()}};
    for (const LocalServer& server : *servers) {
      out["servers"].push_back({{"pid", server.pid}, {"address", server.Address()}});
    }
    std::cout << out.dump(2) << std::endl;
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

int RunDown(NoFlags&, const Invocation&) {
  const auto ended = StopLocalPool(LocalStateDir(), 5'000);
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
  return DefineCommand<NoFlags>({"down", "end the servers that `nram up` started", R"(usage: nram down

Ends the local pool: every server that `nram up` started, and its files. The data stored in
the pool is lost, also that of mounts and swap areas that use it. Does nothing without a local
pool. Servers that do not end within 5 seconds are killed.

)",
                                 R"(
example: nram down
)"},
                                Words::kNone, &RunDown);
}

}  // namespace nram
