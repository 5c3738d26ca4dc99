// The versions' part of nram.h.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/memory/handle.h"
#include "client/memory/memory.h"
#include "client/memory/nram.h"

using nram::ApiFail;
using nram::ApiResult;
using nram::ApiUsable;

namespace {

static_assert(static_cast<int>(nram::ElementType::kInt8) == NRAM_INT8);
static_assert(static_cast<int>(nram::ElementType::kUint8) == NRAM_UINT8);
static_assert(static_cast<int>(nram::ElementType::kFloat16) == NRAM_FLOAT16);
static_assert(static_cast<int>(nram::ElementType::kComplex64) == NRAM_COMPLEX64);
static_assert(static_cast<int>(nram::ElementType::kBool) == NRAM_BOOL);
static_assert(nram::kDimensionsMax == NRAM_DIMENSIONS_MAX);

// The result of a call whose purpose is to wait.
int WaitResult(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) return ApiFail(ETIMEDOUT, std::string(status.message()));
  return ApiResult(status);
}

// A version that could not be published is EIO, whatever the reason.
int PublishedResult(const absl::Status& status) {
  if (absl::IsUnknown(status)) return ApiFail(EINPROGRESS, std::string(status.message()));
  if (status.ok() || absl::IsDeadlineExceeded(status) || absl::IsInvalidArgument(status)) return WaitResult(status);
  return ApiFail(EIO, std::string(status.message()));
}

// The bytes of a structure behind those that this library knows.
bool HasUnknown(const void* given, size_t known, size_t size) {
  const auto* const bytes = static_cast<const char*>(given);
  return known < size && std::any_of(bytes + known, bytes + size, [](char byte) { return byte != 0; });
}

absl::StatusOr<nram::PublishedArray> Describe(nram_t* n, const nram_array& given,
                                              const std::vector<const void*>& bases) {
  nram::PublishedArray array;
  if (given.name == nullptr) return absl::InvalidArgumentError("nram_array.name is NULL: give each array a name");
  array.name = given.name;
  array.type = static_cast<nram::ElementType>(given.type);
  const std::string what = absl::StrCat("array ", nram::Quoted(array.name));
  if (given.order != NRAM_ORDER_C && given.order != NRAM_ORDER_FORTRAN) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": nram_array.order is ", static_cast<int>(given.order), ": expected 0 or 1"));
  }
  array.fortran = given.order == NRAM_ORDER_FORTRAN;
  if (given.dimensions > NRAM_DIMENSIONS_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", given.dimensions, " dimensions: expected 0 to ",
                                                   static_cast<int>(NRAM_DIMENSIONS_MAX)));
  }
  array.extents.assign(given.extents, given.extents + given.dimensions);
  // An array without elements is nowhere, such as an empty container's.
  if (given.data == nullptr && absl::c_linear_search(array.extents, 0)) return array;
  const auto at = reinterpret_cast<uintptr_t>(given.data);
  for (size_t i = 0; i < bases.size(); ++i) {
    const auto base = reinterpret_cast<uintptr_t>(bases[i]);
    if (at < base || at - base >= n->memory->LengthOf(bases[i])) continue;
    array.mapping = static_cast<uint32_t>(i);
    array.offset = at - base;
    return array;
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " begins in none of the published mappings"));
}

absl::Status DescribeAll(nram_t* n, const nram_publish_options& options, nram::VersionRequest* request) {
  if (options.array_count == 0) return absl::OkStatus();
  if (options.arrays == nullptr || options.array_count > nram::kArraysMax) {
    return absl::InvalidArgumentError(absl::StrCat("nram_publish_options.array_count is ", options.array_count,
                                                   ": expected at most ", nram::kArraysMax, ", and as many arrays"));
  }
  const size_t size = options.arrays->size;
  if (size < sizeof(nram_array)) {
    return absl::InvalidArgumentError(absl::StrCat("nram_array.size is ", size, ": call nram_array_init()"));
  }
  const auto* at = reinterpret_cast<const char*>(options.arrays);
  for (size_t i = 0; i < options.array_count; ++i, at += size) {
    nram_array given;
    memcpy(&given, at, sizeof(given));
    if (given.size != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("nram_array.size is ", given.size, " after ", size, ": all arrays must have the same"));
    }
    if (HasUnknown(at, sizeof(given), size)) {
      return absl::InvalidArgumentError("nram_array has a field that this libnram does not know: install a newer one");
    }
    NRAM_ASSIGN_OR_RETURN(nram::PublishedArray array, Describe(n, given, request->bases));
    request->arrays.push_back(std::move(array));
  }
  return absl::OkStatus();
}

