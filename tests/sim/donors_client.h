#ifndef NRAM_TESTS_SIM_DONORS_CLIENT_H_
#define NRAM_TESTS_SIM_DONORS_CLIENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/pool/copy_map.h"
#include "client/pool/placement.h"
#include "client/pool/shedding.h"
#include "tests/sim/donors_world.h"

namespace nram::sim {

// A client with one region: its sessions, its walk and its slots serve the servers that ask (client/pool/repairer.h).
// One thread.
class DonorClient {
 public:
  DonorClient(DonorWorld* world, uint32_t number, const std::vector<size_t>& donors, int copies);

  // --- News from the world.
  // The server has begun to ask: this client learns of it with an answer, or by a ping.
  void NoteAsks(uint16_t server);
  void Hear(uint16_t server, uint32_t number);
  void Tick();
  void EndSlot(size_t slot);
  void NoteFreed(uint16_t server, uint32_t span, uint32_t number);
  // Writes this number of new spans.
  void Write(size_t spans);
  // Call it before all others. From now on this client hears its servers; it hears all of them now.
  void HearAll();
  // Hears all servers at once.
  void ListenAll();

  // A frozen client hears nothing and starts nothing. Its operations under way end.
  void SetFrozen(bool is_frozen);
  bool is_frozen() const { return is_frozen_; }
  // A span on that server, which asks, although the span has a place to go to; "" if there is none.
  std::string FindStuck(uint16_t server) const;

  size_t spans() const { return spans_.size(); }
  int copies() const { return copies_; }
  // Adds this client's stored bytes at each donor. Returns an error of its spans; "" if there is none.
  std::string Check(std::vector<uint64_t>* stored) const;
  // Nothing is under way, and no work is left.
  bool idle() const;

 private:
  static constexpr size_t kSlots = 6;
  static constexpr size_t kRepairSlots = 2;
  static constexpr size_t kShedsMax = 1024;
  static constexpr size_t kMissesMax = 1024;
  static constexpr int64_t kPassMs = 1'000;
  static constexpr int kInlineMax = 64;
  static constexpr int64_t kTickMs = 20;
  static constexpr int64_t kRenewMs = 4'000;
  static constexpr int64_t kPingMs = 500;
  static constexpr int64_t kAvoidMs = 5'000;
  static constexpr int64_t kCopyMs = 5'000;
  static constexpr int64_t kRoundTripNs = 200'000;
  static constexpr size_t kCopiesMax = 4;

  struct Session {
    Donor* donor = nullptr;
    ServerRoom room;  // from the last report
    uint64_t word = 0;
    uint32_t share = 0;
    int64_t hear_again_ms = 100;
    int64_t heard_ms = -10'000;
    int64_t hears_ms = -1;  // next
    uint32_t hear_number = 0;
    int64_t avoided_until_ms = 0;
    std::vector<uint32_t> here;  // spans with a copy in sync there
  };
  struct Span {
    std::array<uint16_t, kCopiesMax> servers{};  // of copies in sync
    uint8_t count = 0;
    bool listed = false;
    uint8_t moves = 0;          // since the window began
    uint16_t left = kNoServer;  // the server that it left last
    int64_t left_ms = 0;
    int64_t window_ms = 0;
  };
  struct Held {
    uint32_t place = UINT32_MAX;  // in Session::here; UINT32_MAX: the copy is not in sync
    uint32_t number = 0;          // of the copy: a newer copy has another one
    int64_t came_ms = -100'000;   // from another server
  };
  struct Todo {
    uint32_t span = 0;
    uint16_t sheds = kNoServer;
  };
  struct Slot {
    enum class State : uint8_t { kFree, kBusy, kResting };
    State state = State::kFree;
    int64_t until_ms = 0;
    int64_t owed_ns = 0;
    int64_t began_ms = 0;
    int in_a_row = 0;
    Todo todo;
    uint16_t target = kNoServer;
    bool copies = false;  // a copy is under way, otherwise only a flip
    bool fails = false;
    std::optional<uint16_t> joining;
  };

  static uint64_t KeyOf(uint32_t span, uint16_t server) { return uint64_t{span} << 16 | server; }
  static CopyMap::Life LifeOf(uint16_t server) { return {server, 1}; }
  void Wake();
  void HearAt(uint16_t server, int64_t at_ms);
  void Listen(uint16_t server);
  int HeatOf(uint32_t span) const;
  void Walk();
  std::optional<Todo> TakeTodo(size_t slot);
  void FindWork(size_t slot);
  bool Begin(size_t slot, const Todo& todo);
  CopyMap::Plan PlanFor(const Todo& todo);
  uint16_t ChooseTarget(const Todo& todo, const CopyMap::Plan& plan);
  void BeginCopy(Slot* slot, size_t index);
  void Flip(Slot* slot);
  bool Carry(uint32_t span, CopiedChange* change);
  void Rest(size_t slot);
  void AddCopy(uint32_t span, uint16_t server);
  void Sync(uint32_t span);
  void NoteLeft(uint32_t span, uint16_t server);
  void NoteCame(uint32_t span, uint16_t server);

  DonorWorld* const world_;
  const uint32_t number_;
  const int copies_;
  CopyMap map_;
  Shedding shedding_;
  std::vector<Session> sessions_;
  std::vector<CopyMap::Donor> donors_;
  std::vector<Span> spans_;
  absl::flat_hash_map<uint64_t, Held> held_;  // the spans that take memory at a server
  std::deque<Todo> sheds_;
  std::deque<std::pair<int64_t, uint32_t>> repairs_;  // the earliest time, and the span
  std::array<Slot, kSlots> slots_;
  std::vector<PlacementCandidate> candidates_;
  uint32_t numbers_ = 0;
  bool ticks_ = false;
  bool is_frozen_ = false;
  size_t misses_ = 0;  // of repair, in a row
  int64_t repair_again_ms_ = 0;
  double in_ns_ = 0;
  double out_ns_ = 0;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_DONORS_CLIENT_H_
