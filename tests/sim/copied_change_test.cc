// The protocol of copies (adr/0014) as a whole, without sockets or threads: changes, reads, settling, repair and
// leaving of one span at once, on servers that follow their rule. Messages are lost, late, out of order between servers
// and requests, and executed after their sender has given them up, until a newer connection fences them. Each block is
// an atomic register; what a copy that is not in sync has must never be read.

#include "client/pool/copied_change.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/plant.h"
#include "base/test_seed.h"
#include "client/pool/change_gate.h"
#include "client/pool/span_copies.h"
#include "gtest/gtest.h"
#include "tests/sim/register_history.h"

namespace nram::sim {
namespace {

constexpr int kBlocks = 4;
constexpr RegionId kRegion{1};

struct Totals {
  int writes = 0;
  int reads = 0;
  int failures = 0;
  int repairs = 0;
  int deaths = 0;
  int silent_deaths = 0;
  int left = 0;     // copies that others have taken the place of, or made dispensable
  int refused = 0;  // of these, those that had to refuse a reader of before
  int losses = 0;   // the only copy that was alive counted as stale
};

class CopiesWorld {
 public:
  CopiesWorld(uint64_t seed, Totals* totals) : random_(seed), totals_(totals) {
    for (int i = 0; i < kBlocks; ++i) history_.emplace_back(RegisterHistory::Effect::kOnce);
    std::vector<uint16_t> presences;
    const uint64_t count = 1 + Random(3);
    for (uint64_t i = 0; i < count; ++i) presences.push_back(NewPresence());
    moves_ = Random(2) == 0;
    span_.Place(presences, /*one_copy=*/false);
  }

  ~CopiesWorld() {
    // What is under way when it has failed has no end.
    if (!operations_.empty()) (void)gate_.release();
  }

