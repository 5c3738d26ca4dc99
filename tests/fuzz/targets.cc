#include "tests/fuzz/targets.h"

namespace nram {

absl::Span<const FuzzTarget> FuzzTargets() {
  static constexpr FuzzTarget kTargets[] = {
      {"messages", &FuzzMessages}, {"session", &FuzzSession}, {"replies", &FuzzReplies},
      {"control", &FuzzControl},   {"fuse", &FuzzFuse},       {"publication", &FuzzPublication},
      {"sort", &FuzzSort},         {"text", &FuzzText},       {"tls", &FuzzTls},
      {"http2", &FuzzHttp2},
  };
  return kTargets;
}

}  // namespace nram
