#include "client/pool/publication_record.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

using nlohmann::json;

constexpr uint32_t kMagic = 0x564d524e;  // "NRMV" in memory order
constexpr uint32_t kFormat = 1;
constexpr size_t kRegionNameBytesMax = 255;
// A length is of a mapping, and a place in a slot.
constexpr uint64_t kLengthMax = kRegionBytesMax;

// Little-endian, as all of nram's machines.
struct RecordHeader {
  uint32_t magic = kMagic;
  uint32_t format = kFormat;
  uint32_t bytes = 0;  // of the text that follows
  uint32_t crc = 0;    // CRC-32C of this header with 0 here, and of the text
  uint64_t number = 0;
};
static_assert(sizeof(RecordHeader) == 24 && std::has_unique_object_representations_v<RecordHeader>);

struct HeadChunk {
  uint32_t magic = kMagic;
  uint32_t format = kFormat;
  uint64_t newest = 0;
  uint32_t slot = 0;
  uint32_t crc = 0;  // CRC-32C of the fields before it
};
static_assert(sizeof(HeadChunk) == 24 && std::has_unique_object_representations_v<HeadChunk>);

uint32_t CrcOf(RecordHeader header, absl::string_view text) {
  header.crc = 0;
  return Crc32c(Crc32c(0, &header, sizeof header), text.data(), text.size());
}

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the record of a version ", what, ": it is damaged, or written by a newer nram"));
}

// --- Fields, which may be missing.

absl::StatusOr<uint64_t> NumberOf(const json& in, const char* key, uint64_t most) {
  const auto it = in.find(key);
  if (it == in.end() || !it->is_number_integer()) return Broken(absl::StrCat("has no number \"", key, "\""));
  const bool is_negative = !it->is_number_unsigned() && it->get<int64_t>() < 0;
  if (is_negative || it->get<uint64_t>() > most) {
    return Broken(absl::StrCat("has an invalid number \"", key, "\""));
  }
  return it->get<uint64_t>();
}

absl::StatusOr<std::string> TextOf(const json& in, const char* key) {
  const auto it = in.find(key);
  if (it == in.end() || !it->is_string()) return Broken(absl::StrCat("has no text \"", key, "\""));
  return it->get<std::string>();
}

absl::StatusOr<VersionPlace> PlaceOf(const json& in) {
  if (!in.is_object()) return Broken("has a region that is not an object");
  VersionPlace place;
  NRAM_ASSIGN_OR_RETURN(place.name, TextOf(in, "name"));
  NRAM_ASSIGN_OR_RETURN(const std::string id, TextOf(in, "id"));
  const absl::StatusOr<uint64_t> region = ParseId(id);
  if (!region.ok()) return Broken("has a region without an id");
  place.region = RegionId{*region};
  NRAM_ASSIGN_OR_RETURN(const uint64_t version, NumberOf(in, "version", Raw(kVersionNumberMax)));
  place.number = VersionNumber{static_cast<uint32_t>(version)};
  NRAM_ASSIGN_OR_RETURN(const uint64_t least, NumberOf(in, "least_in_sync", UINT32_MAX));
  place.least_in_sync = static_cast<uint32_t>(least);
  const auto members = in.find("members");
  if (members == in.end() || !members->is_array()) return Broken("has a region without members");
  for (const json& member : *members) {
    if (!member.is_number_unsigned()) return Broken("has a member that is not a number");
    place.incarnations.push_back(member.get<uint64_t>());
  }
  return place;
}

absl::StatusOr<PublicationRecord> RecordOf(const json& in) {
  if (!in.is_object()) return Broken("is not a JSON object");
  PublicationRecord record;
  NRAM_ASSIGN_OR_RETURN(record.number, NumberOf(in, "number", UINT64_MAX));
  NRAM_ASSIGN_OR_RETURN(const uint64_t time_ns, NumberOf(in, "time_ns", INT64_MAX));
  record.time_ns = static_cast<int64_t>(time_ns);
  NRAM_ASSIGN_OR_RETURN(record.step, NumberOf(in, "step", UINT64_MAX));
  NRAM_ASSIGN_OR_RETURN(record.header_json, TextOf(in, "header"));
  const auto regions = in.find("regions");
  if (regions == in.end() || !regions->is_array()) return Broken("has no regions");
  for (const json& region : *regions) {
    NRAM_ASSIGN_OR_RETURN(VersionPlace place, PlaceOf(region));
    record.regions.push_back(std::move(place));
    NRAM_ASSIGN_OR_RETURN(const uint64_t length, NumberOf(region, "length", kLengthMax));
    record.lengths.push_back(length);
  }
  // Former publishers said nothing of them.
  if (const auto arrays = in.find("arrays"); arrays != in.end()) {
    absl::StatusOr<std::vector<PublishedArray>> described = ArraysFromJson(*arrays);
    if (!described.ok()) return Broken(absl::StrCat("cannot be (", described.status().message(), ")"));
    record.arrays = *std::move(described);
  }
  return record;
}