  std::string Run(int steps) {
    for (int i = 0; i < steps && IsOn(); ++i) Step(i);
    for (const auto& death : deaths_) Bury(death.first);
    deaths_.clear();
    // The quiet phase: everything arrives, all ends, and all copies in sync are the same.
    calm_ = true;
    for (int i = 0; i < 4'000 && failure_.empty() && !operations_.empty(); ++i) Step(i);
    if (failure_.empty() && !operations_.empty()) {
      failure_ = "an operation does not end: kind " + std::to_string(static_cast<int>(operations_.front()->kind)) +
                 ", in gate " + std::to_string(operations_.front()->in_gate) + ", under way " +
                 std::to_string(operations_.front()->under_way) + ", messages " + std::to_string(messages_.size()) +
                 ", answers " + std::to_string(answers_.size()) + ", operations " + std::to_string(operations_.size()) +
                 "; " + Describe();
    }
    if (failure_.empty() && !span_.placed()) {
      ++totals_->losses;
      return failure_;
    }
    if (failure_.empty()) Start(Operation::Kind::kSettle);
    for (int i = 0; i < 4'000 && failure_.empty() && !operations_.empty(); ++i) Step(i);
    if (failure_.empty()) CheckCopies();
    return failure_;
  }

 private:
  bool IsOn() const { return failure_.empty() && span_.placed(); }
  // The span on one life of one server, and the connection to it.
  struct Presence {
    bool alive = true;
    uint32_t generation = 0;  // 0: there is no leaf
    std::array<uint64_t, kBlocks> values{};
    bool sure = false;  // the owner knows that there is a leaf
    int connection = 0;
    int newest_heard = 0;  // the server refuses what came over older connections
  };
  struct Operation;
  struct Message {
    uint16_t presence;
    int connection;
    uint32_t generation;
    int first, count;  // blocks; count 0: raises only
    uint64_t value;
    bool is_read, creates;
    bool trims;         // all of the span
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
    uint16_t presence = 0;
    uint32_t generation = 0;
    bool answered = false;
    uint64_t found = 0;
    int joined = -1, block = 0;
    // Of a flip: what is to leave, and what somebody who reads by himself knew before.
    bool flips = false, shuts = false;
    std::vector<uint16_t> leaves;
    std::vector<uint16_t> known;
    uint32_t known_generation = 0;
    bool over = false;
  };

  uint64_t Random(uint64_t bound) { return random_() % bound; }
  uint16_t NewPresence() {
    presences_.emplace_back();
    return static_cast<uint16_t>(presences_.size() - 1);
  }
  Moment Oldest() const {
    Moment oldest = now_;
    for (const auto& operation : operations_) {
      if (operation->kind == Operation::Kind::kRead) oldest = std::min(oldest, operation->began);
    }
    return oldest;
  }

  void Step(int number) {
    const uint64_t choice = Random(100);
    if (!calm_ && choice < 20 && operations_.size() < 8) {
      const uint64_t kind = Random(moves_ ? 24 : 20);
      Start(kind < 9    ? Operation::Kind::kWrite
            : kind < 18 ? Operation::Kind::kRead
            : kind < 19 ? Operation::Kind::kSettle
            : kind < 22 ? Operation::Kind::kRepair
                        : Operation::Kind::kShed);
    } else if (!calm_ && choice < 32) {
      Break(static_cast<uint16_t>(Random(presences_.size())));
    } else if (!calm_ && choice < 33 && Random(2) == 0) {
      Kill();
    } else if (!answers_.empty() && (messages_.empty() || Random(2) == 0)) {
      DeliverAnswer();
    } else if (!messages_.empty()) {
      Deliver();
    }
    for (auto& death : deaths_) {
      if (--death.second == 0) Bury(death.first);
    }
    std::erase_if(deaths_, [](const auto& death) { return death.second == 0; });
    storm_ = !calm_ && (storm_ ? Random(60) != 0 : Random(200) == 0);
    gate_->Tick(number);
    for (const auto& operation : operations_) --operation->left;
    // Whoever waits for an answer too long breaks the connection.
    for (auto it = messages_.begin(); it != messages_.end(); ++it) {
      if (it->sender != nullptr && it->sender->left < -200) {
        Break(it->presence);
        break;
      }
    }
    operations_.remove_if([](const auto& operation) { return operation->over; });
    CheckOthersRefuse();
  }

  std::string Describe() const {
    std::string text = "generation " + std::to_string(Raw(span_.generation())) +
                       (span_.doubtful() ? ", doubtful" : "") + (span_.unsettled() ? ", unsettled" : "");
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      if (span_.state(copy) == CopyState::kAbsent) continue;
      const Presence& at = presences_[span_.presence(copy)];
      text += "; copy " + std::to_string(copy) + " state " + std::to_string(static_cast<int>(span_.state(copy))) +
              " has " + std::to_string(at.generation) + (at.alive ? "" : " dead") + (at.sure ? "" : " unsure");
    }
    return text;
  }

  void CheckOthersRefuse() {
    if (span_.doubtful()) return;
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      const CopyState state = span_.state(copy);
      if (state != CopyState::kStale && (state != CopyState::kCatchingUp || flipping_)) continue;
      const Presence& at = presences_[span_.presence(copy)];
      if (at.generation == Raw(span_.generation())) {
        failure_ = "copy " + std::to_string(copy) + " (state " + std::to_string(static_cast<int>(state)) +
                   ") is not in sync and could be believed: generation " + std::to_string(at.generation);
      }
    }
  }

  // --- Operations.
  void Start(Operation::Kind kind) {
    auto owned = std::make_unique<Operation>();
    Operation* const operation = owned.get();
    operations_.push_back(std::move(owned));
    operation->kind = kind;
    operation->left = 5 + static_cast<int>(Random(120));
    operation->began = ++now_;
    const bool whole = kind == Operation::Kind::kSettle;
    operation->first = whole ? 0 : static_cast<int>(Random(kBlocks));
    operation->count = whole                             ? kBlocks
                       : kind == Operation::Kind::kWrite ? 1 + static_cast<int>(Random(kBlocks - operation->first))
                                                         : 1;
    if (kind == Operation::Kind::kWrite) {
      operation->number = ++last_number_;
      operation->zeros = Random(4) == 0;
      for (int b = 0; b < operation->count; ++b) {
        history_[operation->first + b].BeginWrite(operation->number, operation->zeros, now_);
      }
    }
    switch (kind) {
      case Operation::Kind::kRead:
        operation->block = static_cast<int>(Random(SpanCopies::kMost));  // where it looks first
        return SendRead(operation);
      case Operation::Kind::kRepair:
        return BeginRepair(operation);
      case Operation::Kind::kShed:
        return Enter(operation, GatePlace::Kind::kChange, 0, kBlocks, &CopiesWorld::Shed);
      default:
        operation->change = std::make_unique<CopiedChange>(
            kind == Operation::Kind::kSettle ? CopiedChange::Kind::kSettle : CopiedChange::Kind::kData);
        return Enter(operation, GatePlace::Kind::kChange, operation->first, operation->count, &CopiesWorld::GoOn);
    }
  }

