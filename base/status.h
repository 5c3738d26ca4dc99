#ifndef NRAM_BASE_STATUS_H_
#define NRAM_BASE_STATUS_H_

// Macros that pass an error on, and the one place that makes a Status of an errno.

#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nram {

// The Status for a system call that failed with `error_number` while doing `what` ("bind 127.0.0.1:7070").
inline absl::Status ErrnoStatus(int error_number, absl::string_view what) {
  return absl::ErrnoToStatus(error_number, what);
}

// `status` with `where` put before its message; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace nram

#define NRAM_CONCAT_INNER(a, b) a##b
#define NRAM_CONCAT(a, b) NRAM_CONCAT_INNER(a, b)

#define NRAM_RETURN_IF_ERROR(expr)                                                \
  do {                                                                            \
    if (absl::Status nram_status = (expr); !nram_status.ok()) return nram_status; \
  } while (false)

#define NRAM_ASSIGN_OR_RETURN(lhs, expr) NRAM_ASSIGN_OR_RETURN_IMPL(NRAM_CONCAT(nram_result_, __LINE__), lhs, expr)
#define NRAM_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                               \
  if (!result.ok()) return result.status();           \
  lhs = std::move(result).value()

#endif  // NRAM_BASE_STATUS_H_
