#ifndef NRAM_CLIENT_TRANSPORT_INPROC_TRANSPORT_H_
#define NRAM_CLIENT_TRANSPORT_INPROC_TRANSPORT_H_

#include <functional>
#include <memory>

#include "base/sync.h"
#include "base/units.h"
#include "client/transport/transport.h"
#include "proto/message_service.h"

namespace nram {

// Transport to a server in the same process. The thread that starts a call executes it, through the same messages. It
// is for tests that want neither sockets nor threads, and for measuring the cost of these.
class InprocTransport : public Transport {
 public:
  using ServiceFactory = std::function<std::unique_ptr<MessageService>()>;

  // `connect` makes the serving end of a new connection.
  InprocTransport(LeaseId lease, bool urgent, ServiceFactory connect)
      : lease_(lease), urgent_(urgent), connect_(std::move(connect)) {}

  absl::Status Connect(int64_t deadline_ns) override;
  bool connected() const override;
  // Executes the call. May block until landing frames are free, or until the call's deadline.
  void Start(Call* call) override;
  void Wait(Call* call) override;
  void Disconnect() override;

 private:
  // kOk: *reply is the server's, and its payload has landed.
  absl::StatusCode ExecuteLocked(Call* call, MessageHeader* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const LeaseId lease_;
  const bool urgent_;
  const ServiceFactory connect_;
  mutable Mutex mu_;
  std::unique_ptr<MessageService> service_ ABSL_GUARDED_BY(mu_);
  uint64_t next_request_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::unique_ptr<std::byte[]> reply_ ABSL_GUARDED_BY(mu_);
  Landing landing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_INPROC_TRANSPORT_H_
