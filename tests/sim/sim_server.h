#ifndef NRAM_TESTS_SIM_SIM_SERVER_H_
#define NRAM_TESTS_SIM_SIM_SERVER_H_

// A memory server in virtual time: the product's core, sessions and control handlers, and in place of its sockets and
// threads the Network and the World. It has many lives.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memserver/compactor.h"
#include "memserver/control_service.h"
#include "memserver/server_core.h"
#include "proto/message.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"
#include "tests/util/evil_donor.h"

namespace nram::sim {

struct SimServerOptions {
  uint64_t ceiling_bytes = 24 * kMiB;
  int64_t lease_ttl_ms = 10'000;
};

class SimServer : public Network::Listener {
 public:
  SimServer(World* world, Network* network, int index, const SimServerOptions& options);
  ~SimServer() override;

  int index() const { return index_; }
  HostId host() const { return host_; }
  const std::string& name() const { return world_->NameOf(host_); }

  // --- Its lives.
  // A new life, empty. Only while there is none.
  void Start();
  // The process ends. `power_fails`: silently, without a message to its peers.
  void Kill(bool power_fails);
  bool alive() const { return core_ != nullptr; }
  // Null while there is no life.
  ServerCore* core() { return core_.get(); }
  // The bytes of the frames in use that hold pages.
  uint64_t page_frame_bytes() const;
  ControlService* control() { return control_.get(); }
  // All clients are of one tenant.
  Caller caller() { return {core_->tenants().Of(0), "cn:sim", "user"}; }

  // --- Faults.
  // Takes all free room except `leave_pages`, as other clients would, until Unfill.
  void Fill(uint64_t leave_pages);
  void Unfill();
  bool filled() const { return filled_pages_ > 0; }
  // Its host needs memory, so that it may hold `percent` of its present memory, until Unpress. The share changes a
  // little. A new life is not pressed.
  void Press(uint64_t percent);
  void Unpress();
  bool pressed() const { return allowed_bytes_.has_value(); }
  // Changes one bit of a page's data. False: the page holds nothing.
  bool FlipBit(RegionId region, uint64_t page);

  // From now on it lies about sealed pages, in one of `one_in` replies to reads; 0: no more.
  void SetEvil(uint64_t one_in) { evil_one_in_ = one_in; }
  uint64_t lies() const { return evil_.lies(); }
  std::function<void(RegionId region, ChunkRange range, const char* lie)> on_lie;  // may be null

  // Called with the pages of each sealed write. May be null.
  std::function<void(RegionId region, uint64_t page, const PageSeal& seal, uint32_t crc)> on_sealed;
  // Called when a life is about to end, and when a lease has ended in one. May be null.
  std::function<void()> on_death;
  std::function<void(const Lease& lease)> on_lease_ended;
  // Called when the server has ended an expendable lease, and destroyed its regions. May be null.
  std::function<void(const Lease& lease)> on_lease_given_up;

  // The server's remarks about giving back. May be null.
  std::function<void(const std::string& remark)> on_remark;

  // Network::Listener
  Network::Receiver* Accept(Network::ConnectionId id) override;

 private:
  class ServerConnection;
  friend class ServerConnection;

  void ScheduleTick();
  void Tick();
  void GiveBackSome();
  // Takes a frame in each of some extents. Pages lie in all of these then, and an occasional compaction moves them to
  // and fro.
  void Scatter();
  // Later, when the connection runs no more code.
  void Remove(Network::ConnectionId id);

  World* const world_;
  Network* const network_;
  const int index_;
  const SimServerOptions options_;
  const HostId host_;
  std::unique_ptr<ServerCore> core_;
  std::unique_ptr<Compactor> compactor_;
  std::vector<FrameLoc> scattered_;
  uint64_t ticks_ = 0;
  std::unique_ptr<ControlService> control_;
  std::map<Network::ConnectionId, std::unique_ptr<ServerConnection>> connections_;
  std::optional<ArenaReservation> filling_{std::in_place};
  uint64_t filled_pages_ = 0;
  std::optional<uint64_t> allowed_bytes_;  // none: it is not pressed
  bool was_pressed_ = false;               // in this life
  EvilDonor evil_;
  uint64_t evil_one_in_ = 0;
  const std::unique_ptr<std::byte[]> reply_bytes_;  // of the request that executes
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_SIM_SERVER_H_
