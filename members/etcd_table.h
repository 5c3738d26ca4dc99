#ifndef NRAM_MEMBERS_ETCD_TABLE_H_
#define NRAM_MEMBERS_ETCD_TABLE_H_

// The keys of a pool in etcd, and the members that they make. Pure.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "members/member_source.h"

namespace nram {

// Not thread-safe.
class EtcdTable {
 public:
  static constexpr size_t kRemarksMax = 32;  // keys whose trouble is remembered

  // The key has this value from now on. Returns a line for the log if it is wrong and was not so before, else "".
  std::string Put(const std::string& key, absl::string_view value);
  void Erase(const std::string& key);
  void Clear() { members_.clear(); }
  // In the order of their keys, each address once.
  std::vector<Member> Members() const;
  size_t size() const { return members_.size(); }

 private:
  std::string Remark(const std::string& key, const std::string& why);

  std::map<std::string, Member> members_;  // by key
  absl::flat_hash_map<std::string, std::string> remarks_;
  bool said_more_ = false;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_TABLE_H_
