#ifndef NRAM_MEMBERS_ETCD_ETCD_SPEC_H_
#define NRAM_MEMBERS_ETCD_ETCD_SPEC_H_

// How a pool is named in etcd: "etcd:host1[:port],host2/NAME". Servers register there, and clients look there.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

struct EtcdSpec {
  static constexpr char kScheme[] = "etcd:";
  static constexpr int kDefaultPort = 2379;
  static constexpr size_t kHostsMax = 16;
  static constexpr size_t kNameBytesMax = 63;

  std::vector<std::string> hosts;  // "host:port" or "[v6]:port"; members of one etcd cluster
  std::string name;                // the pool's

  // INVALID_ARGUMENT names the accepted form. Nothing is looked up.
  static absl::StatusOr<EtcdSpec> Parse(absl::string_view text);

  // Each server of the pool has a key: this, and its address.
  std::string KeyPrefix() const;
  // Each kept region with a name has a key. Both may be any bytes.
  std::string RegionKey(absl::string_view tenant, absl::string_view name) const;
  std::string ToString() const;
};

// A word of a key: letters, digits, ".", "-" and "_" as they are, each other byte as "%" and two hex digits. No two
// texts have the same.
std::string EscapeKeyWord(absl::string_view text);

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_ETCD_SPEC_H_
