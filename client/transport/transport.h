#ifndef NRAM_CLIENT_TRANSPORT_TRANSPORT_H_
#define NRAM_CLIENT_TRANSPORT_TRANSPORT_H_

// The seam between the pool and the network: one data connection to one memory server. Implementations: sockets (TCP,
// Unix), in-process. Each passes tests/conformance.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/transport/call.h"

namespace nram {

// Thread-safe: any number of threads may Start and Wait at once. Requests that are under way together are not ordered.
class Transport {
 public:
  virtual ~Transport() = default;

  // Connects and says hello if it is not connected; fences an earlier connection of the same lease and class first.
  // Blocks, until `deadline_ns` at most. UNAVAILABLE: nobody there. DEADLINE_EXCEEDED: no answer. FAILED_PRECONDITION:
  // the server does not know the lease (any more). ABORTED: a newer connection has been there.
  virtual absl::Status Connect(int64_t deadline_ns) = 0;
  virtual bool connected() const = 0;

  // Begins `call`. Does not block: without credit it is queued (its own memory is the queue). Not connected: it is done
  // at once with kUnavailable.
  virtual void Start(Call* call) = 0;

  // Returns when `call`, started here without `done` or with wait_expected, is done, or was and its `done` has started
  // it elsewhere; that is at its deadline at the latest, or some 20 ms later for a thread that comes when the deadline
  // has passed: it reads first what is there. One thread at a time waits for a call; it moves this connection's traffic
  // meanwhile if no other thread does. A deadline that passes breaks the connection, so that a request nobody waits for
  // any more is not executed after the next Connect; other calls under way then end with kUnavailable.
  virtual void Wait(Call* call) = 0;

  // Breaks the connection: calls under way end with kUnavailable.
  virtual void Disconnect() = 0;

  // Why the connection was broken, if it was for what the other end sent, once; else empty. The transport does not log
  // it: its threads are its callers', and whoever has the log's other end may be waiting for them.
  virtual std::string TakeBreakReason() { return ""; }
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_TRANSPORT_H_
