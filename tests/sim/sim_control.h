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
// place. Calls are not ordered. An unanswered call may be executed later, also when this object is destroyed.
class SimControl {
 public:
  // All live longer than any event of the world.
  SimControl(World* world, Network* network, HostId client, SimServer* server)
      : way_(std::make_shared<const Way>(Way{world, network, client, server, ControlCodec(server->name())})) {}

  const ControlCodec& codec() const { return way_->codec; }

  // `done` runs once, in an event of the client, by `deadline_ns`. The reply counts if the status is OK.
  template <typename Request, typename Reply>
  void Call(const Request& request, absl::Status (ControlService::*handler)(const Caller&, const Request&, Reply*),
            int64_t deadline_ns, std::function<void(absl::Status, const Reply&)> done) {
    auto call = std::make_shared<Pending<Reply>>();
    call->way = way_;
    call->done = std::move(done);
    call->timer = way_->world->At(deadline_ns, way_->client, [call] {
      call->End(call->way->codec.Refusal(absl::StatusCode::kDeadlineExceeded, "no answer in time"), {});
    });
    way_->network->Post(way_->client, way_->server->host(), [call, request, handler] {
      const Way& way = *call->way;
      Reply reply;
      absl::Status status = absl::UnavailableError("connect: refused");
      if (way.server->alive()) status = (way.server->control()->*handler)(way.server->caller(), request, &reply);
      way.network->Post(way.server->host(), way.client, [call, status, reply = std::move(reply)] {
        call->way->world->Cancel(call->timer);
        call->End(status.ok() ? status : call->way->codec.Refusal(status.code(), status.message()), reply);
      });
    });
  }

 private:
  struct Way {
    World* world;
    Network* network;
    HostId client;
    SimServer* server;
    ControlCodec codec;
  };
  template <typename Reply>
  struct Pending {
    void End(const absl::Status& status, const Reply& reply) {
      if (done != nullptr) std::exchange(done, nullptr)(status, reply);
    }
    std::shared_ptr<const Way> way;
    std::function<void(absl::Status, const Reply&)> done;
    World::Timer timer = 0;
  };

  const std::shared_ptr<const Way> way_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_SIM_CONTROL_H_
