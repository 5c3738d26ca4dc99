#include "members/etcd/server_record.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

// The fields by their names; `Record` is const or not.
template <typename Record>
auto FieldsOf(Record* record) {
  return std::array{std::pair("address", &record->address), std::pair("host", &record->host),
                    std::pair("domain", &record->domain),   std::pair("version", &record->version),
                    std::pair("state", &record->state),     std::pair("incarnation", &record->incarnation)};
}

}  // namespace

std::string ServerRecord::Encode() const {
  nlohmann::json out;
  for (const auto& [name, value] : FieldsOf(this)) {
    if (!value->empty()) out[name] = *value;
  }
  return out.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<ServerRecord> ServerRecord::Decode(absl::string_view text) {
  if (text.size() > kBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", text.size(), " bytes, and at most ", kBytesMax, " are accepted"));
  }
  const nlohmann::json in = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!in.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  ServerRecord record;
  for (const auto& [name, value] : FieldsOf(&record)) {
    const auto field = in.find(name);
    if (field == in.end()) continue;
    if (!field->is_string()) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a string"));
    *value = field->get<std::string>();
    if (value->size() > kFieldBytesMax || !IsPrintable(*value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is longer than ", kFieldBytesMax, " bytes, or not printable"));
    }
  }
  if (record.address.empty()) return absl::InvalidArgumentError("\"address\" is missing");
  return record;
}

}  // namespace nram
