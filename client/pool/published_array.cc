#include "client/pool/published_array.h"

#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

using nlohmann::json;

struct Element {
  absl::string_view name;
  uint64_t bytes = 0;
  uint64_t alignment = 0;
};

constexpr std::array<Element, 15> kElements = {{{"", 0, 0},
                                                {"int8", 1, 1},
                                                {"int16", 2, 2},
                                                {"int32", 4, 4},
                                                {"int64", 8, 8},
                                                {"uint8", 1, 1},
                                                {"uint16", 2, 2},
                                                {"uint32", 4, 4},
                                                {"uint64", 8, 8},
                                                {"float16", 2, 2},
                                                {"float32", 4, 4},
                                                {"float64", 8, 8},
                                                {"complex64", 8, 4},
                                                {"complex128", 16, 8},
                                                {"bool", 1, 1}}};

const Element& ElementOf(ElementType type) {
  const auto i = static_cast<size_t>(type);
  return kElements[i < kElements.size() ? i : 0];
}

absl::Status Wrong(const PublishedArray& array, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("array ", Quoted(array.name), " ", what));
}

absl::Status CheckArray(const PublishedArray& array, absl::Span<const uint64_t> lengths) {
  if (array.name.empty() || array.name.size() > kArrayNameBytesMax || !IsPrintable(array.name)) {
    return Wrong(array, absl::StrCat("of a version: its name must have 1 to ", kArrayNameBytesMax, " printable bytes"));
  }
  const Element& element = ElementOf(array.type);
  if (element.bytes == 0) {
    return Wrong(array, absl::StrCat("has elements of type ", static_cast<uint32_t>(array.type),
                                     ", which is unknown: expected 1 to ", kElements.size() - 1));
  }
  if (array.extents.size() > kDimensionsMax) {
    return Wrong(array, absl::StrCat("has ", array.extents.size(), " dimensions; the maximum is ", kDimensionsMax));
  }
  if (array.mapping >= lengths.size()) {
    return Wrong(array, absl::StrCat("is in mapping ", array.mapping, ", and the version has ", lengths.size()));
  }
  if (array.offset % element.alignment != 0) {
    return Wrong(array, absl::StrCat("begins at byte ", array.offset, " of its mapping: ", element.name,
                                     " begins at multiples of ", element.alignment));
  }
  const uint64_t length = lengths[array.mapping];
  // Elements that fit from there on, for as many indices as are looked at already.
  uint64_t fit = array.offset > length ? 0 : (length - array.offset) / element.bytes;
  for (const uint64_t extent : array.extents) {
    if (extent > 1) fit /= extent;
  }
  if (fit == 0) {
    return Wrong(array, absl::StrCat("(", FormatArrayType(array), ") from byte ", array.offset,
                                     " on does not fit into its mapping of ", length, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("an array of the version has no ", what));
}

bool IsNumber(const json& in, const char* key, uint64_t most) {
  const auto it = in.find(key);
  return it != in.end() && it->is_number_unsigned() && it->get<uint64_t>() <= most;
}

absl::StatusOr<PublishedArray> ArrayFromJson(const json& in) {
  if (!in.is_object()) return Broken("description");
  PublishedArray array;
  const auto text = [&](const char* key) -> const std::string* {
    const auto it = in.find(key);
    return it == in.end() ? nullptr : it->get_ptr<const std::string*>();
  };
  const std::string* const name = text("name");
  if (name == nullptr) return Broken("name");
  array.name = *name;
  const std::string* const type = text("type");
  if (type == nullptr) return Broken("type");
  for (size_t i = 1; i < kElements.size(); ++i) {
    if (kElements[i].name == *type) array.type = static_cast<ElementType>(i);
  }
  if (array.type == ElementType{}) return Wrong(array, absl::StrCat("has elements of an unknown type"));
  const std::string* const order = text("order");
  if (order == nullptr || (*order != "C" && *order != "Fortran")) return Broken("order");
  array.fortran = *order == "Fortran";
  const auto extents = in.find("dims");
  if (extents == in.end() || !extents->is_array() || extents->size() > kDimensionsMax) return Broken("dimensions");
  for (const json& extent : *extents) {
    if (!extent.is_number_unsigned()) return Broken("dimensions");
    array.extents.push_back(extent.get<uint64_t>());
  }
  if (!IsNumber(in, "mapping", UINT32_MAX) || !IsNumber(in, "offset", UINT64_MAX)) return Broken("place");
  array.mapping = in["mapping"].get<uint32_t>();
  array.offset = in["offset"].get<uint64_t>();
  return array;
}

}  // namespace

uint64_t ElementBytes(ElementType type) { return ElementOf(type).bytes; }

absl::string_view ElementName(ElementType type) { return ElementOf(type).name; }

uint64_t BytesOf(const PublishedArray& array) {
  uint64_t bytes = ElementBytes(array.type);
  for (const uint64_t extent : array.extents) bytes *= extent;
  return bytes;
}

absl::Status CheckArrays(absl::Span<const PublishedArray> arrays, absl::Span<const uint64_t> lengths) {
  if (arrays.size() > kArraysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a version has ", arrays.size(), " arrays; the maximum is ", kArraysMax));
  }
  std::set<absl::string_view> names;
  for (const PublishedArray& array : arrays) {
    NRAM_RETURN_IF_ERROR(CheckArray(array, lengths));
    if (!names.insert(array.name).second) return Wrong(array, "appears twice: each needs its own name");
  }
  return absl::OkStatus();
}

std::string FormatArrayType(const PublishedArray& array) {
  return absl::StrCat(ElementName(array.type), "[", absl::StrJoin(array.extents, ", "), "]",
                      array.fortran && array.extents.size() > 1 ? " in Fortran's order" : "");
}

json ArraysToJson(absl::Span<const PublishedArray> arrays) {
  json out = json::array();
  for (const PublishedArray& array : arrays) {
    out.push_back({{"name", array.name},
                   {"type", std::string(ElementName(array.type))},
                   {"order", array.fortran ? "Fortran" : "C"},
                   {"dims", array.extents},
                   {"mapping", array.mapping},
                   {"offset", array.offset}});
  }
  return out;
}

absl::StatusOr<std::vector<PublishedArray>> ArraysFromJson(const json& in) {
  if (!in.is_array() || in.size() > kArraysMax) {
    return absl::InvalidArgumentError(absl::StrCat("the arrays of a version are no list of at most ", kArraysMax));
  }
  std::vector<PublishedArray> arrays;
  for (const json& one : in) {
    NRAM_ASSIGN_OR_RETURN(PublishedArray array, ArrayFromJson(one));
    arrays.push_back(std::move(array));
  }
  return arrays;
}

}  // namespace nram
