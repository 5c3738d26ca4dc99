#ifndef NRAM_CLIENT_POOL_PUBLICATION_RECORD_H_
#define NRAM_CLIENT_POOL_PUBLICATION_RECORD_H_

// The record that says that a version is there (adr/0019), as it stands in the region NAME.versions: a slot of 64 KiB
// for each record, and before them one chunk, the head, that names the newest. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "client/pool/published_array.h"

namespace nram {

// A sealed state of one region, and where it is.
struct VersionPlace {
  std::string name;  // the region's
  RegionId region{};
  VersionNumber number{};
  std::vector<uint64_t> incarnations;  // its members: the lives of servers that have sealed it
  uint32_t least_in_sync = 0;          // the least number of copies that each span has on members
  friend bool operator==(const VersionPlace&, const VersionPlace&) = default;
};

// One publication: versions of one or more regions, which are one state together.
struct PublicationRecord {
  uint64_t number = 0;  // above 0; counts up
  int64_t time_ns = 0;  // since the epoch of Unix
  uint64_t step = 0;    // the publisher's own count
  std::vector<VersionPlace> regions;
  std::vector<uint64_t> lengths;  // of the regions, in bytes
  std::string header_json;        // the publisher's; "" or JSON
  std::vector<PublishedArray> arrays;
  friend bool operator==(const PublicationRecord&, const PublicationRecord&) = default;
};

inline constexpr uint64_t kRecordSlotBytes = 64 * kKiB;
inline constexpr uint32_t kRecordSlots = 1'023;
inline constexpr size_t kPublicationBytesMax = 60 * kKiB;  // encoded

// A number, a length for each region, JSON, names that are printable, arrays that CheckArrays accepts. INVALID_ARGUMENT
// names the error.
absl::Status CheckRecord(const PublicationRecord& record);
// Of a record that CheckRecord accepts. It may be longer than kPublicationBytesMax; then it has no slot.
std::string EncodeRecord(const PublicationRecord& record);
// `bytes`: a slot, or the beginning of one that has the record. NOT_FOUND: the slot is empty. DATA_LOSS: its content is
// no record, or not all of one.
absl::StatusOr<PublicationRecord> DecodeRecord(absl::string_view bytes);
// The number of a record that begins so, without looking whether it is whole; 0: no record begins so.
uint64_t RecordNumber(absl::string_view bytes);
// A record of this text, right or wrong. For tests.
std::string FrameRecord(uint64_t number, absl::string_view json);

// The chunk before the slots.
struct PublicationHead {
  uint64_t newest = 0;  // 0: nothing was published yet
  uint32_t slot = 0;    // where the newest is
  friend bool operator==(const PublicationHead&, const PublicationHead&) = default;
};
std::string EncodeHead(const PublicationHead& head);  // kChunkBytes
// DATA_LOSS: it is no head. A hole is one that says that there is nothing.
absl::StatusOr<PublicationHead> DecodeHead(absl::string_view chunk);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_PUBLICATION_RECORD_H_
