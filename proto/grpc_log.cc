#include "proto/grpc_log.h"

#include <glog/logging.h>
#include <grpc/support/log.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/late_log.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr size_t kLineBytesMax = 300;

// It has a thread, which begins with the first line, and stays until the process ends.
void Write(gpr_log_func_args* args) {
  static LateLog* const log = new LateLog(nullptr, LateLog::kRefusalPeriodMs);
  std::string line = GrpcLogLine(args->file, args->line, args->message);
  // GPR_ASSERT's: it aborts the process next, before a line could be written late.
  if (args->severity == GPR_LOG_SEVERITY_ERROR && absl::StartsWith(args->message, "assertion failed: ")) {
    LOG(ERROR) << line;
  } else {
    log->Post(std::move(line));
  }
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
