#ifndef NRAM_TESTS_UTIL_FAULTY_RELAY_H_
#define NRAM_TESTS_UTIL_FAULTY_RELAY_H_

// A network that misbehaves. It stands between a client and a memory server, passes messages on in both directions and,
// by chance, drops, delays, reorders, repeats, corrupts or cuts. All its faults follow from its seed and the messages
// it sees.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/endpoint.h"
#include "base/fd.h"
#include "base/sync.h"
#include "tests/util/evil_donor.h"

namespace nram {

// Each field is the chance for a message, 0 to 1.
struct FaultPlan {
  double drop = 0;
  double repeat = 0;
  double corrupt = 0;  // one bit
  double cut = 0;      // both directions, in the middle of the message
  double reorder = 0;  // this message after the next one
  double delay = 0;
  int64_t delay_us_max = 2'000;
  double drop_reply = 0;
  double lie = 0;  // of replies to reads of sealed pages: as an evil donor (evil_donor.h)
  double lie_of_changes = 0;
  // The first message of each direction (hello and its answer) passes untouched.
};

// Thread-safe.
class FaultyRelay {
 public:
  // Relays each connection made to socket_path() to `target`.
  FaultyRelay(const Endpoint& target, uint64_t seed);
  ~FaultyRelay();

  Endpoint endpoint() const { return {"", 0, socket_path_}; }
  // For messages from now on.
  void SetPlan(const FaultPlan& plan);
  // Keeps arriving bytes, and passes nothing on, until it is let go again: a frozen server or a cut cable.
  void Hold(bool hold) { held_ = hold; }
  // Refuses and closes connections, like a host that is down.
  void SetDown(bool down);
  // Faults done so far, lies included.
  uint64_t faults() const { return faults_; }
  uint64_t lies() const;

 private:
  struct Direction;
  struct Link;

  void AcceptLoop();
  void RelayLoop(Link* link);
  // Sends queued bytes and receives arriving ones; false at the end of the connection.
  bool SendAndReceive(Link* link, Direction* direction, bool readable, std::string* chunk);
  // Applies the plan and chance to a message, and queues the rest of it.
  void RelayMessage(Link* link, Direction* direction, std::string message);
  FaultPlan plan() const;
  void Lie(bool to_server, const FaultPlan& plan, std::string* message);

  const Endpoint target_;
  const uint64_t seed_;
  std::string directory_;
  std::string socket_path_;
  UniqueFd listener_;
  UniqueFd stop_event_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};
  std::atomic<bool> down_{false};
  std::atomic<uint64_t> faults_{0};
  mutable Mutex mu_;
  FaultPlan plan_ ABSL_GUARDED_BY(mu_);
  EvilDonor evil_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 lie_random_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_FAULTY_RELAY_H_
