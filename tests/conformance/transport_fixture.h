#ifndef NRAM_TESTS_CONFORMANCE_TRANSPORT_FIXTURE_H_
#define NRAM_TESTS_CONFORMANCE_TRANSPORT_FIXTURE_H_

// A server, and transports of each kind to it.

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/poller.h"
#include "base/test_seed.h"
#include "client/transport/call.h"
#include "client/transport/inproc_transport.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "memserver/session.h"
#include "proto/any_request.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/test_server.h"

namespace nram {

enum class Kind { kTcp, kTcpSpinning, kUnix, kInproc, kSlowNetwork };

inline std::string KindName(const ::testing::TestParamInfo<Kind>& info) {
  switch (info.param) {
    case Kind::kTcp:
      return "Tcp";
    case Kind::kTcpSpinning:
      return "TcpSpinning";
    case Kind::kUnix:
      return "Unix";
    case Kind::kInproc:
      return "Inproc";
    case Kind::kSlowNetwork:
      return "SlowNetwork";
  }
  return "";
}

class TransportTest : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr uint64_t kLease = 77;
  static constexpr uint64_t kRegion = 5;

  TransportTest() : server_(ServerOptions()) { lease_ = server_.Grant(kLease); }

  // Long enough that the server sees the next request while it polls, on a slow machine too.
  static TestDataServer::Options ServerOptions() {
    TestDataServer::Options options;
    options.data.spin.limit_us = GetParam() == Kind::kTcpSpinning ? 500 : 0;
    return options;
  }

  std::unique_ptr<Transport> Make(bool urgent = false, uint64_t lease = kLease) {
    SocketTransportOptions options{LeaseId{lease}, urgent, 0, SpinOptions{0}};
    switch (GetParam()) {
      case Kind::kTcpSpinning:
        options.spin.limit_us = 50;
        [[fallthrough]];
      case Kind::kTcp:
        return std::make_unique<SocketTransport>(ResolveEndpoint(server_.tcp()).value(), options, &poller_);
      case Kind::kUnix:
        return std::make_unique<SocketTransport>(ResolveEndpoint(server_.unix_socket()).value(), options, &poller_);
      case Kind::kInproc:
        return std::make_unique<InprocTransport>(LeaseId{lease}, urgent,
                                                 [this] { return std::make_unique<Session>(server_.context()); });
      case Kind::kSlowNetwork:
        if (relay_ == nullptr) {
          relay_ = std::make_unique<FaultyRelay>(server_.unix_socket(), TestSeed());
          relay_->SetPlan({.delay = 0.3, .delay_us_max = 500});
        }
        return std::make_unique<SocketTransport>(ResolveEndpoint(relay_->endpoint()).value(), options, &poller_);
    }
    return nullptr;
  }

  std::unique_ptr<Transport> MakeConnected(bool urgent = false, uint64_t lease = kLease) {
    auto transport = Make(urgent, lease);
    const absl::Status status = transport->Connect(DeadlineAfterMs(5000));
    EXPECT_TRUE(status.ok()) << status;
    return transport;
  }

  static void Prepare(Call* call, Op op, ChunkRange range, uint8_t flags = 0) {
    call->request = AnyRequest(op, kRegion, 1, range, flags);
    call->deadline_ns = DeadlineAfterMs(10'000);
  }

  static absl::Status Run(Transport* transport, Call* call) {
    transport->Start(call);
    transport->Wait(call);
    return CallStatus(*call, "test");
  }

  absl::Status Write(Transport* transport, ChunkRange range, const std::string& data, uint8_t flags = kFlagCreate) {
    Call call;
    Prepare(&call, Op::kWrite, range, flags);
    call.out = reinterpret_cast<const std::byte*>(data.data());
    return Run(transport, &call);
  }

  absl::StatusOr<std::string> Read(Transport* transport, ChunkRange range) {
    Call call;
    std::string data(range.bytes(), '?');
    Prepare(&call, Op::kRead, range);
    call.in = reinterpret_cast<std::byte*>(data.data());
    const absl::Status status = Run(transport, &call);
    if (!status.ok()) return status;
    return data;
  }

  TestDataServer server_;
  std::shared_ptr<Lease> lease_;
  Poller poller_;
  std::unique_ptr<FaultyRelay> relay_;
};

}  // namespace nram

#endif  // NRAM_TESTS_CONFORMANCE_TRANSPORT_FIXTURE_H_
