#ifndef NRAM_MEMBERS_FIND_MEMBERS_H_
#define NRAM_MEMBERS_FIND_MEMBERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "members/member_source.h"

namespace nram {

// Where a pool's members come from, and which there are.
struct FoundMembers {
  std::vector<Endpoint> servers;
  std::shared_ptr<MemberSource> source;  // to be watched; null: a list, which never changes
  std::string name;                      // of the source; "" for a list
  bool from_cache = false;               // the source does not answer; these are from its former answer
  int64_t age_s = 0;                     // of the cache's answer
  absl::Status trouble;                  // the reason why the source does not answer

  // "etcd:node1:2379/render, heard of just now", for people.
  std::string Describe() const;
};

// Asks `source` once. If it does not answer, its last answer to this user counts. Blocks for a few seconds at most. The
// error is the source's, if there is nothing older.
absl::StatusOr<FoundMembers> FindMembers(std::shared_ptr<MemberSource> source, const std::string& cache_dir = "");

}  // namespace nram

#endif  // NRAM_MEMBERS_FIND_MEMBERS_H_
