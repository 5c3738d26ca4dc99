// nram df: how much network RAM there is.

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/units.h"
#include "client/pool/placement.h"
#include "nlohmann/json.hpp"
#include "tools/nram/command.h"
#include "tools/nram/copies_report.h"
#include "tools/nram/members_report.h"

namespace nram {
namespace {

constexpr int kRefusalsToldMax = 3;

struct DfFlags {
  std::string pool;
  bool json = false;
  bool bytes = false;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
    parser->Switch("bytes", &bytes, {"", "sizes in bytes"});
    parser->Switch("json", &json, {"", "print JSON, sizes in bytes"});
  }
};

struct Total {
  ServerCapacity capacity;
  uint64_t lendable_bytes = 0;
  uint64_t idle_bytes = 0;
  int silent = 0;
  int with_quota = 0;  // servers at which this client's tenant has a quota
};

// Servers on one host share its memory: it is counted once, and each of them has set its own unused donation aside.
Total Sum(absl::Span<const absl::StatusOr<ServerStatistics>> answers) {
  Total total;
  struct Host {
    uint64_t available = 0, idle = 0, reserve = 0, unused = 0;
  };
  std::map<std::string, Host> hosts;
  for (const auto& answer : answers) {
    if (!answer.ok()) {
      ++total.silent;
      continue;
    }
    const ServerCapacity& capacity = answer->capacity;
    total.capacity.donated_bytes += capacity.donated_bytes;
    total.capacity.used_bytes += capacity.used_bytes;
    total.capacity.reserved_bytes += capacity.reserved_bytes;
    total.capacity.free_bytes += capacity.free_bytes;
    total.capacity.overhead_bytes += capacity.overhead_bytes;
    total.capacity.quota_bytes += capacity.quota_bytes;
    total.capacity.quota_used_bytes += capacity.quota_used_bytes;
    total.with_quota += capacity.quota_bytes > 0;
    Host& host = hosts[answer->host.boot_id];
    host.available = answer->host.available_bytes;
    host.idle = answer->host.idle_bytes;
    host.reserve = std::max(host.reserve, answer->host.reserve_bytes);
    host.unused += capacity.free_bytes + capacity.reserved_bytes;
  }
  for (const auto& [boot_id, host] : hosts) {
    const uint64_t spoken_for = host.reserve + host.unused;
    total.idle_bytes += host.idle;
    total.lendable_bytes += host.available > spoken_for ? host.available - spoken_for : 0;
  }
  return total;
}

nlohmann::json ToJson(const ServerCapacity& capacity) {
  nlohmann::json sizes = {{"donated_bytes", capacity.donated_bytes},
                          {"used_bytes", capacity.used_bytes},
                          {"reserved_bytes", capacity.reserved_bytes},
                          {"free_bytes", capacity.free_bytes},
                          {"overhead_bytes", capacity.overhead_bytes}};
  if (capacity.quota_bytes > 0) {
    sizes["quota_bytes"] = capacity.quota_bytes;
    sizes["quota_used_bytes"] = capacity.quota_used_bytes;
  }
  return sizes;
}

int PrintTotalInJson(absl::Span<const PoolMember> members, absl::Span<const absl::StatusOr<ServerStatistics>> answers,
                     const Total& total, const FoundMembers& where) {
  nlohmann::json donors = nlohmann::json::array();
  for (size_t i = 0; i < members.size(); ++i) {
    nlohmann::json donor = {{"address", members[i].endpoint.ToString()}, {"answers", answers[i].ok()}};
    if (answers[i].ok()) {
      donor.update(ToJson(answers[i]->capacity));
      const ServerHost& host = answers[i]->host;
      donor["draining"] = answers[i]->capacity.draining;
      donor["pressed"] = answers[i]->capacity.pressed;
      donor["asked_back_bytes"] = answers[i]->capacity.asked_back_bytes;
      donor["host"] = {{"name", host.hostname},
                       {"total_bytes", host.total_bytes},
                       {"available_bytes", host.available_bytes},
                       {"idle_bytes", host.idle_bytes},
                       {"reserve_bytes", host.reserve_bytes},
                       {"lendable_bytes", host.lendable_bytes}};
      if (!host.domain.empty()) donor["domain"] = host.domain;
      if (!host.pretended_host.empty()) donor["pretended_host"] = host.pretended_host;
    } else {
      donor["error"] = std::string(answers[i].status().message());
    }
    donors.push_back(donor);
  }
  nlohmann::json sum = ToJson(total.capacity);
  sum["lendable_bytes"] = total.lendable_bytes;
  sum["idle_bytes"] = total.idle_bytes;
  const CopyHosts hosts = HostsOf(answers);
  for (int copies = 1; copies <= kReplicasMax; ++copies) {
    sum["usable_bytes"][absl::StrCat(copies)] = hosts.UsableBytes(copies);
  }
  const nlohmann::json out = {{"donors", donors},
                              {"total", sum},
                              {"copies", CopiesToJson(SumOfCopies(answers))},
                              {"members", MembersToJson(where)}};
  PrintJson(out);
  return total.silent == 0 ? 0 : 1;
}

// Remarks about a donor besides its sizes.
std::string Notes(const ServerStatistics& statistics) {
  const ServerHost& host = statistics.host;
  const ServerCapacity& capacity = statistics.capacity;
  std::string notes = capacity.draining ? "  draining" : "";
  if (capacity.pressed) absl::StrAppend(&notes, "  pressed");
  if (capacity.asked_back_bytes > 0) {
    absl::StrAppend(&notes, ", asks ", FormatByteSize(capacity.asked_back_bytes), " back");
  }
  if (!host.domain.empty()) absl::StrAppend(&notes, "  domain ", host.domain);
  if (!host.pretended_host.empty()) absl::StrAppend(&notes, "  pretended host ", host.pretended_host);
  return notes;
}

void TellSilent(StatisticsAnswers answers, int silent) {
  if (silent == 0) return;
  int told = 0;
  for (const auto& answer : answers) {
    if (!IsOfTrust(answer.status()) || ++told > kRefusalsToldMax) continue;
    fprintf(stderr, "nram df: %s\n", std::string(answer.status().message()).c_str());
  }
  fprintf(stderr, "nram df: %d of %zu servers do not answer or refuse this client; the total is without them\n", silent,
          answers.size());
}

int Run(DfFlags& options, const Invocation&) {
  FoundMembers where;
  const auto members = OpenMembers(options.pool, "", &where);
  if (!members.ok()) return ToExitCode(members.status(), "nram df");
  const auto answers = AskStatistics(*members);
  const Total total = Sum(answers);
  if (options.json) return PrintTotalInJson(*members, answers, total, where);

  const auto size = [&](uint64_t bytes) { return options.bytes ? absl::StrCat(bytes) : FormatByteSize(bytes); };
  size_t width = 5;
  for (const PoolMember& member : *members) width = std::max(width, member.endpoint.ToString().size());
  printf("%-*s %12s %12s %12s %12s %12s %12s\n", static_cast<int>(width), "DONOR", "DONATED", "USED", "RESERVED",
         "FREE", "HOST IDLE", "COULD LEND");
  for (size_t i = 0; i < members->size(); ++i) {
    const std::string name = (*members)[i].endpoint.ToString();
    if (!answers[i].ok()) {
      absl::string_view why = answers[i].status().message();
      absl::ConsumePrefix(&why, absl::StrCat("memory server ", name, ": "));
      printf("%-*s %s: %s\n", static_cast<int>(width), name.c_str(),
             IsOfTrust(answers[i].status()) ? "cannot be used by this client" : "does not answer",
             std::string(why).c_str());
      continue;
    }
    const ServerCapacity& at = answers[i]->capacity;
    printf("%-*s %12s %12s %12s %12s %12s %12s%s\n", static_cast<int>(width), name.c_str(),
           size(at.donated_bytes).c_str(), size(at.used_bytes).c_str(), size(at.reserved_bytes).c_str(),
           size(at.free_bytes).c_str(), size(answers[i]->host.idle_bytes).c_str(),
           size(answers[i]->host.lendable_bytes).c_str(), Notes(*answers[i]).c_str());
  }
  printf("%-*s %12s %12s %12s %12s %12s %12s\n", static_cast<int>(width), "total",
         size(total.capacity.donated_bytes).c_str(), size(total.capacity.used_bytes).c_str(),
         size(total.capacity.reserved_bytes).c_str(), size(total.capacity.free_bytes).c_str(),
         size(total.idle_bytes).c_str(), size(total.lendable_bytes).c_str());
  const CopyHosts hosts = HostsOf(answers);
  if (hosts.rooms.size() > 1) {
    printf("\nusable with two copies on different hosts: %s\n", size(hosts.UsableBytes(2)).c_str());
  }
  if (total.with_quota > 0) {
    printf("\nquota of this client's tenant at %d of %zu servers: %s, of which %s are used\n", total.with_quota,
           answers.size(), size(total.capacity.quota_bytes).c_str(), size(total.capacity.quota_used_bytes).c_str());
  }
  PrintCopies(SumOfCopies(answers));
  PrintMembers(where, answers.size());
  TellSilent(answers, total.silent);
  return total.silent == 0 ? 0 : 1;
}

}  // namespace

