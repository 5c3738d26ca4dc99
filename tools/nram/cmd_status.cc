// nram status, nram regions: counters of servers, and their regions.

#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "base/utf8.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"
#include "tools/nram/command.h"
#include "tools/nram/copies_report.h"
#include "tools/nram/members_report.h"

namespace nram {
namespace {

struct StatusFlags {
  std::string pool;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
    parser->Switch("json", &json, {"", "print JSON"});
  }
};

// The names that say where copies may go, if the server has any.
void ShowPlace(const ServerHost& host, bool json, nlohmann::json* one) {
  for (const auto& [field, name] :
       {std::pair("domain", host.domain), std::pair("pretended_host", host.pretended_host)}) {
    if (name.empty()) continue;
    (*one)[field] = name;
    if (!json) printf("  %-30s %s\n", field, name.c_str());
  }
}

// The bytes that the server is asked for, and how far it is.
void ShowGivingBack(const ServerStatistics& statistics, bool json, nlohmann::json* one) {
  const ServerCapacity& capacity = statistics.capacity;
  (*one)["pressed"] = capacity.pressed;
  (*one)["asked_back_bytes"] = capacity.asked_back_bytes;
  if (json) return;
  printf("  %-30s %s\n", "pressed", capacity.pressed ? "yes" : "no");
  std::string since;
  if (const uint64_t asked_ms = CounterOf(statistics, "asked_back_ms"); asked_ms > 0) {
    since = absl::StrFormat(", for %.1f s now", static_cast<double>(asked_ms) / 1000);
  }
  printf("  %-30s %s%s\n", "asked_back_bytes", FormatByteSize(capacity.asked_back_bytes).c_str(), since.c_str());
}

int RunStatus(StatusFlags& options, const Invocation&) {
  FoundMembers where;
  const auto members = OpenMembers(options.pool, "", &where);
  if (!members.ok()) return ToExitCode(members.status(), "nram status");
  const auto answers = AskStatistics(*members);
  nlohmann::json servers = nlohmann::json::array();
  int silent = 0;
  for (size_t i = 0; i < members->size(); ++i) {
    const std::string name = (*members)[i].endpoint.ToString();
    nlohmann::json one = {{"name", name}, {"address", name}, {"answers", answers[i].ok()}};
    if (!options.json) printf("%s%s\n", i == 0 ? "" : "\n", name.c_str());
    if (!answers[i].ok()) {
      ++silent;
      one["error"] = std::string(answers[i].status().message());
      if (!options.json) printf("  does not answer: %s\n", std::string(answers[i].status().message()).c_str());
    } else {
      one["incarnation"] = FormatId(answers[i]->incarnation);
      one["draining"] = answers[i]->capacity.draining;
      one["leaving"] = answers[i]->capacity.leaving;
      if (!options.json) printf("  %-30s %s\n", "draining", answers[i]->capacity.draining ? "yes" : "no");
      ShowGivingBack(*answers[i], options.json, &one);
      ShowPlace(answers[i]->host, options.json, &one);
      for (const auto& [counter, value] : answers[i]->counters) {
        one[counter] = value;
        const bool is_size = counter.find("bytes") != std::string::npos;
        if (!options.json)
          printf("  %-30s %s\n", counter.c_str(),
                 is_size ? FormatByteSize(value).c_str() : absl::StrCat(value).c_str());
      }
    }
    servers.push_back(one);
  }
  const CopiesReport copies = SumOfCopies(answers);
  if (options.json) {
    const nlohmann::json out = {
        {"servers", servers}, {"copies", CopiesToJson(copies)}, {"members", MembersToJson(where)}};
    std::cout << out.dump(2) << std::endl;
  } else {
    PrintCopies(copies);
    PrintMembers(where, answers.size());
  }
  return silent == 0 ? 0 : 1;
}

struct RegionsFlags {
  std::string pool;
  bool json = false;
  bool orphans = false;
  bool force = false;
  bool all_tenants = false;
  std::string destroy;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
    parser->Switch("orphans", &orphans, {"", "only orphans"});
    parser->String("destroy", &destroy,
                   {"WHICH",
                    "destroy on all servers: a region by id or by name, or \"orphans\" for\n"
                    "all orphans. Refused for a region that a live client owns"});
    parser->Switch("force", &force, {"", "destroy it nevertheless; its owner gets errors"});
    parser->Switch("all-tenants", &all_tenants,
                   {"", "regions of all tenants, for operators (docs/security.md); also with --destroy"});
    parser->Switch("json", &json, {"", "print JSON"});
  }
};

struct PlacedRegion {
  std::string server;
  ControlClient* control;
  RegionInfo info;
};

// The regions of all servers that answer. *silent: why another one does not.
std::vector<PlacedRegion> ListAll(absl::Span<const PoolMember> members, const RegionsFlags& flags,
                                  absl::Status* silent) {
  std::vector<PlacedRegion> all;
  for (const PoolMember& member : members) {
    absl::StatusOr<std::vector<RegionInfo>> regions =
        member.control->ListRegions(flags.orphans, flags.all_tenants, DeadlineAfterMs(10 * kAskTimeoutMs));
    if (!regions.ok()) {
      std::cerr << "nram regions: " << regions.status().message() << std::endl;
      *silent = regions.status();
      continue;
    }
    for (RegionInfo& region : *regions)
      all.push_back({member.endpoint.ToString(), member.control.get(), std::move(region)});
  }
  return all;
}

