#ifndef NRAM_PROTO_ANY_REQUEST_H_
#define NRAM_PROTO_ANY_REQUEST_H_

#include <glog/logging.h>

#include "base/units.h"
#include "proto/message.h"

namespace nram {

// A request of any operation but hello, for tests. Arguments that the operation does not have are ignored. A write has
// no payload bytes yet.
inline MessageHeader AnyRequest(Op op, uint64_t region, uint32_t epoch, ChunkRange range = {}, uint8_t flags = 0) {
  const RegionId id{region};
  const Epoch at{epoch};
  switch (op) {
    case Op::kPing:
      return MessageHeader(PingRequest{}, flags);
    case Op::kCreate:
      return MessageHeader(CreateRequest{.region = id, .epoch = at}, flags);
    case Op::kRead:
      return MessageHeader(ReadRequest{.region = id, .range = range, .epoch = at}, flags);
    case Op::kWrite:
      return MessageHeader(WriteRequest{.region = id, .range = range, .epoch = at}, flags);
    case Op::kTrim:
      return MessageHeader(TrimRequest{.region = id, .range = range, .epoch = at}, flags);
    case Op::kDestroy:
      return MessageHeader(DestroyRequest{.region = id, .epoch = at}, flags);
    case Op::kSeal:
      return MessageHeader(SealRequest{.region = id, .epoch = at, .version = VersionNumber{1}}, flags);
    case Op::kDropVersion:
      return MessageHeader(
          DropVersionRequest{.region = id, .epoch = at, .first = VersionNumber{1}, .last = kVersionNumberMax}, flags);
    case Op::kHello:
      break;
  }
  LOG(FATAL) << "no request on a region";
}

}  // namespace nram

#endif  // NRAM_PROTO_ANY_REQUEST_H_
