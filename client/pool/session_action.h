#ifndef NRAM_CLIENT_POOL_SESSION_ACTION_H_
#define NRAM_CLIENT_POOL_SESSION_ACTION_H_

// The actions that a session asks of its driver, and their outcomes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/pool/deferred_destroys.h"
#include "client/pool/options.h"
#include "client/pool/reserver.h"
#include "client/transport/control_client.h"
#include "client/transport/transport.h"

namespace nram {

// One life of a server, from a start to its end, and the two connections to it. A call that is started on them is
// executed in this life or never. Lives as long as the session; the connections break and are made anew meanwhile.
struct ServerLife {
  uint64_t incarnation = 0;
  std::unique_ptr<Transport> bulk;
  std::unique_ptr<Transport> urgent;

  Transport* transport(IoClass io_class) const { return io_class == IoClass::kUrgent ? urgent.get() : bulk.get(); }
  // Both connections are up. A connection that broke may have left a request at the server, to be executed until its
  // successor says hello. Nothing that changes pages may overtake it on the other connection.
  bool connected() const { return bulk->connected() && urgent->connected(); }
};

// An action for the driver: one exchange with the server, or a few. It ends by `deadline_ns`.
struct SessionAction {
  enum class Kind {
    kNone,      // nothing until `deadline_ns`, or until SessionDriver::Wake
    kHello,     // control: Hello
    kGrant,     // control: GrantLease(lease, client_name, ttl_ms)
    kDial,      // make the connections of the life that `hello` tells of; they are not connected yet
    kConnect,   // connect both of `life`
    kPing,      // over the urgent connection of `life`
    kRenew,     // control: RenewLease
    kReserve,   // control: Reserve(pages, order)
    kDestroy,   // over the bulk connection of `life`, all of `destroys` at once
    kUndo,      // control: EndLease(undo.lease), then DestroyRegion(undo.region)
    kEndLease,  // control: EndLease
    kFinished,  // nothing any more: the session has stopped
  };
  Kind kind = Kind::kNone;
  int64_t deadline_ns = 0;
  int64_t asked_ns = 0;
  int64_t ttl_ms = 0;
  int64_t pages = 0;
  ReserveOrder order;
  CopiesReport copies;     // kRenew
  Reserver::Ask ask;       // the session's own
  uint64_t room_look = 0;  // the session's own
  ServerHello hello;
  ServerLife* life = nullptr;
  std::vector<DeferredDestroys::Destroy> destroys;
  DeferredDestroys::Undo undo;
};

// How an action ended. `status` OK: the server answered, and did it.
struct SessionOutcome {
  absl::Status status;
  ServerHello hello;                 // kHello
  LeaseInfo lease;                   // kGrant, kRenew, kReserve
  std::unique_ptr<ServerLife> life;  // kDial
  std::string data_plane;            // kDial: where the connections go, for people
  std::string broken;                // kConnect: why the connections of before were broken, if the server is to blame
  bool asks_back = false;            // kPing: the server asks for memory
  Reason reason = Reason::kOk;       // kPing; kDestroy: kLeaseEnded, if the server has said so to one
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SESSION_ACTION_H_