  void Enter(Operation* operation, GatePlace::Kind kind, int first, int count, void (CopiesWorld::*then)(Operation*)) {
    operation->next = [this, then](Operation* of) { (this->*then)(of); };
    operation->gate.kind = kind;
    operation->gate.region = kRegion;
    operation->gate.range = {static_cast<uint64_t>(first), static_cast<uint64_t>(count)};
    operation->gate.deadline_ns = INT64_MAX;
    operation->gate.context = operation;
    operation->gate.resume = [](GatePlace* place) {
      auto* const of = static_cast<Operation*>(place->context);
      of->in_gate = true;
      of->next(of);
    };
    if (!gate_->Enter(&operation->gate)) return;
    operation->in_gate = true;
    operation->next(operation);
  }
  void LeaveGate(Operation* operation) {
    if (!operation->in_gate) return;
    operation->in_gate = false;
    gate_->Leave(&operation->gate);
  }
  void End(Operation* operation) {
    operation->over = true;
    LeaveGate(operation);
  }

  void GoOn(Operation* operation) {
    while (true) {
      const std::vector<uint16_t> before = InSync();
      const CopiedChange::Step step = operation->change->Next(&span_, operation->left > 0 || calm_);
      if (operation->flips) NoteLeft(before);
      if (step.kind != CopiedChange::Step::Kind::kSend) return EndChange(operation, step.kind);
      operation->next = [this](Operation* of) { GoOn(of); };
      operation->under_way = std::popcount(step.to);
      for (unsigned rest = step.to; rest != 0; rest &= rest - 1) {
        const int copy = std::countr_zero(rest);
        Message message{};
        message.presence = span_.presence(copy);
        message.generation = Raw(span_.GenerationFor(copy));
        if (step.joins) message.generation = Raw(span_.generation());
        if (step.shuts) message.generation = Raw(span_.generation()) - 1;
        message.first = operation->first;
        message.count = step.raises_only ? 0 : operation->count;
        message.value = operation->zeros ? 0 : operation->number;
        message.creates = !presences_[message.presence].sure;
        Send(operation, message);
      }
      if (operation->under_way > 0) return;
    }
  }

  void EndChange(Operation* operation, CopiedChange::Step::Kind kind) {
    if (operation->flips) return EndFlip(operation, kind == CopiedChange::Step::Kind::kStored);
    if (operation->kind == Operation::Kind::kWrite) {
      const bool known = kind == CopiedChange::Step::Kind::kStored;
      if (known) CheckNextOwner();
      ++(known ? totals_->writes : totals_->failures);
      ++now_;
      for (int b = 0; b < operation->count; ++b) {
        history_[operation->first + b].EndWrite(operation->number, known, now_, Oldest());
      }
    } else if (calm_ && span_.placed() && kind != CopiedChange::Step::Kind::kStored) {
      failure_ = "a span does not settle although all answer";
    }
    End(operation);
  }

  uint32_t HighestEven() const {
    uint32_t highest = 0;
    for (const Presence& at : presences_) {
      if (at.alive && at.generation % 2 == 0) highest = std::max(highest, at.generation);
    }
    return highest;
  }

  // Whoever takes the region over from here on believes the copies of the highest even generation.
  void CheckNextOwner() {
    const uint32_t highest = HighestEven();
    CopySet in_sync = span_.in_sync();
    for (size_t i = 0; i < presences_.size(); ++i) {
      if (!presences_[i].alive || presences_[i].generation != highest) continue;
      const bool believed = [&] {
        for (unsigned rest = in_sync; rest != 0; rest &= rest - 1) {
          if (span_.presence(std::countr_zero(rest)) == i) return true;
        }
        return false;
      }();
      if (!believed) failure_ = "the next owner would believe a copy that is not in sync";
    }
  }