absl::Status CheckPlace(const VersionPlace& place) {
  if (place.name.empty() || place.name.size() > kRegionNameBytesMax || !IsPrintable(place.name)) {
    return absl::InvalidArgumentError(absl::StrCat("a published region has a name of 1 to ", kRegionNameBytesMax,
                                                   " printable bytes, unlike \"",
                                                   Printable(place.name, 1000), "\""));
  }
  if (!IsRegionId(Raw(place.region)) || place.number == VersionNumber{} || place.number > kVersionNumberMax) {
    return absl::InvalidArgumentError(absl::StrCat("version ", Raw(place.number), " of region ",
                                                   FormatId(Raw(place.region)), " is invalid: both begin with 1"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRecord(const PublicationRecord& record) {
  if (record.number == 0) return absl::InvalidArgumentError("a publication's number begins with 1");
  if (record.time_ns < 0) return absl::InvalidArgumentError("a publication's time must not be before 1970");
  if (record.regions.empty() || record.regions.size() != record.lengths.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a publication has ", record.regions.size(), " regions and ",
                                                   record.lengths.size(), " lengths: expected one length for each "
                                                   "region, and at least one"));
  }
  for (const VersionPlace& place : record.regions) NRAM_RETURN_IF_ERROR(CheckPlace(place));
  for (const uint64_t length : record.lengths) {
    if (length > kLengthMax) return absl::InvalidArgumentError("a published region has at most 2^62 bytes");
  }
  if (!record.header_json.empty() && !json::accept(record.header_json)) {
    return absl::InvalidArgumentError("the header of a publication must be JSON, or empty");
  }
  return CheckArrays(record.arrays, record.lengths);
}

std::string FrameRecord(uint64_t number, absl::string_view json) {
  RecordHeader header;
  header.bytes = static_cast<uint32_t>(json.size());
  header.number = number;
  header.crc = CrcOf(header, json);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&header), sizeof header), json);
}

std::string EncodeRecord(const PublicationRecord& record) {
  json regions = json::array();
  for (size_t i = 0; i < record.regions.size(); ++i) {
    const VersionPlace& place = record.regions[i];
    regions.push_back({{"name", place.name},
                       {"id", FormatId(Raw(place.region))},
                       {"version", Raw(place.number)},
                       {"members", place.incarnations},
                       {"least_in_sync", place.least_in_sync},
                       {"length", i < record.lengths.size() ? record.lengths[i] : 0}});
  }
  json out = {{"number", record.number},
              {"time_ns", record.time_ns},
              {"step", record.step},
              {"regions", regions},
              {"header", record.header_json}};
  if (!record.arrays.empty()) out["arrays"] = ArraysToJson(record.arrays);
  return FrameRecord(record.number, out.dump(-1, ' ', false, json::error_handler_t::replace));
}

uint64_t RecordNumber(absl::string_view bytes) {
  RecordHeader header;
  if (bytes.size() < sizeof header) return 0;
  memcpy(&header, bytes.data(), sizeof header);
  return header.magic == kMagic && header.format == kFormat ? header.number : 0;
}

absl::StatusOr<PublicationRecord> DecodeRecord(absl::string_view bytes) {
  RecordHeader header;
  if (bytes.size() < sizeof header) return Broken("is too short");
  memcpy(&header, bytes.data(), sizeof header);
  if (header.magic == 0) return absl::NotFoundError("there is no record");
  if (header.magic != kMagic || header.format != kFormat) return Broken("has no valid header");
  bytes.remove_prefix(sizeof header);
  if (header.bytes > bytes.size() || header.bytes > kPublicationBytesMax) return Broken("is longer than its slot");
  const absl::string_view text = bytes.substr(0, header.bytes);
  if (CrcOf(header, text) != header.crc) return Broken("has a wrong checksum");
  NRAM_ASSIGN_OR_RETURN(PublicationRecord record,
                        RecordOf(json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false)));
  if (record.number != header.number) return Broken("has two numbers");
  if (const absl::Status fits = CheckRecord(record); !fits.ok()) {
    return Broken(absl::StrCat("cannot be (", fits.message(), ")"));
  }
  return record;
}

std::string EncodeHead(const PublicationHead& head) {
  HeadChunk chunk;
  chunk.newest = head.newest;
  chunk.slot = head.slot;
  chunk.crc = Crc32c(0, &chunk, offsetof(HeadChunk, crc));
  std::string out(kChunkBytes, '\0');
  memcpy(out.data(), &chunk, sizeof chunk);
  return out;
}

absl::StatusOr<PublicationHead> DecodeHead(absl::string_view bytes) {
  HeadChunk chunk;
  const std::string error = "the list of a publication's versions is damaged, or written by a newer nram";
  if (bytes.size() < sizeof chunk) return absl::DataLossError(error);
  memcpy(&chunk, bytes.data(), sizeof chunk);
  if (chunk.magic == 0) return PublicationHead();
  const bool fits = chunk.magic == kMagic && chunk.format == kFormat &&
                    chunk.crc == Crc32c(0, &chunk, offsetof(HeadChunk, crc)) && chunk.slot < kRecordSlots;
  if (!fits) return absl::DataLossError(error);
  return PublicationHead{chunk.newest, chunk.slot};
}

}  // namespace nram
