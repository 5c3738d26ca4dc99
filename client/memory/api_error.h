#ifndef NRAM_CLIENT_MEMORY_API_ERROR_H_
#define NRAM_CLIENT_MEMORY_API_ERROR_H_

// How the functions of the C headers tell errors: errno, and a text for each thread. Thread-safe.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

// Sets errno and the text; returns -1.
int ApiFail(int error, const std::string& text);
// 0, or ApiFail with the status' errno and message.
int ApiResult(const absl::Status& status);
template <typename T>
T* ApiResult(const absl::StatusOr<T*>& pointer) {
  if (pointer.ok()) return *pointer;
  ApiResult(pointer.status());
  return nullptr;
}
// Of the calling thread's last failure; valid until its next.
const char* ApiError();

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_API_ERROR_H_
