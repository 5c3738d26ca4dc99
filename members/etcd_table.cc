#include "members/etcd_table.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "members/etcd/server_record.h"

namespace nram {
namespace {

absl::StatusOr<Member> ToMember(absl::string_view value) {
  NRAM_ASSIGN_OR_RETURN(const ServerRecord record, ServerRecord::Decode(value));
  NRAM_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(record.address, kDefaultServerPort));
  if (endpoint.is_unix() || endpoint.port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", record.address, "\" is not a host and port"));
  }
  return Member{std::move(endpoint), record.state == "leaves"};
}

}  // namespace

std::string EtcdTable::Put(const std::string& key, absl::string_view value) {
  absl::StatusOr<Member> member = ToMember(value);
  if (member.ok()) {
    remarks_.erase(key);
    members_[key] = *std::move(member);
    return "";
  }
  members_.erase(key);
  return Remark(key, std::string(member.status().message()));
}

std::string EtcdTable::Remark(const std::string& key, const std::string& why) {
  const auto known = remarks_.find(key);
  if (known != remarks_.end() && known->second == why) return "";
  const std::string line = absl::StrCat("etcd: the value of ", Printable(key, 200), " is ignored: ", why);
  if (known != remarks_.end()) {
    known->second = why;
    return line;
  }
  if (remarks_.size() < kRemarksMax) {
    remarks_[key] = why;
    return line;
  }
  return std::exchange(said_more_, true) ? "" : "etcd: more values are wrong and ignored without a message";
}

void EtcdTable::Erase(const std::string& key) {
  members_.erase(key);
  remarks_.erase(key);
}

std::vector<Member> EtcdTable::Members() const {
  std::vector<Member> members;
  std::set<std::string> seen;
  for (const auto& [key, member] : members_) {
    if (members.size() >= kPoolServersMax) break;
    if (seen.insert(member.endpoint.ToString()).second) members.push_back(member);
  }
  return members;
}

}  // namespace nram
