// The versions' part of nram.h.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/memory/handle.h"
#include "client/memory/memory.h"
#include "client/memory/nram.h"

using nram::ApiFail;
using nram::ApiResult;
using nram::ApiUsable;

namespace {

// Where waiting is what was asked for.
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

absl::Status Choose(const nram_publish_options* options, nram::VersionRequest* request) {
  nram_publish_options given;
  nram_publish_options_init(&given);
  if (options == nullptr) return absl::OkStatus();
  // Programs that were built before there was `most`.
  constexpr size_t kFirstSize = offsetof(nram_publish_options, most);
  if (options->size < kFirstSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("nram_publish_options.size is ", options->size, ": call nram_publish_options_init()"));
  }
  const auto* const bytes = reinterpret_cast<const char*>(options);
  const size_t known = std::min(options->size, sizeof(given));
  if (std::any_of(bytes + known, bytes + options->size, [](char byte) { return byte != 0; })) {
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
  return absl::OkStatus();
}

absl::StatusOr<nram::Observed> Observe(nram_t* n, const char* name, uint64_t version, bool all, uint64_t* got) {
  if (name == nullptr || *name == '\0') {
    return absl::InvalidArgumentError("the name of what is observed is missing");
  }
  NRAM_ASSIGN_OR_RETURN(nram::Observed observed, n->memory->Observe(name, version, all));
  if (got != nullptr) *got = observed.version;
  return observed;
}

const nram::PublicationRecord* RecordOf(nram_t* n, const void* address) {
  if (!ApiUsable(n)) return nullptr;
  const nram::PublicationRecord* const record = n->memory->ObservedRecord(address);
  if (record == nullptr) ApiFail(EINVAL, "no mapping that observes a version begins at this address");
  return record;
}

}  // namespace

int nram_publish(nram_t* n, const void* address, uint64_t* version) {
  return nram_publish_all(n, &address, 1, nullptr, version);
}

int nram_publish_all(nram_t* n, const void* const* addresses, size_t count, const struct nram_publish_options* options,
                     uint64_t* version) {
  if (!ApiUsable(n)) return -1;
  nram::VersionRequest request;
  if (const absl::Status status = Choose(options, &request); !status.ok()) return ApiResult(status);
  if (count < 1 || count > nram::Publisher::kSegmentsMax) {
    return ApiFail(
        EINVAL, absl::StrCat("publishing ", count, " mappings at once: expected 1 to ", nram::Publisher::kSegmentsMax));
  }
  request.bases.assign(addresses, addresses + count);
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
  const nram::PublicationRecord* const record = RecordOf(n, address);
  return record == nullptr ? nullptr : record->header_json.c_str();
}

int nram_get_version_info(nram_t* n, const void* address, struct nram_version_info* info) {
  if (info == nullptr || info->size < sizeof(*info)) {
    return ApiFail(EINVAL, "nram_version_info.size must be sizeof(struct nram_version_info)");
  }
  const nram::PublicationRecord* const record = RecordOf(n, address);
  if (record == nullptr) return -1;
  const nram_version_info all = {
      .size = info->size, .version = record->number, .step = record->step, .time_ns = record->time_ns};
  // Fields that an older library does not know are 0.
  if (info->size > sizeof(all)) memset(info, 0, info->size);
  memcpy(info, &all, sizeof(all));
  return 0;
}
