// nram versions: which versions of a memory are published.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "base/utf8.h"
#include "client/pool/publication.h"
#include "nlohmann/json.hpp"
#include "tools/nram/published.h"

namespace nram {
namespace {

constexpr int64_t kTimeoutMs = 30'000;

struct VersionsFlags {
  NamedPoolFlags pool;
  bool json = false;
  int64_t drop = 0;

  void Register(ArgParser* parser) {
    pool.Register(parser);
    parser->Integer("drop", 1, INT64_MAX, &drop, {"N", "drop version N of a publication whose publisher has ended"});
    parser->Switch("json", &json, {"", "print JSON"});
  }
};

std::string KeepName(VersionKeep keep) {
  if (keep == VersionKeep::kUntilDropped) return "until dropped";
  if (keep == VersionKeep::kWithOwner) return "with owner";
  return absl::StrCat(static_cast<uint32_t>(keep), " s after its owner");
}

// A record, and its present state on the servers.
struct Row {
  PublicationRecord record;
  uint64_t bytes = 0;
  uint64_t own_bytes = 0;
  uint32_t holds = 0;
  VersionKeep keep{};
  std::set<uint64_t> members;  // lives of servers, of all regions
  std::set<uint64_t> missing;  // those that lack a part
  bool whole = true;
};

absl::StatusOr<std::vector<Row>> MakeRows(Pool* pool, std::vector<PublicationRecord> records, int64_t deadline_ns) {
  std::map<RegionId, std::vector<ServerVersions>> regions;
  std::vector<Row> rows;
  for (PublicationRecord& record : records) {
    Row row;
    for (size_t i = 0; i < record.regions.size(); ++i) {
      const VersionPlace& place = record.regions[i];
      if (!regions.contains(place.region)) {
        absl::StatusOr<std::vector<ServerVersions>> list = pool->ListVersions(place.region, deadline_ns);
        if (!list.ok() && !absl::IsNotFound(list.status())) return list.status();
        regions[place.region] = list.ok() ? *std::move(list) : std::vector<ServerVersions>();
      }
      std::set<uint64_t> there;
      for (const ServerVersions& server : regions[place.region]) {
        if (!absl::c_linear_search(place.incarnations, server.incarnation)) continue;
        for (const VersionInfo& version : server.versions) {
          if (version.number != place.number) continue;
          there.insert(server.incarnation);
          row.own_bytes += version.own_bytes;
          row.holds = std::max(row.holds, version.holds);
          row.keep = std::max(row.keep, version.keep);
        }
      }
      row.bytes += record.lengths[i];
      for (const uint64_t incarnation : place.incarnations) {
        row.members.insert(incarnation);
        if (!there.contains(incarnation)) row.missing.insert(incarnation);
      }
      row.whole = row.whole && there.size() + place.least_in_sync > place.incarnations.size();
    }
    row.record = std::move(record);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string FormatTime(int64_t time_ns) {
  const time_t seconds = time_ns / kNsPerSecond;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void PrintRowsInJson(const std::string& name, const std::vector<Row>& rows) {
  nlohmann::json versions = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json regions = nlohmann::json::array();
    for (const VersionPlace& place : row.record.regions) regions.push_back(place.name);
    versions.push_back({{"number", row.record.number},
                        {"step", row.record.step},
                        {"time", FormatTime(row.record.time_ns)},
                        {"bytes", row.bytes},
                        {"own_bytes", row.own_bytes},
                        {"holds", row.holds},
                        {"keep", KeepName(row.keep)},
                        {"members", {{"all", row.members.size()}, {"there", row.members.size() - row.missing.size()}}},
                        {"whole", row.whole},
                        {"regions", regions},
                        {"arrays", ArraysToJson(row.record.arrays)}});
  }
  const nlohmann::json out = {{"name", name}, {"versions", versions}};
  PrintJson(out);
}

void PrintArrays(const PublicationRecord& record) {
  for (const PublishedArray& array : record.arrays) {
    // DecodeRecord has looked at its place.
    printf("%8s   %s  %s  in %s at %lu\n", "", Printable(array.name, 1000).c_str(), FormatArrayType(array).c_str(),
           Printable(record.regions[array.mapping].name, 1000).c_str(), array.offset);
  }
}

void PrintTable(const std::vector<Row>& rows) {
  if (rows.empty()) {
    printf("No versions.\n");
    return;
  }
  printf("%8s %10s  %-20s %12s %12s %6s  %-13s %s\n", "VERSION", "STEP", "TIME", "SIZE", "OWN", "HOLDS", "KEPT",
         "MEMBERS");
  const std::vector<PublishedArray>* former = nullptr;
  for (const Row& row : rows) {
    printf("%8lu %10lu  %-20s %12s %12s %6u  %-13s %zu of %zu%s\n", row.record.number, row.record.step,
           FormatTime(row.record.time_ns).c_str(), FormatByteSize(row.bytes).c_str(),
           FormatByteSize(row.own_bytes).c_str(), row.holds, KeepName(row.keep).c_str(),
           row.members.size() - row.missing.size(), row.members.size(), row.whole ? "" : "  gone");
    if (former == nullptr || *former != row.record.arrays) PrintArrays(row.record);
    former = &row.record.arrays;
  }
}

absl::Status Drop(Pool* pool, const std::string& name, uint64_t number, int64_t deadline_ns) {
  // The list first, and then the regions: a former owner could publish the dropped version.
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Publication> publication,
                        FindPublication(pool, name, AttachMode::kOwner));
  NRAM_ASSIGN_OR_RETURN(const PublicationRecord record, publication->Read(number, deadline_ns));
  NRAM_RETURN_IF_ERROR(publication->Forget(number, deadline_ns));
  uint64_t freed = 0;
  uint32_t held = 0;
  for (const VersionPlace& place : record.regions) {
    NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Region> region, pool->AttachRegion(place.name, AttachMode::kOwner));
    if (region->id() != place.region) continue;  // another of that name
    NRAM_ASSIGN_OR_RETURN(const DroppedVersions dropped,
                          region->DropVersions(place.number, place.number, /*force=*/false));
    freed += dropped.freed_bytes;
    held = std::max(held, dropped.held);
  }
  printf("Dropped version %lu of %s; %s are free again%s.\n", number, Printable(name, 1000).c_str(),
         FormatByteSize(freed).c_str(), held > 0 ? " (the rest is freed when its last reader ends)" : "");
  return absl::OkStatus();
}

absl::Status Versions(const VersionsFlags& flags, const std::string& name) {
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, OpenNamedPool(flags.pool));
  const int64_t deadline_ns = DeadlineAfterMs(kTimeoutMs);
  if (flags.drop != 0) return Drop(pool.get(), name, static_cast<uint64_t>(flags.drop), deadline_ns);
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Publication> publication,
                        FindPublication(pool.get(), name, AttachMode::kReadOnly));
  NRAM_ASSIGN_OR_RETURN(std::vector<PublicationRecord> records, publication->List(deadline_ns));
  NRAM_ASSIGN_OR_RETURN(const std::vector<Row> rows, MakeRows(pool.get(), std::move(records), deadline_ns));
  flags.json ? PrintRowsInJson(name, rows) : PrintTable(rows);
  return absl::OkStatus();
}

