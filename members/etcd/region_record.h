#ifndef NRAM_MEMBERS_ETCD_REGION_RECORD_H_
#define NRAM_MEMBERS_ETCD_REGION_RECORD_H_

// Which region has a name, in etcd: the value of the name's key, a JSON object (adr/0023).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

struct RegionRecord {
  static constexpr size_t kBytesMax = 1 << 20;
  static constexpr size_t kFieldBytesMax = 255;
  static constexpr size_t kServersMax = 4096;

  uint64_t id = 0;
  std::vector<std::string> servers;  // the addresses of all that may have a part of it
  uint32_t epoch = 0;                // of the owner that has told them; 0: they are those of the creation
  std::string client;                // that has put it, for people
  std::string time;                  // when, for people

  std::string Encode() const;
  // INVALID_ARGUMENT names the error, in printable text. Unknown fields are passed over.
  static absl::StatusOr<RegionRecord> Decode(absl::string_view text);

  friend bool operator==(const RegionRecord&, const RegionRecord&) = default;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_REGION_RECORD_H_