absl::Status Choose(nram_t* n, const nram_publish_options* options, nram::VersionRequest* request) {
  nram_publish_options given;
  nram_publish_options_init(&given);
  if (options == nullptr) return absl::OkStatus();
  // Programs that were built before there was `most`.
  constexpr size_t kFirstSize = offsetof(nram_publish_options, most);
  if (options->size < kFirstSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("nram_publish_options.size is ", options->size, ": call nram_publish_options_init()"));
  }
  const size_t known = std::min(options->size, sizeof(given));
  if (HasUnknown(options, known, options->size)) {
    return absl::InvalidArgumentError("an option is set that this libnram does not know: install a newer one");
  }
  memcpy(&given, options, known);
  if (given.keep < NRAM_KEEP_UNTIL_DROPPED) {
    return absl::InvalidArgumentError(absl::StrCat("nram_publish_options.keep is ", given.keep,
                                                   ": expected NRAM_KEEP_UNTIL_DROPPED, or 0 or more seconds"));
  }
  if (given.when_full > NRAM_FULL_FAIL) {
    return absl::InvalidArgumentError(
        absl::StrCat("nram_publish_options.when_full is ", static_cast<int>(given.when_full), ": expected 0 to 2"));
  }
  request->keep = static_cast<nram::VersionKeep>(given.keep);  // -1 is all ones there
  if (given.history != 0) request->history = given.history;
  request->most = given.most;
  request->when_full = given.when_full == NRAM_FULL_WAIT   ? nram::WhenFull::kWait
                       : given.when_full == NRAM_FULL_FAIL ? nram::WhenFull::kFail
                                                           : nram::WhenFull::kDropOldest;
  request->wait_ms = given.wait_ms;
  request->step = given.step;
  request->header_json = given.header == nullptr ? "" : given.header;
  return DescribeAll(n, given, request);
}

absl::StatusOr<nram::Observed> Observe(nram_t* n, const char* name, uint64_t version, bool all, uint64_t* got) {
  if (name == nullptr || *name == '\0') {
    return absl::InvalidArgumentError("the name of the publication is missing");
  }
  NRAM_ASSIGN_OR_RETURN(nram::Observed observed, n->memory->Observe(name, version, all));
  if (got != nullptr) *got = observed.version;
  return observed;
}

// Its answer is the caller's until nram_next(): another thread may be in that, and gets no broken memory here.
std::shared_ptr<const nram::PublicationRecord> RecordOf(nram_t* n, const void* address) {
  if (!ApiUsable(n)) return nullptr;
  std::shared_ptr<const nram::PublicationRecord> record = n->memory->ObservedRecord(address);
  if (record == nullptr) ApiFail(EINVAL, "no mapping that observes a version begins at this address");
  return record;
}

// Fills *array, of any version of the structure.
int GiveArray(nram_t* n, const void* address, const nram::PublishedArray& found, nram_array* array) {
  const absl::StatusOr<const std::byte*> data = n->memory->ObservedData(address, found);
  if (!data.ok()) return ApiResult(data.status());
  nram_array all;
  nram_array_init(&all);
  all.size = array->size;
  all.name = found.name.c_str();
  all.data = *data;
  all.type = static_cast<nram_element>(found.type);
  all.order = found.fortran ? NRAM_ORDER_FORTRAN : NRAM_ORDER_C;
  all.dimensions = static_cast<uint32_t>(found.extents.size());
  all.mapping = found.mapping;
  all.offset = found.offset;
  std::copy(found.extents.begin(), found.extents.end(), all.extents);
  if (array->size > sizeof(all)) memset(array, 0, array->size);
  memcpy(array, &all, sizeof(all));
  return 0;
}

// Null: the error is set.
std::shared_ptr<const nram::PublicationRecord> RecordFor(nram_t* n, const void* address, const nram_array* array) {
  if (array == nullptr || array->size < sizeof(*array)) {
    ApiFail(EINVAL, "nram_array.size must be sizeof(struct nram_array): call nram_array_init()");
    return nullptr;
  }
  return RecordOf(n, address);
}

}  // namespace

int nram_publish(nram_t* n, const void* address, uint64_t* version) {
  return nram_publish_all(n, &address, 1, nullptr, version);
}

