#ifndef NRAM_TESTS_SIM_NETWORK_H_
#define NRAM_TESTS_SIM_NETWORK_H_

// The network between the hosts of a World: connections like TCP's, and single posts. It delays, is cut in one
// direction or both, and breaks connections with the bytes on their way, also in the middle of a message.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "tests/sim/world.h"

namespace nram::sim {

// One thread. A connection has two ends. Bytes arrive at an end in the order in which they were sent, or not at all.
class Network {
 public:
  // Names a connection; a name is never used again.
  using ConnectionId = uint64_t;
  enum Side : int { kClient = 0, kServer = 1 };

  // An end's owner. After OnRefused or OnEnd nothing more arrives, but the end must still be closed.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual void OnConnected() {}  // the client's end
    virtual void OnRefused() {}    // the client's end: there is no listener
    virtual void OnBytes(absl::Span<const std::byte> bytes) = 0;
    // The other end has closed, or the connection is broken.
    virtual void OnEnd() = 0;
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    // A connection has arrived. Returns the owner of its server's end.
    virtual Receiver* Accept(ConnectionId id) = 0;
  };

  explicit Network(World* world) : world_(world) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Null: connections are refused.
  void Listen(HostId host, Listener* listener) { listeners_[host] = listener; }

  // --- Connections.
  ConnectionId Connect(HostId client, HostId server, Receiver* receiver);
  void Send(ConnectionId id, Side from, std::string bytes);
  // The end is closed: nothing more arrives at it. Its sent bytes still arrive, and then OnEnd.
  void Close(ConnectionId id, Side side);
  // Like Close, but its bytes on their way are lost from some byte on.
  void Reset(ConnectionId id, Side side);
  // All ends at the host close, as when its process is killed. `silently`: the other ends hear nothing, as when the
  // power fails.
  void CloseAll(HostId host, bool silently);
  // Changes one bit of an item on its way to a random end. False: no item is on its way.
  bool FlipBit();
  // A connection between the two hosts breaks, for both. False: there is none.
  bool BreakOne(HostId client, HostId server);
  size_t connection_count() const { return connections_.size(); }

  // --- Single messages.
  // `event` happens at `to`. During a cut it happens later, or never.
  void Post(HostId from, HostId to, World::Event event);

  // --- Faults.
  void Cut(HostId from, HostId to);
  void Heal(HostId from, HostId to);
  bool IsCut(HostId from, HostId to) { return way(from, to).cut; }
  // Each message takes up to `slow_ns` longer.
  void SetSlow(HostId from, HostId to, int64_t slow_ns) { way(from, to).slow_ns = slow_ns; }
  // A host without power answers to nothing; a host whose process has ended refuses.
  void SetPower(HostId host, bool on) { powerless_[host] = !on; }

 private:
  // The length of a cut after which a client's kernel, and much later a server's, gives up a connection.
  static constexpr int64_t kClientSilenceNs = 5 * kNsPerSecond;
  static constexpr int64_t kServerSilenceNs = 60 * kNsPerSecond;

  struct Item {
    enum class Kind { kSyn, kConnected, kRefused, kBytes, kEnd } kind;
    std::string bytes;
  };
  struct End {
    HostId host = World::kNobody;
    Receiver* receiver = nullptr;
    bool gone = false;       // closed
    bool ended = false;      // the other one has closed
    std::deque<Item> queue;  // on its way to here
    int64_t last_ns = 0;     // when the last item arrives
  };
  struct Connection {
    std::array<End, 2> ends;
    bool accepted = false;
  };
  // From one host to another.
  struct Way {
    bool cut = false;
    int64_t cut_ns = 0;
    int64_t slow_ns = 0;
    std::vector<std::pair<ConnectionId, Side>> stalled;  // one for each held item
    std::vector<World::Event> posts;
  };

  Way& way(HostId from, HostId to) { return ways_[uint64_t{from} << 32 | to]; }
  int64_t DelayNs(HostId from, HostId to);
  Connection* Find(ConnectionId id);
  // Puts an item on its way to `side`.
  void Push(ConnectionId id, Connection* connection, Side side, Item item);
  void ScheduleArrival(ConnectionId id, Side side, HostId host, int64_t time_ns);
  // The next item has arrived at `side`.
  void Arrive(ConnectionId id, Side side);
  void ArriveSyn(ConnectionId id, Connection* connection);
  void AcceptNow(ConnectionId id, Connection* connection);
  void Forget(ConnectionId id);
  // The kernels of both ends check whether the way between them is still cut.
  void LookForSilence(HostId from, HostId to, int64_t cut_ns, Side side);

  World* const world_;
  ConnectionId next_id_ = 1;
  std::map<ConnectionId, Connection> connections_;
  std::map<uint64_t, Way> ways_;
  std::map<HostId, Listener*> listeners_;
  std::map<HostId, bool> powerless_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_NETWORK_H_