  void SendRead(Operation* operation) {
    LeaveGate(operation);
    if (!span_.placed()) return End(operation);
    if (operation->left <= 0 && !calm_) return End(operation);
    CopySet choice = span_.in_sync() & ~operation->tried;
    if (choice == 0) {
      operation->tried = 0;
      choice = span_.in_sync();
    }
    int copy = operation->block % SpanCopies::kMost;
    while ((choice >> copy & 1) == 0) copy = (copy + 1) % SpanCopies::kMost;
    operation->tried |= 1u << copy;
    operation->presence = span_.presence(copy);
    operation->generation = Raw(span_.generation());
    operation->answered = false;
    operation->under_way = 1;
    operation->next = [this](Operation* of) { LookAtRead(of); };
    Message message{};
    message.presence = operation->presence;
    message.generation = operation->generation;
    message.first = operation->first;
    message.is_read = true;
    Send(operation, message);
  }

  void LookAtRead(Operation* operation) {
    if (gate_->IsChanging(kRegion, {static_cast<uint64_t>(operation->first), 1})) {
      return Enter(operation, GatePlace::Kind::kLook, operation->first, 1, &CopiesWorld::SendRead);
    }
    bool in_sync = false;
    for (unsigned rest = span_.in_sync(); rest != 0; rest &= rest - 1) {
      in_sync = in_sync || span_.presence(std::countr_zero(rest)) == operation->presence;
    }
    if (span_.doubtful() || (!operation->answered && span_.unsettled())) {
      // Somebody settles it; the read comes again.
      Start(Operation::Kind::kSettle);
      return Enter(operation, GatePlace::Kind::kLook, operation->first, 1, &CopiesWorld::SendRead);
    }
    if (!operation->answered || !in_sync || operation->generation != Raw(span_.generation())) {
      return SendRead(operation);
    }
    ++now_;
    ++totals_->reads;
    auto& history = history_[operation->first];
    failure_ = operation->found == 0 ? history.EndReadOfZeros(operation->began, now_, Oldest())
                                     : history.EndRead(operation->found, operation->began, now_, Oldest());
    End(operation);
  }