int nram_publish_all(nram_t* n, const void* const* addresses, size_t count, const struct nram_publish_options* options,
                     uint64_t* version) {
  if (!ApiUsable(n)) return -1;
  nram::VersionRequest request;
  if (count < 1 || count > nram::Publisher::kSegmentsMax) {
    return ApiFail(
        EINVAL, absl::StrCat("publishing ", count, " mappings at once: expected 1 to ", nram::Publisher::kSegmentsMax));
  }
  request.bases.assign(addresses, addresses + count);
  if (const absl::Status status = Choose(n, options, &request); !status.ok()) return ApiResult(status);
  const absl::StatusOr<uint64_t> number = n->memory->Publish(request);
  if (!number.ok()) return ApiResult(number.status());
  if (version != nullptr) *version = *number;
  return 0;
}

int nram_published(nram_t* n, const void* address, uint64_t version, uint32_t timeout_ms) {
  if (!ApiUsable(n)) return -1;
  return PublishedResult(n->memory->AwaitPublished(address, version, nram::DeadlineAfterMs(timeout_ms)));
}

int nram_drop_version(nram_t* n, const void* address, uint64_t version) {
  return ApiUsable(n) ? ApiResult(n->memory->DropVersion(address, version)) : -1;
}

void* nram_observe(nram_t* n, const char* name, uint64_t version, uint64_t* got) {
  if (!ApiUsable(n)) return nullptr;
  const absl::StatusOr<nram::Observed> observed = Observe(n, name, version, /*all=*/false, got);
  if (observed.ok()) return observed->bases[0];
  ApiResult(observed.status());
  return nullptr;
}

int nram_observe_all(nram_t* n, const char* name, uint64_t version, void** addresses, size_t* count, uint64_t* got) {
  if (!ApiUsable(n)) return -1;
  const absl::StatusOr<nram::Observed> observed = Observe(n, name, version, /*all=*/true, got);
  if (!observed.ok()) return ApiResult(observed.status());
  const size_t room = *count;
  *count = observed->bases.size();
  if (*count > room) {
    for (std::byte* const base : observed->bases) (void)n->memory->Unmap(base);
    return ApiFail(EINVAL, absl::StrCat("the version has ", *count, " mappings, and there is room for ", room));
  }
  std::copy(observed->bases.begin(), observed->bases.end(), addresses);
  return 0;
}

int nram_next(nram_t* n, void* address, uint32_t timeout_ms, uint64_t* got) {
  if (!ApiUsable(n)) return -1;
  const absl::StatusOr<uint64_t> next = n->memory->Next(address, nram::DeadlineAfterMs(timeout_ms));
  if (!next.ok()) return WaitResult(next.status());
  if (got != nullptr) *got = *next;
  return 0;
}

const char* nram_version_header(nram_t* n, const void* address) {
  const auto record = RecordOf(n, address);
  return record == nullptr ? nullptr : record->header_json.c_str();
}

int nram_find_array(nram_t* n, const void* address, const char* name, struct nram_array* array) {
  const auto record = RecordFor(n, address, array);
  if (record == nullptr) return -1;
  if (name == nullptr) return ApiFail(EINVAL, "the name of the array is missing");
  for (const nram::PublishedArray& one : record->arrays) {
    if (one.name == name) return GiveArray(n, address, one, array);
  }
  return ApiFail(ENOENT, absl::StrCat("version ", record->number, " has no array ", nram::Quoted(name), " among its ",
                                      record->arrays.size()));
}

int nram_get_array(nram_t* n, const void* address, size_t index, struct nram_array* array) {
  const auto record = RecordFor(n, address, array);
  if (record == nullptr) return -1;
  if (index < record->arrays.size()) return GiveArray(n, address, record->arrays[index], array);
  return ApiFail(ENOENT, absl::StrCat("version ", record->number, " has ", record->arrays.size(), " arrays, and none ",
                                      index, ": they are counted from 0"));
}

int nram_get_version_info(nram_t* n, const void* address, struct nram_version_info* info) {
  if (info == nullptr || info->size < sizeof(*info)) {
    return ApiFail(EINVAL, "nram_version_info.size must be sizeof(struct nram_version_info)");
  }
  const auto record = RecordOf(n, address);
  if (record == nullptr) return -1;
  const nram_version_info all = {
      .size = info->size, .version = record->number, .step = record->step, .time_ns = record->time_ns};
  // Fields that an older library does not know are 0.
  if (info->size > sizeof(all)) memset(info, 0, info->size);
  memcpy(info, &all, sizeof(all));
  return 0;
}
