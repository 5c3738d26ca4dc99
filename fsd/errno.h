#ifndef NRAM_FSD_ERRNO_H_
#define NRAM_FSD_ERRNO_H_

// The result of a filesystem operation: 0 or an errno, as the kernel understands it. The pool speaks absl::Status;
// ErrnoOf is the one table between the two.

#include <cerrno>

#include "absl/status/status.h"

namespace nram {

enum class [[nodiscard]] Errno : int{kOk = 0};

constexpr Errno Err(int number) { return static_cast<Errno>(number); }
constexpr int Raw(Errno error) { return static_cast<int>(error); }
constexpr bool Ok(Errno error) { return error == Errno::kOk; }

// RESOURCE_EXHAUSTED is ENOSPC, INVALID_ARGUMENT is EINVAL. The other errors say that data or a server is gone: EIO.
inline Errno ErrnoOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Errno::kOk;
    case absl::StatusCode::kResourceExhausted:
      return Err(ENOSPC);
    case absl::StatusCode::kInvalidArgument:
      return Err(EINVAL);
    default:
      return Err(EIO);
  }
}

#define NRAM_RETURN_IF_ERRNO(expression)                                               \
  do {                                                                                 \
    if (const ::nram::Errno error_ = (expression); !::nram::Ok(error_)) return error_; \
  } while (false)

}  // namespace nram

#endif  // NRAM_FSD_ERRNO_H_