// `what`: "orphans", or an id, or a name.
absl::Status Destroy(absl::Span<const PlacedRegion> regions, const RegionsFlags& flags) {
  const std::string& what = flags.destroy;
  size_t destroyed = 0;
  uint64_t bytes = 0;
  absl::Status refused;
  const auto id = ParseId(what);
  for (const PlacedRegion& region : regions) {
    const bool meant = what == "orphans" ? region.info.orphan
                                         : (id.ok() && *id == Raw(region.info.id)) ||
                                               (!region.info.name.empty() && region.info.name == what);
    if (!meant) continue;
    const int64_t deadline_ns = DeadlineAfterMs(kAskTimeoutMs);
    const absl::StatusOr<bool> existed =
        flags.all_tenants ? region.control->DestroyOf(region.info.tenant, region.info.id, flags.force, deadline_ns)
                          : region.control->DestroyRegion(LeaseId{0}, region.info.id, flags.force, deadline_ns);
    // A region may have an owner again, for example: the others are still to be destroyed.
    if (!existed.ok() && refused.ok()) refused = existed.status();
    if (existed.ok() && *existed) {
      ++destroyed;
      bytes += region.info.stored_bytes;
    }
  }
  if (!refused.ok() && destroyed == 0) return refused;
  if (destroyed == 0 && what != "orphans") return absl::NotFoundError(absl::StrCat("no region ", what));
  printf("Destroyed %zu regions (counted once for each server); %s are free again.\n", destroyed,
         FormatByteSize(bytes).c_str());
  return refused;
}

int RunRegions(RegionsFlags& options, const Invocation&) {
  if (options.force && options.destroy.empty()) {
    return ToExitCode(absl::InvalidArgumentError("--force needs --destroy"), "nram regions");
  }
  const auto members = OpenMembers(options.pool);
  if (!members.ok()) return ToExitCode(members.status(), "nram regions");
  absl::Status silent;
  const std::vector<PlacedRegion> regions = ListAll(*members, options, &silent);
  const int code = silent.ok() ? 0 : 1;
  if (!options.destroy.empty()) {
    return std::max(code, ToExitCode(Destroy(regions, options), "nram regions"));
  }
  if (options.json) {
    nlohmann::json out = nlohmann::json::array();
    for (const PlacedRegion& region : regions) {
      out.push_back({{"region", FormatId(Raw(region.info.id))},
                     {"name", region.info.name},
                     {"server", region.server},
                     {"tenant", region.info.tenant},
                     {"stored_bytes", region.info.stored_bytes},
                     {"spans", region.info.spans},
                     {"gc", region.info.gc},
                     {"sealed", region.info.pages_sealed},
                     {"epoch", Raw(region.info.epoch)},
                     {"orphan", region.info.orphan},
                     {"newest_version", Raw(region.info.newest_version)},
                     {"version_bytes", region.info.version_bytes},
                     {"owner", region.info.owner_name}});
    }
    std::cout << out.dump(2) << std::endl;
    return code;
  }
  if (regions.empty()) {
    printf(options.orphans ? "No orphans.\n" : "No regions.\n");
    return code;
  }
  printf("%-18s %-24s %12s %6s  %-6s %-6s %s\n", "REGION", "SERVER", "STORED", "SPANS", "MODE", "STATE",
         "OWNER OR NAME");
  for (const PlacedRegion& region : regions) {
    const std::string whose = options.all_tenants ? absl::StrCat(region.info.tenant, ": ") : "";
    printf("%-18s %-24s %12s %6lu  %-6s %-6s %s%s%s%s\n", FormatId(Raw(region.info.id)).c_str(), region.server.c_str(),
           FormatByteSize(region.info.stored_bytes).c_str(), region.info.spans, region.info.gc ? "gc" : "keep",
           region.info.orphan ? "orphan" : "owned", whose.c_str(), region.info.owner_name.c_str(),
           region.info.name.empty() ? "" : ", named ", Printable(region.info.name, 1000).c_str());
  }
  return code;
}

}  // namespace

Command StatusCommand() {
  return DefineCommand<StatusFlags>({"status", "show state and counters of each server", R"(usage: nram status [flags]

Shows every counter of every server of the pool, the spans with several copies by their state,
and the progress of their repair, as the clients reported it a few seconds ago. docs/stats.md
explains the counters. The last line shows the source of the list of servers and its age.

A server whose donor is short of memory is "pressed". asked_back_bytes is the memory that its
clients are asked to give back now, and for how long; given_back_bytes is the memory that the
donor has got back since the server started (docs/giving-back.md).

)",
                                     R"(
Exit code 1 if a server does not answer.

example: nram status --json | jq '.servers[].regions'
)"},
                                    Words::kNone, &RunStatus);
}

Command RegionsCommand() {
  return DefineCommand<RegionsFlags>({"regions", "list or destroy regions", R"(usage: nram regions [flags]

Lists the regions of the pool, one line for each server that holds a part. An orphan is a
region without a live owner; it keeps its memory until it is destroyed. A kept region
(NRAM_MAP_KEEP, nram restore) is an orphan as soon as its program has ended, so
--destroy=orphans destroys kept data, too. (Servers free regions in GC mode by themselves.)

)",
                                      R"(
example: nram regions --orphans && nram regions --destroy=orphans
)"},
                                     Words::kNone, &RunRegions);
}

}  // namespace nram
