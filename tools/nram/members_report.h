#ifndef NRAM_TOOLS_NRAM_MEMBERS_REPORT_H_
#define NRAM_TOOLS_NRAM_MEMBERS_REPORT_H_

// Names the source of a pool's list of servers, for people and programs.

#include <cstddef>

#include "members/find_members.h"
#include "nlohmann/json.hpp"

namespace nram {

nlohmann::json MembersToJson(const FoundMembers& found);
// A line after an empty one. Nothing for servers that were given by name.
void PrintMembers(const FoundMembers& found, size_t servers);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_MEMBERS_REPORT_H_
