#include "tools/nram/members_report.h"

#include <cstdio>
#include <string>

namespace nram {

nlohmann::json MembersToJson(const FoundMembers& found) {
  nlohmann::json out = {{"source", found.name.empty() ? "list" : found.name},
                        {"servers", found.servers.size()},
                        {"answers", !found.from_cache},
                        {"heard_s_ago", found.age_s}};
  if (found.from_cache) out["error"] = std::string(found.trouble.message());
  return out;
}

void PrintMembers(const FoundMembers& found, size_t servers) {
  if (found.name.empty()) return;
  printf("\nmembers: %zu, from %s\n", servers, found.Describe().c_str());
}

}  // namespace nram
