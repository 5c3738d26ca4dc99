// nram swapon, swapoff, swaps: swap areas on the pool.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host/host_memory.h"
#include "base/metrics/metrics_address.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/placement.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"
#include "fsd/options.h"
#include "nlohmann/json.hpp"
#include "swap/swap_area.h"
#include "swap/swap_room.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

struct OnFlags {
  SwapOptions swap;
  int64_t copies = 0;  // 0: chosen by the pool's hosts
  int64_t priority = -1;
  std::string pool;
  std::string backend = "pool";
  int64_t io_timeout_ms = 10'000;
  std::string metrics;
  bool unprotected = false;
  bool force = false;
  std::optional<bool> seal;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->String("name", &swap.name, {"NAME", "letters, digits, - and _ (default swap)"});
    parser->Integer("copies", 1, kReplicasMax, &copies,
                    {"N",
                     "1..4 copies of each page, on servers of different hosts: pages survive the\n"
                     "loss of N-1 of these hosts, and the area takes N times SIZE of the pool\n"
                     "(default: 2 if servers on two or more hosts answer, else 1)"});
    parser->Switch("seal", &seal,
                   {"",
                    "seal pages: servers get only ciphertext, and a changed or replayed page is\n"
                    "an error (default: $NRAM_SEAL, else yes for all servers; see\n"
                    "docs/security.md)"});
    parser->Integer("priority", 0, 32767, &priority,
                    {"N",
                     "0..32767; the kernel fills areas of higher priority first (default: below\n"
                     "all others). With a priority above a disk's, the disk is the reserve"});
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
    parser->Integer("io-timeout-ms", 100, 30'000, &io_timeout_ms,
                    {"N",
                     "100..30000; if a server does not answer within N ms, the operation fails\n"
                     "with an I/O error (default 10000). Leases live for twice that time"});
    parser->String("metrics", &metrics,
                   {"HOST:PORT",
                    "serve Prometheus metrics of the area's daemon there, at /metrics, as in\n"
                    "127.0.0.1:9437 (docs/watching.md; default: none)"});
    parser->Switch("unprotected", &unprotected,
                   {"",
                    "do without CAP_SYS_RESOURCE and CAP_SYS_NICE (some containers lack them):\n"
                    "only for programs in a limited memory cgroup. Otherwise the machine may\n"
                    "hang: the kernel may wait for the area's daemon to write pages out to\n"
                    "itself"});
    parser->Switch("force", &force,
                   {"",
                    "swap to servers on this machine too, for tests: that frees none of its RAM,\n"
                    "and a server that is swapped out to itself loses all that it stores"});
    parser->String("backend", &backend,
                   {"WHAT", "pool (default); memory: this machine's own RAM, for comparison", "pool memory"});
    parser->Switch("json", &json, {"", "print the area in JSON"});
  }
};

// The servers of the pool that answered when they were asked.
struct PoolHosts {
  std::map<std::string, uint64_t> free_bytes;  // of those that take new pages, by the id of their host
  std::vector<std::string> own;                // the addresses of servers on this host
  std::vector<std::string> others;             // of the pool's other servers, those that do not answer included
};

PoolHosts AskHosts(const std::string& pool) {
  PoolHosts hosts;
  const auto members = OpenMembers(pool);
  if (!members.ok()) return hosts;
  const auto answers = AskStatistics(*members);
  for (size_t i = 0; i < answers.size(); ++i) {
    const bool own = answers[i].ok() && answers[i]->host.boot_id == BootId();
    (own ? hosts.own : hosts.others).push_back((*members)[i].endpoint.ToString());
    if (!answers[i].ok()) continue;
    const std::string& host = answers[i]->host.counts_as();
    if (!answers[i]->capacity.draining) hosts.free_bytes[host] += answers[i]->capacity.free_bytes;
  }
  return hosts;
}

// FAILED_PRECONDITION: servers of the pool are on this host. The kernel may swap such a server out to the area that it
// serves; then it waits for itself until the deadline, gets SIGBUS, and all that it stores is lost.
absl::Status CheckOwnServers(const PoolHosts& hosts, bool force) {
  if (hosts.own.empty() || force) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      absl::StrJoin(hosts.own, ", "), hosts.own.size() == 1 ? " runs" : " run",
      " on this machine: swapping there frees none of its RAM, and a server that is swapped out to itself loses all "
      "that it stores. ",
      hosts.others.empty() ? "Use servers of other machines"
                           : absl::StrCat("Use the others: --pool=", absl::StrJoin(hosts.others, ",")),
      ", or, for a test, --force"));
}

