#ifndef NRAM_PROTO_GRPC_LOG_H_
#define NRAM_PROTO_GRPC_LOG_H_

#include <string>

#include "absl/strings/string_view.h"

namespace nram {

// From now on gRPC's log lines of this process go to glog, through a LateLog: gRPC writes bytes of its peers into them
// as they come, and as often as they come. Any number of calls, from any thread, are one. Each user of gRPC calls it
// before it makes a server or a channel.
void TakeGrpcLog();

// A line as it is written: printable, on one line, and not long. `file`: as gRPC names it, with its path.
std::string GrpcLogLine(absl::string_view file, int line, absl::string_view message);

}  // namespace nram

#endif  // NRAM_PROTO_GRPC_LOG_H_
