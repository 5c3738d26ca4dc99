#ifndef NRAM_TESTS_SIM_COPIES_WORLD_H_
#define NRAM_TESTS_SIM_COPIES_WORLD_H_

// One span with its copies, and all operations on them at once, at random: changes, reads, settling, repair and
// leaving, on servers that follow the rule of copies (adr/0014), without sockets or threads. Messages are lost, late,
// out of order between servers and requests, and executed after their sender has given them up, until a newer
// connection fences them. Each block is an atomic register; no operation may ever read a copy that is not in sync.

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/pool/change_gate.h"
#include "client/pool/copied_change.h"
#include "client/pool/span_copies.h"
#include "tests/sim/register_history.h"

namespace nram::sim {

// The sums over worlds, by which a test sees that it has tested enough.
struct CopiesTotals {
  int writes = 0;
  int reads = 0;
  int failures = 0;
  int repairs = 0;
  int deaths = 0;
  int silent_deaths = 0;
  int left = 0;     // copies that others have replaced or made dispensable
  int refused = 0;  // of these, those that had to refuse a former reader
  int losses = 0;   // the only live copy counted as stale
};

// Not thread-safe. The same seed makes the same world.
class CopiesWorld {
 public:
  CopiesWorld(uint64_t seed, CopiesTotals* totals);
  ~CopiesWorld();

  // Runs `steps` random steps, and then a quiet phase. Returns the first failure; "" if there is none. Once.
  std::string Run(int steps);

 private:
  static constexpr int kBlocks = 4;
  static constexpr RegionId kRegion{1};

  // The span on one life of one server, and the connection to it.
  struct ReplicaHost {
    bool alive = true;
    uint32_t generation = 0;  // 0: there is no leaf
    std::array<uint64_t, kBlocks> values{};
    bool sure = false;  // the owner knows that there is a leaf
    int connection = 0;
    int newest_heard = 0;  // the server refuses messages of older connections
  };
  struct Operation;
  struct Message {
    uint16_t replica_host;
    int connection;
    uint32_t generation;
    int first, count;  // blocks; count 0: raises only
    uint64_t value;
    bool is_read, creates;
    bool trims;         // the whole span
    Operation* sender;  // null: given up
  };
  struct Reply {
    Message message;
    CopiedChange::End end;
    uint64_t found;
  };
  struct Operation {
    enum class Kind { kWrite, kRead, kSettle, kRepair, kShed };
    Kind kind = Kind::kWrite;
    GatePlace gate;
    bool in_gate = false;
    int first = 0, count = 0;
    uint64_t number = 0;
    bool zeros = false;  // a write of zeros, as a trim is
    Moment began = 0;
    int left = 0;  // steps until its deadline
    std::unique_ptr<CopiedChange> change;
    int under_way = 0;
    std::function<void(Operation*)> next;  // when nothing is under way
    // A read's, or repair's.
    CopySet tried = 0;
    uint16_t replica_host = 0;
    uint32_t generation = 0;
    bool answered = false;
    uint64_t found = 0;
    int joined = -1, block = 0;
    // A flip's: the leaving copies, and the former knowledge of a reader that is not the owner.
    bool flips = false, shuts = false;
    std::vector<uint16_t> leaves;
    std::vector<uint16_t> known;
    uint32_t known_generation = 0;
    bool over = false;
  };

  uint64_t Random(uint64_t bound) { return random_() % bound; }
  uint16_t NewReplicaHost();
  Moment Oldest() const;
  bool IsOn() const { return failure_.empty() && span_.placed(); }
  void Step(int number);
  std::string Describe() const;
  int PlaceOf(uint16_t replica_host) const;
  std::vector<uint16_t> InSync() const;
  int AliveInSync() const;
  uint32_t HighestEven() const;

  // --- Invariants.
  void CheckOthersRefuse();
  // A client that takes the region over from here on believes the copies of the highest even generation.
  void CheckNextOwner();
  void CheckCopies();

  // --- Operations (copies_operations.cc).
  void Start(Operation::Kind kind);
  void Enter(Operation* operation, GatePlace::Kind kind, int first, int count, void (CopiesWorld::*then)(Operation*));
  void LeaveGate(Operation* operation);
  void End(Operation* operation);
  void GoOn(Operation* operation);
  void EndChange(Operation* operation, CopiedChange::Step::Kind kind);
  void SendRead(Operation* operation);
  void LookAtRead(Operation* operation);

  // --- Repair (copies_repair.cc): join, copy block by block in the gate, and be raised in the gate of the whole span.
  void BeginRepair(Operation* operation);
  // The server frees all of its data of the span.
  void OpenCopy(Operation* operation);
  bool StillJoining(const Operation& operation) const;
  void CopyBlock(Operation* operation);
  void ReadBlock(Operation* operation);
  void WriteBlock(Operation* operation);
  void Flip(Operation* operation);
  // Drops copies whose data others have.
  void Shed(Operation* operation);
  void BeginFlip(Operation* operation, bool leaves);
  // `before`: the copies that were in sync.
  void NoteLeft(const std::vector<uint16_t>& before);
  void EndFlip(Operation* operation, bool stored);
  // A reader that has read the span's copies before, and asks all that it knew, must be refused by one of them.
  void CheckReaders(const Operation& operation);
  // Frees a copy's leftover as the repairer does, once; the message may be lost or late.
  void FreeLeftover(uint16_t replica_host);
  void EndRepair(Operation* operation);

  // --- The network and the servers (copies_network.cc).
  void Send(Operation* operation, Message message);
  void Deliver();
  void DeliverAnswer();
  void Answer(const Message& message, CopiedChange::End end, uint64_t found);
  // Gives up the messages under way there. They may still be executed.
  void Break(uint16_t replica_host);
  void Kill();
  void Bury(uint16_t replica_host);
  // Dead, and the owner does not know.
  bool IsSilent(uint16_t replica_host) const;

  std::mt19937_64 random_;
  CopiesTotals* const totals_;
  SpanCopies span_;
  std::unique_ptr<ChangeGate> gate_ = std::make_unique<ChangeGate>();
  std::vector<RegisterHistory> history_;
  std::vector<ReplicaHost> replica_hosts_;
  std::list<Message> messages_;
  std::list<Reply> answers_;
  std::list<std::unique_ptr<Operation>> operations_;
  std::list<Operation*> ready_;
  Moment now_ = 0;
  uint64_t last_number_ = 0;
  bool moves_ = false;  // copies often join and leave
  bool calm_ = false;
  bool storm_ = false;  // most messages, or their answers, are lost
  bool pumping_ = false;
  bool repairing_ = false;
  bool flipping_ = false;
  std::vector<std::pair<uint16_t, int>> deaths_;  // unknown deaths, and the steps until they are known
  std::string failure_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_COPIES_WORLD_H_
