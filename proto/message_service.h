#ifndef NRAM_PROTO_MESSAGE_SERVICE_H_
#define NRAM_PROTO_MESSAGE_SERVICE_H_

// The serving end of one data connection as a seam, so that messages can be served over a socket or in the same
// process.

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/message.h"
#include "proto/message_reader.h"

namespace nram {

// Room that replies are appended to.
struct ReplyBuffer {
  std::byte* data = nullptr;
  size_t capacity = 0;
  size_t used = 0;
  // While nothing waits in the buffer, a large reply may be sent from where it lies to this socket without blocking,
  // and only what the socket does not take be appended. -1: no.
  int direct_fd = -1;

  size_t room() const { return capacity - used; }
};

// Used by one thread at a time.
class MessageService {
 public:
  virtual ~MessageService() = default;

  // A request's header has arrived: checks that it may come now and says where its payload lands, as
  // MessageReader::Handler::OnHeader. False: not now; there is no landing room, or `reply_room` is too small for the
  // reply.
  virtual absl::StatusOr<bool> Begin(const MessageHeader& request, absl::Span<const ChunkMask> masks, size_t reply_room,
                                     Landing* landing) = 0;
  // Executes the request that Begin accepted, its payload landed and checked, and appends its reply. `page_crcs` are
  // its payload's, as for PayloadCrc. An error means: close the connection.
  virtual absl::Status Execute(const MessageHeader& request, absl::Span<const uint32_t> page_crcs,
                               ReplyBuffer* reply) = 0;
};

}  // namespace nram

#endif  // NRAM_PROTO_MESSAGE_SERVICE_H_