Command DfCommand() {
  return DefineCommand<DfFlags>({"df", "show how much network RAM there is", R"(usage: nram df [flags]

Shows, for each donor and in total:

  DONATED     the ceiling on the memory of its memory server (--donate)
  USED        stored pages and their index
  RESERVED    reserved by clients and not used yet
  FREE        memory that clients can reserve now. The rest of DONATED is the server's own
              memory and slack
  HOST IDLE   memory of the donor's host that the kernel uses for nothing
  COULD LEND  an estimate of the memory that the host could donate beyond DONATED: memory
              available to its programs without swapping, less the host reserve, less
              donated memory that is not used yet. The total counts hosts with several
              servers once.

FREE is raw room: a page with two copies takes two pages of it, on different hosts. If the
pool has two or more hosts, one line shows the room for data with two copies, without draining
servers. Where the access rules give this client's tenant a quota, a line shows it and its use;
FREE does not heed it. Then nram df lists the spans with several copies by their state, as nram
status does. The last line shows the source of the list of donors and its age.

"pressed": the donor needs its memory, or has needed it within the last 30 s. While the server
asks its clients for memory, FREE is 0 and no new spans are placed there. After that, the
server is the last choice for new spans (docs/giving-back.md).

)",
                                 R"(
Exit code 1 if a server does not answer.

example: nram df --pool=node1:7070,node2:7070
)"},
                                Words::kNone, &Run);
}

}  // namespace nram