// Chooses the number of copies if none is `asked` for (0). RESOURCE_EXHAUSTED: the hosts lack room for the copies.
absl::Status ChooseCopies(const PoolHosts& hosts, int64_t asked, SwapOptions* swap) {
  swap->copies = asked > 0 ? static_cast<int>(asked) : hosts.free_bytes.size() > 1 ? 2 : 1;
  // Servers that do not answer may be on further hosts: then the area's daemon decides.
  const auto copies = static_cast<size_t>(swap->copies);
  if (copies == 1 || copies > hosts.free_bytes.size()) return absl::OkStatus();
  std::vector<uint64_t> free_bytes;
  for (const auto& [host, bytes] : hosts.free_bytes) free_bytes.push_back(bytes);
  return CheckRoomForArea(free_bytes, swap->copies, swap->size_bytes);
}

nlohmann::json ToJson(const SwapArea& area) {
  return {{"name", area.name},
          {"device", area.device},
          {"pool", area.pool},
          {"copies", area.copies},
          {"size_bytes", area.size_bytes},
          {"used_bytes", area.used_bytes},
          {"collected_bytes", area.discarded_bytes},
          {"priority", area.priority},
          {"active", area.active},
          {"daemon_pid", area.daemon_pid},
          {"daemon_alive", area.daemon_alive}};
}

int RunOn(OnFlags& flags, const Invocation& given) {
  if (given.words.size() != 1) {
    return ToExitCode(absl::InvalidArgumentError("how large? For example: nram swapon 8G"), "nram swapon");
  }
  const auto bytes = ParseByteSize(given.words[0]);
  if (!bytes.ok()) return ToExitCode(bytes.status(), "nram swapon");
  // A size below a page is refused as it was given.
  flags.swap.size_bytes = *bytes < kPageBytes ? *bytes : *bytes / kPageBytes * kPageBytes;
  flags.swap.priority = static_cast<int>(flags.priority);
  flags.swap.io_timeout_ms = flags.io_timeout_ms;
  if (const char* silence = getenv("NRAM_SWAP_SILENCE_MS_FOR_TEST")) {
    (void)absl::SimpleAtoi(silence, &flags.swap.silence_min_ms);
  }
  flags.swap.fsd_flags = {"--backend=" + flags.backend};
  const auto seal = ChooseSeal(flags.seal);
  if (!seal.ok()) return ToExitCode(seal.status(), "nram swapon");
  if (flags.backend == "pool") flags.swap.fsd_flags.push_back(*seal == Seal::kNo ? "--no-seal" : "--seal");
  if (flags.unprotected) flags.swap.fsd_flags.push_back("--unprotected");
  if (!flags.metrics.empty()) {
    const absl::Status address = Annotate(ParseMetricsAddress(flags.metrics).status(), "--metrics");
    if (!address.ok()) return ToExitCode(address, "nram swapon");
    flags.swap.fsd_flags.push_back("--metrics=" + flags.metrics);
  }
  if (flags.backend == "pool") {
    const auto pool = ChoosePoolSpec(flags.pool);
    if (!pool.ok()) return ToExitCode(pool.status(), "nram swapon");
    // The servers by name: `nram swapoff` must ask these, whatever a host file says by then.
    const auto servers = ParsePoolSpec(*pool);
    if (!servers.ok()) return ToExitCode(servers.status(), "nram swapon");
    flags.swap.pool =
        absl::StrJoin(*servers, ",", [](std::string* out, const Endpoint& server) { out->append(server.ToString()); });
  } else if (!flags.pool.empty()) {
    flags.swap.fsd_flags.push_back("--pool=" + flags.pool);  // refused
  }
  if (const absl::Status status = CheckSwapOptions(flags.swap); !status.ok()) return ToExitCode(status, "nram swapon");
  const PoolHosts hosts = flags.backend == "pool" ? AskHosts(flags.swap.pool) : PoolHosts();
  if (const absl::Status status = CheckOwnServers(hosts, flags.force); !status.ok()) {
    return ToExitCode(status, "nram swapon");
  }
  if (const absl::Status status = ChooseCopies(hosts, flags.copies, &flags.swap); !status.ok()) {
    return ToExitCode(status, "nram swapon");
  }
  const auto area = AddSwap(flags.swap);
  if (!area.ok()) return ToExitCode(area.status(), "nram swapon");
  if (flags.json) {
    PrintJson(ToJson(*area));
  } else {
    printf(
        "%s of swap on %s, priority %d. `nram doctor` checks this machine's setup for it,\n"
        "`nram swapoff %s` removes it.\n",
        FormatByteSize(area->size_bytes).c_str(), area->device.c_str(), area->priority, area->name.c_str());
    if (flags.copies == 0 && area->copies == 2) {
      printf("Pages have two copies, on different hosts; --copies=1 takes half of the room.\n");
    }
  }
  return 0;
}

