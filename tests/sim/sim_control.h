#ifndef NRAM_TESTS_SIM_SIM_CONTROL_H_
#define NRAM_TESTS_SIM_SIM_CONTROL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/transport/control_codec.h"
#include "memserver/control_service.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/world.h"

namespace nram::sim {

// One client's control calls to one server: the product's codec and the product's handlers, and the Network in gRPC's
// place. Calls are not ordered. One that has no answer may be executed later.
class SimControl {
 public:
  SimControl(World* world, Network* network, HostId client, SimServer* server)
      : world_(world), network_(network), client_(client), server_(server), codec_(server->name()) {}

  const ControlCodec& codec() const { return codec_; }

  // `done` runs once, in an event of the client, by `deadline_ns`. The reply counts if the status is OK.
  template <typename Request, typename Reply>
  void Call(const Request& request, absl::Status (ControlService::*handler)(const Request&, Reply*),
            int64_t deadline_ns, std::function<void(absl::Status, const Reply&)> done) {
    auto call = std::make_shared<Pending<Reply>>();
    call->done = std::move(done);
    call->timer = world_->At(deadline_ns, client_, [call, this] {
      Pending<Reply>::End(call.get(), codec_.Refusal(absl::StatusCode::kDeadlineExceeded, "no answer in time"), {});
    });
    network_->Post(client_, server_->host(), [this, call, request, handler] {
      Reply reply;
      absl::Status status = absl::UnavailableError("connect: refused");
      if (server_->alive()) status = (server_->control()->*handler)(request, &reply);
      network_->Post(server_->host(), client_, [this, call, status, reply = std::move(reply)] {
        world_->Cancel(call->timer);
        Pending<Reply>::End(call.get(), status.ok() ? status : codec_.Refusal(status.code(), status.message()), reply);
      });
    });
  }

 private:
  template <typename Reply>
  struct Pending {
    static void End(Pending* call, const absl::Status& status, const Reply& reply) {
      if (call->done == nullptr) return;
      std::exchange(call->done, nullptr)(status, reply);
    }
    std::function<void(absl::Status, const Reply&)> done;
    World::Timer timer = 0;
  };

  World* const world_;
  Network* const network_;
  const HostId client_;
  SimServer* const server_;
  const ControlCodec codec_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_SIM_CONTROL_H_
