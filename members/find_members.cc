#include "members/find_members.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "members/member_cache.h"

namespace nram {
namespace {

constexpr int64_t kPatienceMs = 5'000;
constexpr int64_t kPatienceWithCacheMs = 1'500;  // where something older can be had

std::string Ago(int64_t seconds) {
  if (seconds < 120) return absl::StrCat(seconds, " s");
  if (seconds < 2 * 3'600) return absl::StrCat(seconds / 60, " min");
  return absl::StrCat(seconds / 3'600, " h");
}

}  // namespace

std::string FoundMembers::Describe() const {
  if (!from_cache) return absl::StrCat(name, ", heard of just now");
  return absl::StrCat(name, ", last heard of ", Ago(age_s), " ago (", trouble.message(), ")");
}

absl::StatusOr<FoundMembers> FindMembers(std::shared_ptr<MemberSource> source, const std::string& cache_dir) {
  FoundMembers found;
  found.name = source->name();
  found.source = source;
  const MemberCache cache(found.name, cache_dir);
  const absl::StatusOr<MemberCache::Known> known = cache.Read();
  const absl::StatusOr<std::vector<Member>> members =
      source->Look(DeadlineAfterMs(known.ok() ? kPatienceWithCacheMs : kPatienceMs));
  if (members.ok()) {
    for (const Member& member : *members) found.servers.push_back(member.endpoint);
    // It is a help, and no more. A word that has lost most of its names may be wrong: pools that are open know better.
    const bool is_short = known.ok() && found.servers.size() * 2 < known->servers.size();
    if (!is_short) (void)cache.Write(found.servers);
    return found;
  }
  if (!known.ok()) return members.status();
  found.servers = known->servers;
  found.from_cache = true;
  found.age_s = known->age_s;
  found.trouble = members.status();
  return found;
}

}  // namespace nram