  // --- Repair: join, copy block by block in the gate, and be raised in the gate of the whole span.
  void BeginRepair(Operation* operation) {
    if (repairing_ || span_.in_sync() == 0) return End(operation);
    // The same life that missed something, or a new one.
    uint16_t presence = NewPresence();
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      if (span_.state(copy) == CopyState::kStale && presences_[span_.presence(copy)].alive && Random(2) == 0) {
        presence = span_.presence(copy);
        // Its leaf is emptied by the first message of the odd generation, which creates.
        presences_[presence].sure = false;
        presences_[presence].connection++;
        break;
      }
    }
    // Or one that has left: what is to free the leftover may still be on its way.
    if (Random(3) == 0) {
      const auto former = static_cast<uint16_t>(Random(presences_.size()));
      if (presences_[former].alive && PlaceOf(former) < 0) {
        presence = former;
        presences_[presence].sure = false;
      }
    }
    operation->joined = span_.Join(presence);
    if (operation->joined < 0) return End(operation);
    repairing_ = true;
    operation->presence = presence;
    operation->block = 0;
    operation->left = 100'000;
    Enter(operation, GatePlace::Kind::kChange, 0, kBlocks, &CopiesWorld::OpenCopy);
  }
  // What the server has of the span goes.
  void OpenCopy(Operation* operation) {
    const auto is_there = [this](const Operation& of) {
      return span_.state(of.joined) == CopyState::kStale && span_.presence(of.joined) == of.presence;
    };
    if (!is_there(*operation) || !span_.placed()) return EndRepair(operation);
    span_.BeginOpen(operation->joined);
    Message message{};
    message.presence = operation->presence;
    message.generation = Raw(span_.generation()) - 1;
    message.creates = true;
    operation->answered = false;
    operation->under_way = 1;
    operation->next = [this, is_there](Operation* of) {
      if (!of->answered || !is_there(*of) || !span_.placed()) return EndRepair(of);
      span_.Open(of->joined);
      CopyBlock(of);
    };
    Send(operation, message);
  }
  bool StillJoining(const Operation& operation) const {
    return span_.state(operation.joined) == CopyState::kCatchingUp &&
           span_.presence(operation.joined) == operation.presence;
  }
  void CopyBlock(Operation* operation) {
    LeaveGate(operation);
    if (operation->block == kBlocks) {
      return Enter(operation, GatePlace::Kind::kChange, 0, kBlocks, &CopiesWorld::Flip);
    }
    Enter(operation, GatePlace::Kind::kChange, operation->block, 1, &CopiesWorld::ReadBlock);
  }
  void ReadBlock(Operation* operation) {
    if (!StillJoining(*operation) || span_.in_sync() == 0) return EndRepair(operation);
    if (span_.doubtful() || span_.unsettled()) {
      // The block once more, after that.
      LeaveGate(operation);
      Start(Operation::Kind::kSettle);
      return CopyBlock(operation);
    }
    Message message{};
    const int from = std::countr_zero(span_.in_sync());
    message.presence = span_.presence(from);
    message.generation = Raw(span_.generation());
    message.first = operation->block;
    message.is_read = true;
    operation->answered = false;
    operation->under_way = 1;
    operation->next = [this](Operation* of) { WriteBlock(of); };
    Send(operation, message);
  }
  void WriteBlock(Operation* operation) {
    if (!StillJoining(*operation)) return EndRepair(operation);
    if (!operation->answered || span_.doubtful() || span_.unsettled()) {
      (void)span_.EndChange(span_.in_sync(), 0);
      return EndRepair(operation);
    }
    Message message{};
    message.presence = operation->presence;
    message.generation = Raw(span_.GenerationFor(operation->joined));
    message.first = operation->block;
    message.count = 1;
    message.value = operation->found;
    if (message.value == 0) {
      // Holes do not travel.
      ++operation->block;
      return CopyBlock(operation);
    }
    operation->answered = false;
    operation->under_way = 1;
    operation->next = [this](Operation* of) {
      if (!StillJoining(*of)) return EndRepair(of);
      if (!of->answered) {
        (void)span_.EndChange(span_.in_sync(), 0);
        return EndRepair(of);
      }
      ++of->block;
      CopyBlock(of);
    };
    Send(operation, message);
  }
  void Flip(Operation* operation) {
    if (!StillJoining(*operation)) return EndRepair(operation);
    operation->change = std::make_unique<CopiedChange>(CopiedChange::Kind::kJoin);
    operation->change->SetCopy(operation->presence);
    BeginFlip(operation, /*leaves=*/Random(2) == 0);
  }
  // Copies leave, and others have what they have.
  void Shed(Operation* operation) {
    if (repairing_ || std::popcount(span_.in_sync()) < 2) return End(operation);
    operation->change = std::make_unique<CopiedChange>(CopiedChange::Kind::kJoin);
    BeginFlip(operation, /*leaves=*/true);
  }
  void BeginFlip(Operation* operation, bool leaves) {
    flipping_ = operation->flips = true;
    operation->known_generation = HighestEven();
    for (const uint16_t presence : InSync()) {
      const Presence& at = presences_[presence];
      if (at.alive && at.generation == operation->known_generation) operation->known.push_back(presence);
    }
    for (int copy = 0; copy < SpanCopies::kMost && leaves; ++copy) {
      const CopyState state = span_.state(copy);
      if ((state != CopyState::kInSync && state != CopyState::kStale) || Random(3) == 0) continue;
      operation->leaves.push_back(span_.presence(copy));
      operation->change->Leave(span_.presence(copy));
    }
    operation->shuts = Random(2) == 0;
    if (operation->shuts) operation->change->SetShuts();
    GoOn(operation);
  }
  // Of those that were in sync.
  void NoteLeft(const std::vector<uint16_t>& before) {
    bool some_left = false;
    for (const uint16_t presence : before) {
      if (PlaceOf(presence) >= 0) continue;
      some_left = true;
      ++totals_->left;
    }
    // Nobody has died since the flip began.
    if (some_left && AliveInSync() == 0) failure_ = "a copy has left, and no other that counts is alive: " + Describe();
  }
  void EndFlip(Operation* operation, bool stored) {
    flipping_ = false;
    for (const uint16_t presence : operation->leaves) {
      if (PlaceOf(presence) < 0) FreeLeftover(presence);
    }
    if (stored) CheckReaders(*operation);
    if (operation->kind == Operation::Kind::kShed) return End(operation);
    if (stored) ++totals_->repairs;
    EndRepair(operation);
  }
  // Who has read the span's copies himself before, and asks all that he knew, must be told by one of them.
  void CheckReaders(const Operation& operation) {
    bool some_left = false;
    bool some_refuse = false;
    for (const uint16_t presence : operation.known) {
      const Presence& at = presences_[presence];
      some_left = some_left || PlaceOf(presence) < 0;
      some_refuse = some_refuse || !at.alive || at.generation != operation.known_generation;
    }
    const bool must_refuse = some_left && (operation.shuts || operation.kind == Operation::Kind::kShed);
    if (!must_refuse) return;
    ++totals_->refused;
    if (!some_refuse) failure_ = "a reader would still be answered by all that it knows: " + Describe();
  }
  // As the repairer does, once; it may be lost, or come late.
  void FreeLeftover(uint16_t presence) {
    Message message{};
    message.presence = presence;
    message.generation = Raw(span_.generation()) - 1;
    message.trims = true;
    Send(nullptr, message);
  }
  void EndRepair(Operation* operation) {
    repairing_ = false;
    End(operation);
  }

