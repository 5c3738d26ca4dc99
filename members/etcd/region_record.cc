#include "members/etcd/region_record.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

absl::StatusOr<std::string> Text(const nlohmann::json& value, absl::string_view name) {
  if (!value.is_string()) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a string"));
  std::string text = value.get<std::string>();
  if (text.size() > RegionRecord::kFieldBytesMax || !IsPrintable(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is longer than ", RegionRecord::kFieldBytesMax, " bytes, or not printable"));
  }
  return text;
}

}  // namespace

std::string RegionRecord::Encode() const {
  const nlohmann::json out = {
      {"id", FormatId(id)}, {"servers", servers}, {"epoch", epoch}, {"client", client}, {"time", time}};
  return out.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<RegionRecord> RegionRecord::Decode(absl::string_view text) {
  if (text.size() > kBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", text.size(), " bytes, and at most ", kBytesMax, " are accepted"));
  }
  const nlohmann::json in = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!in.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  RegionRecord record;
  const auto id = in.find("id");
  if (id == in.end()) return absl::InvalidArgumentError("\"id\" is missing");
  NRAM_ASSIGN_OR_RETURN(const std::string id_text, Text(*id, "id"));
  const absl::StatusOr<uint64_t> number = ParseId(id_text);
  if (!number.ok()) return absl::InvalidArgumentError("\"id\" is not the id of a region");
  record.id = *number;
  const auto servers = in.find("servers");
  if (servers == in.end() || !servers->is_array() || servers->empty() || servers->size() > kServersMax) {
    return absl::InvalidArgumentError(absl::StrCat("\"servers\" is not a list of 1 to ", kServersMax));
  }
  for (const nlohmann::json& server : *servers) {
    NRAM_ASSIGN_OR_RETURN(std::string address, Text(server, "servers"));
    record.servers.push_back(std::move(address));
  }
  if (const auto epoch = in.find("epoch"); epoch != in.end()) {
    if (!epoch->is_number_unsigned() || epoch->get<uint64_t>() > UINT32_MAX) {
      return absl::InvalidArgumentError("\"epoch\" is not a 32-bit number");
    }
    record.epoch = epoch->get<uint32_t>();
  }
  for (const auto& [name, value] : {std::pair("client", &record.client), std::pair("time", &record.time)}) {
    const auto field = in.find(name);
    if (field == in.end()) continue;
    NRAM_ASSIGN_OR_RETURN(*value, Text(*field, name));
  }
  return record;
}

}  // namespace nram