struct OffFlags {
  bool all = false;
  bool force = false;

  void Register(ArgParser* parser) {
    RegisterTlsDir(parser);
    parser->Switch("all", &all, {"", "all areas"});
    parser->Switch("force", &force,
                   {"",
                    "also if RAM seems too small (the kernel may then kill programs), if a\n"
                    "server does not answer, or if the area's daemon has died. Pages that cannot\n"
                    "be read are then lost: programs that touch them get SIGBUS. Also removes\n"
                    "the remains of an area after a crash"});
  }
};

// If a page cannot be had while the kernel takes it back, it is lost for good, and the kernel does not say so.
absl::Status CheckServersOf(const std::string& name) {
  const std::vector<SwapArea> areas = FindSwaps();
  const auto area =
      std::find_if(areas.begin(), areas.end(), [&](const SwapArea& candidate) { return candidate.name == name; });
  if (area == areas.end() || !area->active || area->used_bytes == 0 || area->pool.empty()) return absl::OkStatus();
  NRAM_ASSIGN_OR_RETURN(const std::vector<PoolMember> members, OpenMembers(area->pool, area->tls_dir));
  const auto answers = AskStatistics(members);
  std::vector<std::string> away;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) away.push_back(members[i].endpoint.ToString());
  }
  if (away.empty()) return absl::OkStatus();
  // Other copies may be behind since an earlier failure: no count shows that.
  const char* const what = area->copies == 1 ? "the pages swapped out there" : "pages whose only good copy is there";
  return absl::UnavailableError(
      absl::StrCat(name, ": ", absl::StrJoin(away, ", "), away.size() == 1 ? " does" : " do", " not answer: ", what,
                   " would be lost for good, and programs that touch them get SIGBUS. Wait for the server, or use ",
                   "--force if it is gone for good"));
}

int RunOff(OffFlags& flags, const Invocation& given) {
  std::vector<std::string> words = given.words;
  int code = 0;
  if (flags.all) {
    for (const SwapArea& area : FindSwaps()) words.push_back(area.name);
  } else if (words.empty()) {
    const std::vector<SwapArea> areas = FindSwaps();
    if (areas.empty()) {
      return ToExitCode(absl::NotFoundError("there is no swap area"), "nram swapoff");
    }
    if (areas.size() != 1) {
      return ToExitCode(absl::InvalidArgumentError("which? `nram swaps` lists them; or use --all"), "nram swapoff");
    }
    words.push_back(areas[0].name);
  }
  const auto on_progress = [](uint64_t left) {
    fprintf(stderr, "nram swapoff: %s still swapped out\n", FormatByteSize(left).c_str());
  };
  for (const std::string& name : words) {
    absl::Status status = flags.force ? absl::OkStatus() : CheckServersOf(name);
    if (status.ok()) status = RemoveSwap(name, flags.force, on_progress);
    code = std::max(code, ToExitCode(status, "nram swapoff"));
  }
  return code;
}

// The bytes that the pool of each area holds for it now; with `pool`, that pool. Nothing: a server does not answer, or
// there is none. All servers of all areas are asked at once.
std::vector<std::optional<uint64_t>> AskStored(const std::vector<SwapArea>& areas, const std::string& pool) {
  std::vector<std::optional<uint64_t>> stored(areas.size());
  std::vector<PoolMember> members;
  std::vector<size_t> area_of;  // each member
  for (size_t i = 0; i < areas.size(); ++i) {
    if (pool.empty() && areas[i].pool.empty()) continue;
    auto found = OpenMembers(pool.empty() ? areas[i].pool : pool, pool.empty() ? areas[i].tls_dir : "");
    if (!found.ok()) continue;
    stored[i] = 0;
    area_of.resize(area_of.size() + found->size(), i);
    absl::c_move(*found, std::back_inserter(members));
  }
  const auto answers = AskRegions(members, {});
  for (size_t at = 0; at < answers.size(); ++at) {
    const SwapArea& area = areas[area_of[at]];
    std::optional<uint64_t>& bytes = stored[area_of[at]];
    if (!answers[at].ok()) bytes.reset();
    if (!bytes.has_value()) continue;
    const std::string client_name = ClientName("swap", area.directory + "/mount", area.daemon_pid);
    for (const RegionInfo& region : *answers[at]) {
      if (region.owner_name == client_name) *bytes += region.stored_bytes;
    }
  }
  return stored;
}

struct ListFlags {
  std::string pool;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, {"POOL", "host:port,... or a host file (default: each area's own)"});
    RegisterTlsDir(parser);
    parser->Switch("json", &json, {"", "print JSON"});
  }
};

