#ifndef NRAM_MEMBERS_ETCD_SERVER_RECORD_H_
#define NRAM_MEMBERS_ETCD_SERVER_RECORD_H_

// The record of a memory server in etcd: the value of its key, a JSON object.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

struct ServerRecord {
  static constexpr size_t kBytesMax = 4096;
  static constexpr size_t kFieldBytesMax = 255;

  std::string address;      // "host:port", of the control plane
  std::string host;         // where it runs, for people
  std::string domain;       // "": none
  std::string version;      // of the wire: the highest that it speaks
  std::string state;        // "serves", "drains" or "leaves"
  std::string incarnation;  // of this life

  std::string Encode() const;
  // INVALID_ARGUMENT names the error, in printable text. Unknown fields are passed over.
  static absl::StatusOr<ServerRecord> Decode(absl::string_view text);

  friend bool operator==(const ServerRecord&, const ServerRecord&) = default;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_SERVER_RECORD_H_
