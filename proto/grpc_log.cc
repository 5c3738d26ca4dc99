#include "proto/grpc_log.h"

#include <grpc/support/log.h>

#include "absl/strings/str_cat.h"
#include "base/late_log.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr size_t kLineBytesMax = 300;

// It has a thread, which begins with the first line, and stays until the process ends.
void Write(gpr_log_func_args* args) {
  static LateLog* const log = new LateLog(nullptr, LateLog::kRefusalPeriodMs);
  log->Post(GrpcLogLine(args->file, args->line, args->message));
}

}  // namespace

void TakeGrpcLog() {
  static const bool taken = [] {
    gpr_set_log_function(&Write);
    return true;
  }();
  (void)taken;
}

std::string GrpcLogLine(absl::string_view file, int line, absl::string_view message) {
  const size_t slash = file.rfind('/');
  if (slash != absl::string_view::npos) file.remove_prefix(slash + 1);
  return Printable(absl::StrCat("gRPC: ", file, ":", line, ": ", message), kLineBytesMax);
}

}  // namespace nram