// The areas of these names, all if there are none. Adds to *missing the names that no area has.
std::vector<SwapArea> FindNamed(const std::vector<std::string>& names, std::vector<std::string>* missing) {
  const std::vector<SwapArea> all = FindSwaps();
  if (names.empty()) return all;
  std::vector<SwapArea> areas;
  for (const std::string& name : names) {
    const auto area = std::find_if(all.begin(), all.end(), [&](const SwapArea& one) { return one.name == name; });
    if (area == all.end()) {
      missing->push_back(name);
    } else {
      areas.push_back(*area);
    }
  }
  return areas;
}

const char* StateOf(const SwapArea& area) {
  return area.active && area.daemon_alive ? "on"
         : area.busy                      ? "being set up or removed"
         : !area.daemon_alive             ? "its daemon is gone: nram swapoff --force"
                                          : "left by a crash, or swapped off by hand: nram swapoff";
}

int RunSwaps(ListFlags& flags, const Invocation& given) {
  const auto& [pool, json] = flags;
  std::vector<std::string> missing;
  const std::vector<SwapArea> areas = FindNamed(given.words, &missing);
  nlohmann::json out = nlohmann::json::array();
  if (!json && areas.empty() && missing.empty()) {
    printf(geteuid() == 0 ? "No swap areas. `nram swapon SIZE` makes one.\n"
                          : "No swap areas of this user. Swap needs root: try sudo.\n");
  }
  if (!json && !areas.empty()) {
    printf("%-16s %-12s %10s %10s %10s %10s %8s  %s\n", "NAME", "DEVICE", "SIZE", "USED", "IN POOL", "COLLECTED",
           "PRIORITY", "STATE");
  }
  const std::vector<std::optional<uint64_t>> stored = AskStored(areas, pool);
  for (size_t i = 0; i < areas.size(); ++i) {
    const SwapArea& area = areas[i];
    if (json) {
      out.push_back(ToJson(area));
      if (stored[i]) out.back()["stored_bytes"] = *stored[i];
      continue;
    }
    printf("%-16s %-12s %10s %10s %10s %10s %8d  %s\n", area.name.c_str(), area.device.c_str(),
           FormatByteSize(area.size_bytes).c_str(), FormatByteSize(area.used_bytes).c_str(),
           stored[i] ? FormatByteSize(*stored[i]).c_str() : "?", FormatByteSize(area.discarded_bytes).c_str(),
           area.priority, StateOf(area));
  }
  if (json) PrintJson(out);
  int code = 0;
  for (const std::string& name : missing) {
    code = ToExitCode(absl::NotFoundError("there is no swap area named " + name), "nram swaps");
  }
  const bool all_on = absl::c_all_of(areas, [](const SwapArea& area) { return area.active; });
  return !given.words.empty() && !all_on ? 1 : code;
}

}  // namespace

Command SwaponCommand() {
  return DefineCommand<OnFlags>({"swapon", "swap to the pool", R"(usage: nram swapon SIZE [flags]

Gives this machine a swap area of SIZE in the pool's RAM. All of SIZE is reserved there now, once
for each copy, so that a swapped-out page is never refused; `nram df` shows it as reserved. Slots
that the kernel frees are discarded, and the servers free their memory within moments. If this
machine dies, is suspended or is cut off for longer than its leases live, the servers free the
whole area. If all hosts with a copy of a page are lost, programs that touch that page get SIGBUS;
the machine continues. Pages are sealed by default (--seal): servers and the network see only
ciphertext.

A separate process, locked in memory, serves the area. Run `nram doctor` afterwards. Needs root.

)",
                                 R"(
example: nram swapon 8G --copies=2 --priority=10 && nram doctor
)",
                                 23},
                                Words::kAny, &RunOn);
}

Command SwapoffCommand() {
  return DefineCommand<OffFlags>({"swapoff", "remove swap areas on the pool", R"(usage: nram swapoff [NAME...] [flags]

Moves all swapped-out pages back to RAM and removes the area. This may take long. The pages need
room in RAM or in other swap, and in the memory cgroups of their programs. Without NAME, removes
the only area.

)",
                                  R"(
example: nram swapoff swap
)"},
                                 Words::kAny, &RunOff);
}

Command SwapsCommand() {
  return DefineCommand<ListFlags>({"swaps", "list swap areas", R"(usage: nram swaps [NAME...] [flags]

Lists the swap areas of `nram swapon`, or those named: the bytes that the kernel has swapped out to
each (USED), the bytes that the pool stores for it now, in all copies (IN POOL), and the bytes that
the kernel has freed and the servers have collected so far, counted once (COLLECTED).

)",
                                   R"(
With NAMEs the exit code is 1 if the kernel does not swap to all of them.

example: nram swaps
)"},
                                  Words::kAny, &RunSwaps);
}

}  // namespace nram
