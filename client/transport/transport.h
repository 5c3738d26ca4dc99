#ifndef NRAM_CLIENT_TRANSPORT_TRANSPORT_H_
#define NRAM_CLIENT_TRANSPORT_TRANSPORT_H_

// The seam between the pool and the network: one data connection to one memory server. There are two implementations:
// sockets (TCP, Unix) and in-process. Both pass tests/conformance.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/transport/call.h"

namespace nram {

// Thread-safe: any number of threads may Start and Wait at once. Requests that are under way together are not ordered.
class Transport {
 public:
  virtual ~Transport() = default;

  // Connects and says hello, unless it is connected. The hello fences an earlier connection of the same lease and
  // class. Blocks until `deadline_ns` at most. UNAVAILABLE: no server listens there. DEADLINE_EXCEEDED: no answer.
  // FAILED_PRECONDITION: the server does not know the lease (any more). ABORTED: a newer connection was there before.
  virtual absl::Status Connect(int64_t deadline_ns) = 0;
  virtual bool connected() const = 0;

  // Begins `call`. Does not block. Without credit the call is queued (its own memory is the queue). If the transport is
  // not connected, the call is done at once with kUnavailable.
  virtual void Start(Call* call) = 0;

  // Returns when `call` is done, or its `done` has started it elsewhere. The call was started here, without `done` or
  // with wait_expected. One thread at a time may wait for a call. While it waits, it moves this connection's traffic if
  // no other thread does.
  //
  // Returns at the call's deadline at the latest. A thread that calls after the deadline first reads the received data,
  // which may take 20 ms. A deadline that passes breaks the connection, so that the request is not executed after the
  // next Connect. Other calls under way then end with kUnavailable.
  virtual void Wait(Call* call) = 0;

  // Breaks the connection. Calls under way end with kUnavailable.
  virtual void Disconnect() = 0;

  // If the connection was broken for bytes that the other end sent: the reason, once. Else empty. The transport does
  // not log the reason: it runs on its callers' threads, and the log's reader may be waiting for them.
  virtual std::string TakeBreakReason() { return ""; }
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_TRANSPORT_H_
