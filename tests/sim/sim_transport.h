#ifndef NRAM_TESTS_SIM_SIM_TRANSPORT_H_
#define NRAM_TESTS_SIM_SIM_TRANSPORT_H_

// Transport over a Network, in virtual time: SocketTransport's contract in its asynchronous form.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "client/transport/call.h"
#include "client/transport/transport.h"
#include "proto/message_reader.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace nram::sim {

struct SimTransportOptions {
  HostId client = World::kNobody;
  HostId server = World::kNobody;
  LeaseId lease{};
  bool urgent = false;
  uint64_t incarnation = 0;  // if not zero, hello fails unless the server is this one
  int64_t silence_limit_ms = 0;
  // Called with each request that is sent; may be null.
  std::function<void(const MessageHeader& request)> on_request;
};

// One thread. Connect, which would block, must not be called, and only fibers may call Wait.
class SimTransport : public Transport, private Network::Receiver, private MessageReader::Handler {
 public:
  SimTransport(World* world, Network* network, const SimTransportOptions& options);
  ~SimTransport() override;

  // Connects and says hello; `done` runs in an event, with Connect's errors. One at a time.
  void StartConnect(int64_t deadline_ns, std::function<void(absl::Status)> done);

  absl::Status Connect(int64_t deadline_ns) override;
  bool connected() const override { return connected_; }
  void Start(Call* call) override;
  void Wait(Call* call) override;
  void Disconnect() override { Break(); }
  std::string TakeBreakReason() override { return std::exchange(break_reason_, ""); }

 private:
  // The period in which a poller looks at the deadlines.
  static constexpr int64_t kLookNs = 20 * kNsPerMs;

  // Network::Receiver
  void OnConnected() override;
  void OnRefused() override { EndConnect(absl::UnavailableError("connect: refused")); }
  void OnBytes(absl::Span<const std::byte> bytes) override;
  void OnEnd() override;
  // MessageReader::Handler
  absl::StatusOr<bool> OnHeader(const MessageHeader& reply, const PayloadTables& tables, Landing* landing) override;
  absl::Status OnMessage(const MessageHeader& reply, absl::Span<const uint32_t> page_crcs) override;
  void OnCorrupt(const MessageHeader& reply) override;

  absl::Status JudgeHello(const MessageHeader& reply) const;
  void EndConnect(absl::Status status);
  void Break();
  // Looks at the deadlines when the earliest of them may have passed.
  void ScheduleLook(int64_t deadline_ns);
  // Breaks the connection after too long a silence.
  void ScheduleSilence();
  void Look();

  World* const world_;
  Network* const network_;
  const SimTransportOptions options_;

  Network::ConnectionId connection_ = 0;
  bool connected_ = false;
  std::optional<MessageReader> reader_;
  uint64_t next_request_id_ = 2;
  std::deque<Call*> calls_;  // under way, in order of their ids
  Call* landing_call_ = nullptr;
  Call* garbled_call_ = nullptr;
  std::string break_reason_;
  int64_t look_ns_ = INT64_MAX;  // when the next look is
  World::Timer look_ = 0;
  int64_t heard_ns_ = 0;
  World::Timer silence_ = 0;

  // While connecting.
  std::function<void(absl::Status)> connect_done_;
  World::Timer connect_timer_ = 0;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_SIM_TRANSPORT_H_
