#include "client/memory/api_error.h"

#include <cerrno>
#include <cstdio>

namespace nram {
namespace {

// Plain bytes, which exist to the very end of a thread.
thread_local char last_error[1024];

int ErrnoOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return EINVAL;
    case absl::StatusCode::kResourceExhausted:
      return ENOMEM;
    case absl::StatusCode::kNotFound:
      return ENOENT;
    case absl::StatusCode::kAlreadyExists:
      return EEXIST;
    case absl::StatusCode::kFailedPrecondition:
      return EBUSY;
    case absl::StatusCode::kPermissionDenied:
      return EPERM;
    case absl::StatusCode::kOutOfRange:
      return ENOSPC;
    case absl::StatusCode::kUnimplemented:
      return ENOTSUP;
    default:
      return EIO;
  }
}

}  // namespace

int ApiFail(int error, const std::string& text) {
  snprintf(last_error, sizeof(last_error), "%s", text.c_str());
  errno = error;
  return -1;
}

int ApiResult(const absl::Status& status) {
  return status.ok() ? 0 : ApiFail(ErrnoOf(status), std::string(status.message()));
}

const char* ApiError() { return last_error; }

}  // namespace nram