int RunVersions(VersionsFlags& flags, const Invocation& given) {
  if (given.words.size() != 1) {
    return ToExitCode(absl::InvalidArgumentError("give the name of a publication\nTry 'nram versions --help'."),
                      "nram versions");
  }
  return ToExitCode(Versions(flags, given.words[0]), "nram versions");
}

}  // namespace

Command VersionsCommand() {
  return DefineCommand<VersionsFlags>({"versions", "list the published versions of a memory",
                                       R"(usage: nram versions NAME [flags]

Lists the versions that are published under NAME, the oldest first. A version is the whole
state of a memory at one moment; other programs read it while its owner continues.

  OWN       memory used by this version alone: pages that changed before the next version
  HOLDS     programs that read it, at the server with the most of them
  KEPT      "until dropped", "with owner", or a time after its owner's end. If room is short,
            the oldest versions are dropped first, kept or not
  MEMBERS   how many of the servers that sealed the version still have it. "gone": too few of
            them to read it

Below a version are the arrays that its owner has described, if they differ from those of the
version before: name, type, dimensions, and the mapping and byte at which they begin.

)",
                                       R"(
example: nram versions temperature --json
         nram versions temperature --drop=17
)"},
                                      Words::kAny, &RunVersions);
}

}  // namespace nram