  // --- The network and the servers.
  void Send(Operation* operation, Message message) {
    // Some of what was given up never comes.
    if (messages_.size() > 60) messages_.remove_if([](const Message& old) { return old.sender == nullptr; });
    message.sender = operation;
    message.connection = presences_[message.presence].connection;
    const bool known_dead = !presences_[message.presence].alive && !IsSilent(message.presence);
    if (known_dead) return Answer(message, CopiedChange::End::kMissed, 0);
    messages_.push_back(message);
  }
  void Deliver() {
    auto it = messages_.begin();
    std::advance(it, Random(messages_.size()));
    const Message message = *it;
    messages_.erase(it);
    Presence& at = presences_[message.presence];
    if (!at.alive || message.connection < at.newest_heard) return Answer(message, CopiedChange::End::kMissed, 0);
    if (storm_ && Random(2) == 0) {
      if (message.sender == nullptr) return;  // it never comes
      messages_.push_back(message);
      return Break(message.presence);
    }
    at.newest_heard = std::max(at.newest_heard, message.connection);
    const bool is_other = message.generation < at.generation ||
                          (message.is_read && message.generation != at.generation) ||
                          (at.generation == 0 && !message.creates);
    if (!is_other && message.trims) {
      at.generation = message.generation;
      at.values.fill(0);
      return;
    }
    uint64_t found = 0;
    if (!is_other && message.is_read) {
      found = at.values[message.first];
    } else if (!is_other) {
      if (message.creates && message.generation > at.generation) at.values.fill(0);
      at.generation = message.generation;
      for (int b = 0; b < message.count; ++b) at.values[message.first + b] = message.value;
    }
    // An answer that is lost breaks the connection.
    if (!calm_ && Random(storm_ ? 2 : 12) == 0) {
      messages_.push_front(message);
      messages_.front().connection = -1;  // executed already
      return Break(message.presence);
    }
    answers_.push_back({message, is_other ? CopiedChange::End::kOtherGeneration : CopiedChange::End::kStored, found});
    if (Random(2) == 0) DeliverAnswer();
  }
  void DeliverAnswer() {
    auto it = answers_.begin();
    std::advance(it, Random(answers_.size()));
    const Reply reply = *it;
    answers_.erase(it);
    Answer(reply.message, reply.end, reply.found);
  }
  void Answer(const Message& message, CopiedChange::End end, uint64_t found) {
    Operation* const operation = message.sender;
    if (operation == nullptr) return;
    const bool stored = end == CopiedChange::End::kStored;
    if (stored && !message.is_read) presences_[message.presence].sure = true;
    operation->answered = stored;
    operation->found = found;
    if (operation->change != nullptr) operation->change->Ended(message.presence, end);
    // Not from within a loop that sends.
    if (--operation->under_way == 0) ready_.push_back(operation);
    if (pumping_) return;
    pumping_ = true;
    while (!ready_.empty()) {
      Operation* const of = ready_.front();
      ready_.pop_front();
      if (!of->over && of->under_way == 0) of->next(of);
    }
    pumping_ = false;
  }
  // Nobody waits for what is under way there any more. It may still be executed.
  void Break(uint16_t presence) {
    ++presences_[presence].connection;
    std::vector<Message> given_up;
    for (Message& message : messages_) {
      if (message.presence != presence || message.sender == nullptr) continue;
      given_up.push_back(message);
      message.sender = nullptr;
    }
    for (auto it = answers_.begin(); it != answers_.end();) {
      if (it->message.presence == presence) {
        given_up.push_back(it->message);
        it = answers_.erase(it);
      } else {
        ++it;
      }
    }
    for (const Message& message : given_up) Answer(message, CopiedChange::End::kMissed, 0);
  }
  void Kill() {
    // Not the last one in sync: then all is lost, which is another test's.
    const int copy = static_cast<int>(Random(SpanCopies::kMost));
    if (span_.state(copy) == CopyState::kAbsent) return;
    const uint16_t presence = span_.presence(copy);
    if (!presences_[presence].alive || (span_.state(copy) == CopyState::kInSync && AliveInSync() < 2)) return;
    // A copy that has just made another dispensable may be the only one.
    if (flipping_) return;
    ++totals_->deaths;
    presences_[presence].alive = false;
    if (Random(2) == 0) {
      // Nobody hears of it for a while.
      ++totals_->silent_deaths;
      deaths_.emplace_back(presence, 1 + static_cast<int>(Random(200)));
      return;
    }
    Bury(presence);
    Break(presence);
  }
  void Bury(uint16_t presence) {
    if (const int copy = PlaceOf(presence); copy >= 0) (void)span_.Bury(1u << copy);
  }

