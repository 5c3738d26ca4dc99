#ifndef NRAM_CLIENT_POOL_THREAD_DRIVER_H_
#define NRAM_CLIENT_POOL_THREAD_DRIVER_H_

#include <memory>

#include "client/pool/options.h"
#include "client/pool/server_session.h"

namespace nram {

// A pool's edge on this machine: its clock, a thread for each session that carries out the session's actions by
// blocking calls, sockets to the servers' data planes and gRPC to their control planes.
std::unique_ptr<PoolEdge> NewThreadEdge(const PoolOptions& options);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_THREAD_DRIVER_H_
