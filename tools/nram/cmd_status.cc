// nram status, nram regions: counters of servers, and their regions.

#include <cstdio>
#include <iostream>
#include <set>

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
    PrintJson(out);
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
                    "all orphans in GC mode. Refused for a region that a live client owns"});
    parser->Switch("force", &force,
                   {"",
                    "destroy it nevertheless; its owner gets errors. With --destroy=orphans:\n"
                    "also orphans in keep mode (NRAM_MAP_KEEP, restored checkpoints)"});
    parser->Switch("all-tenants", &all_tenants,
                   {"", "regions of all tenants, for operators (docs/security.md); also with --destroy"});
    parser->Switch("json", &json, {"", "print JSON"});
  }
};

constexpr int64_t kListTimeoutMs = 10 * kAskTimeoutMs;  // lists may be long

struct PlacedRegion {
  std::string server;
  ControlClient* control;
  RegionInfo info;
};

// The regions of all servers that answer.
struct Regions {
  std::vector<PlacedRegion> all;
  size_t answered = 0;
  absl::Status silent;  // why another server does not answer
};

Regions ListAll(absl::Span<const PoolMember> members, const RegionsFlags& flags) {
  Regions regions;
  const RegionsWish wish{flags.orphans, flags.all_tenants, kListTimeoutMs};
  auto answers = AskRegions(members, wish);
  for (size_t i = 0; i < members.size(); ++i) {
    if (!answers[i].ok()) {
      std::cerr << "nram regions: " << answers[i].status().message() << std::endl;
      regions.silent = answers[i].status();
      continue;
    }
    ++regions.answered;
    for (RegionInfo& region : *answers[i]) {
      regions.all.push_back({members[i].endpoint.ToString(), members[i].control.get(), std::move(region)});
    }
  }
  return regions;
}

struct Destroyed {
  std::set<RegionId> regions;
  std::set<std::string> servers;
  uint64_t bytes = 0;
  std::set<RegionId> kept;  // orphans that are kept on purpose
};

// `what`: "orphans", or an id, or a name. Kept regions are orphans as soon as their program has ended, so a word for
// all orphans takes them only with --force. *done is right after an error, too.
absl::Status Destroy(absl::Span<const PlacedRegion> regions, const RegionsFlags& flags, Destroyed* done) {
  const std::string& what = flags.destroy;
  const bool all_orphans = what == "orphans";
  absl::Status refused;
  const auto id = ParseId(what);
  const std::string versions = what + ".versions";  // the records of a published region, which belong to it
  for (const PlacedRegion& region : regions) {
    const RegionInfo& info = region.info;
    const bool meant = all_orphans ? info.orphan
                                   : (id.ok() && *id == Raw(info.id)) || (!info.name.empty() && info.name == what) ||
                                         (info.name == versions && info.versioned && info.orphan);
    if (!meant) continue;
    if (all_orphans && !info.gc && !flags.force) {
      done->kept.insert(info.id);
      continue;
    }
    const int64_t deadline_ns = DeadlineAfterMs(kAskTimeoutMs);
    const absl::StatusOr<bool> existed =
        flags.all_tenants ? region.control->DestroyOf(info.tenant, info.id, flags.force, deadline_ns)
                          : region.control->DestroyRegion(LeaseId{0}, info.id, flags.force, deadline_ns);
    // A region may have an owner again, for example: the others are still to be destroyed.
    if (!existed.ok() && refused.ok()) refused = existed.status();
    if (existed.ok() && *existed) {
      done->regions.insert(info.id);
      done->servers.insert(region.server);
      done->bytes += info.stored_bytes;
    }
  }
  if (!refused.ok() || all_orphans || !done->regions.empty()) return refused;
  return absl::NotFoundError(absl::StrCat("no region ", what));
}

std::string Count(size_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// Destroys, and tells of it.
int RunDestroy(const Regions& regions, const RegionsFlags& flags) {
  Destroyed done;
  const absl::Status status = Destroy(regions.all, flags, &done);
  if (flags.json) {
    nlohmann::json out = {{"destroyed", nlohmann::json::array()},
                          {"kept", nlohmann::json::array()},
                          {"servers", done.servers.size()},
                          {"freed_bytes", done.bytes}};
    for (const RegionId id : done.regions) out["destroyed"].push_back(FormatId(Raw(id)));
    for (const RegionId id : done.kept) out["kept"].push_back(FormatId(Raw(id)));
    if (!status.ok()) out["error"] = std::string(status.message());
    PrintJson(out);
  } else if (status.ok() || !done.regions.empty()) {
    printf("Destroyed %s on %s; %s are free again.\n", Count(done.regions.size(), "region").c_str(),
           Count(done.servers.size(), "server").c_str(), FormatByteSize(done.bytes).c_str());
    if (!done.kept.empty()) {
      printf(
          "Not destroyed: %s in keep mode, which a program wanted kept. Destroy one by name or id, or all with "
          "--force.\n",
          Count(done.kept.size(), "orphan").c_str());
    }
  }
  return ToExitCode(status, "nram regions");
}

int RunRegions(RegionsFlags& options, const Invocation&) {
  if (options.force && options.destroy.empty()) {
    return ToExitCode(absl::InvalidArgumentError("--force needs --destroy"), "nram regions");
  }
  const auto members = OpenMembers(options.pool);
  if (!members.ok()) return ToExitCode(members.status(), "nram regions");
  const Regions found = ListAll(*members, options);
  const std::vector<PlacedRegion>& regions = found.all;
  const int code = found.silent.ok() ? 0 : 1;
  if (!options.destroy.empty()) return std::max(code, RunDestroy(found, options));
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
    PrintJson(out);
    return code;
  }
  if (regions.empty()) {
    const char* const none = options.orphans ? "No orphans" : "No regions";
    if (found.silent.ok()) {
      printf("%s.\n", none);
    } else if (found.answered > 0) {
      printf("%s on the servers that answered (%zu of %zu).\n", none, found.answered, members->size());
    }
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
(NRAM_MAP_KEEP, nram restore) is an orphan as soon as its program has ended. So
--destroy=orphans leaves regions in keep mode, unless --force is given: destroy one that is no
longer wanted by its name or id. (Servers free regions in GC mode by themselves.)

)",
                                      R"(
example: nram regions --orphans && nram regions --destroy=heat
)"},
                                     Words::kNone, &RunRegions);
}

}  // namespace nram