  // Dead, and nobody knows.
  bool IsSilent(uint16_t presence) const {
    return std::any_of(deaths_.begin(), deaths_.end(), [&](const auto& death) { return death.first == presence; });
  }
  int PlaceOf(uint16_t presence) const {
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      if (span_.state(copy) != CopyState::kAbsent && span_.presence(copy) == presence) return copy;
    }
    return -1;
  }
  std::vector<uint16_t> InSync() const {
    std::vector<uint16_t> presences;
    for (unsigned rest = span_.in_sync(); rest != 0; rest &= rest - 1) {
      presences.push_back(span_.presence(std::countr_zero(rest)));
    }
    return presences;
  }
  int AliveInSync() const {
    int alive = 0;
    for (const uint16_t presence : InSync()) alive += presences_[presence].alive ? 1 : 0;
    return alive;
  }

  void CheckCopies() {
    for (unsigned rest = span_.in_sync(); rest != 0; rest &= rest - 1) {
      const Presence& at = presences_[span_.presence(std::countr_zero(rest))];
      const Presence& first = presences_[span_.presence(std::countr_zero(span_.in_sync()))];
      if (at.values != first.values) failure_ = "at rest, two copies in sync differ";
      if (at.generation != Raw(span_.generation())) failure_ = "at rest, a copy in sync has another generation";
    }
  }

  std::mt19937_64 random_;
  Totals* const totals_;
  SpanCopies span_;
  std::unique_ptr<ChangeGate> gate_ = std::make_unique<ChangeGate>();
  std::vector<RegisterHistory> history_;
  std::vector<Presence> presences_;
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
  std::vector<std::pair<uint16_t, int>> deaths_;  // that nobody knows of yet, and for how many steps
  std::string failure_;
};

TEST(CopiedChangeTest, CopiesAreOneRegister) {
  Totals totals;
  const uint64_t seed = TestSeed();
  for (uint64_t round = 0; round < 5'000; ++round) {
    CopiesWorld world(seed + round, &totals);
    const std::string failure = world.Run(400);
    ASSERT_EQ(failure, "") << "NRAM_SEED=" << seed + round;
  }
  std::cerr << totals.writes << " writes, " << totals.failures << " that failed, " << totals.reads << " reads, "
            << totals.repairs << " repairs, " << totals.deaths << " deaths, " << totals.silent_deaths
            << " of which were silent, " << totals.left << " copies that left, " << totals.refused
            << " readers refused, " << totals.losses << " losses\n";
  EXPECT_GT(totals.writes, 10'000);
  EXPECT_GT(totals.failures, 100);
  EXPECT_GT(totals.reads, 10'000);
  EXPECT_GT(totals.repairs, 100);
  EXPECT_GT(totals.deaths, 100);
  EXPECT_GT(totals.silent_deaths, 100);
  EXPECT_GT(totals.left, 1'000);
  EXPECT_GT(totals.refused, 500);
  EXPECT_LT(totals.losses, 250);
}

#ifdef NRAM_PLANT
TEST(CopiedChangeTest, FindsACopyThatLeavesWithoutProof) {
  ASSERT_TRUE(SetPlanted("leaves_without_proof"));
  Totals totals;
  std::string failure;
  uint64_t rounds = 0;
  for (; rounds < 30'000 && failure.empty(); ++rounds) failure = CopiesWorld(rounds, &totals).Run(400);
  planted = Plant::none;
  EXPECT_NE(failure.find("no other that counts is alive"), std::string::npos) << failure;
  std::cerr << "found after " << rounds << " worlds\n";
}
#endif  // NRAM_PLANT

}  // namespace
}  // namespace nram::sim
