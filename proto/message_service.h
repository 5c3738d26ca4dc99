#ifndef NRAM_PROTO_MESSAGE_SERVICE_H_
#define NRAM_PROTO_MESSAGE_SERVICE_H_

// The seam to the serving end of one data connection. It serves messages over a socket or in the same process.

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tls/channel.h"
#include "proto/message.h"
#include "proto/message_reader.h"

namespace nram {

// Replies are appended to this buffer.
struct ReplyBuffer {
  std::byte* data = nullptr;
  size_t capacity = 0;
  size_t used = 0;
  // While the buffer is empty, a large reply may be sent here from where it lies; only the bytes that are not taken are
  // appended. Null: not.
  Channel* direct = nullptr;

  size_t room() const { return capacity - used; }
};

// Used by one thread at a time.
class MessageService {
 public:
  virtual ~MessageService() = default;

  // A request's header has arrived. Checks that it may come now, and says where its payload lands, like
  // MessageReader::Handler::OnHeader. False: not now; no landing frames are free, or `reply_room` is too small for the
  // reply.
  virtual absl::StatusOr<bool> Begin(const MessageHeader& request, const PayloadTables& tables, size_t reply_room,
                                     Landing* landing) = 0;
  // Executes the request that Begin accepted, after its payload has landed and was checked. Appends its reply.
  // `page_crcs`: the payload's, as for PayloadCrc. An error means: close the connection.
  virtual absl::Status Execute(const MessageHeader& request, absl::Span<const uint32_t> page_crcs,
                               ReplyBuffer* reply) = 0;
};

}  // namespace nram

#endif  // NRAM_PROTO_MESSAGE_SERVICE_H_
