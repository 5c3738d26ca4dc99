#ifndef NRAM_TESTS_SIM_FIBER_CONTROL_H_
#define NRAM_TESTS_SIM_FIBER_CONTROL_H_

#include <memory>

#include "client/transport/control_client.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/world.h"

namespace nram::sim {

// A server's control plane for fibers of the host `client`, whose calls wait in virtual time. All outlive it.
std::unique_ptr<ControlClient> NewFiberControl(World* world, Network* network, HostId client, SimServer* server);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_FIBER_CONTROL_H_
