// Copies join and leave.

#include <bit>
#include <memory>
#include <vector>

#include "tests/sim/copies_world.h"

namespace nram::sim {

void CopiesWorld::BeginRepair(Operation* operation) {
  if (repairing_ || span_.in_sync() == 0) return End(operation);
  // The same life that missed a message, or a new one.
  uint16_t replica_host = NewReplicaHost();
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (span_.state(copy) == CopyState::kStale && replica_hosts_[span_.replica_host(copy)].alive && Random(2) == 0) {
      replica_host = span_.replica_host(copy);
      // Its leaf is emptied by the first message of the odd generation, which creates.
      replica_hosts_[replica_host].sure = false;
      replica_hosts_[replica_host].connection++;
      break;
    }
  }
  // Or one that has left: the message that frees the leftover may still be on its way.
  if (Random(3) == 0) {
    const auto former = static_cast<uint16_t>(Random(replica_hosts_.size()));
    if (replica_hosts_[former].alive && PlaceOf(former) < 0) {
      replica_host = former;
      replica_hosts_[replica_host].sure = false;
    }
  }
  operation->joined = span_.Join(replica_host);
  if (operation->joined < 0) return End(operation);
  repairing_ = true;
  operation->replica_host = replica_host;
  operation->block = 0;
  operation->left = 100'000;
  Enter(operation, GatePlace::Kind::kChange, 0, kBlocks, &CopiesWorld::OpenCopy);
}

void CopiesWorld::OpenCopy(Operation* operation) {
  const auto is_there = [this](const Operation& of) {
    return span_.state(of.joined) == CopyState::kStale && span_.replica_host(of.joined) == of.replica_host;
  };
  if (!is_there(*operation) || !span_.placed()) return EndRepair(operation);
  span_.BeginOpen(operation->joined);
  Message message{};
  message.replica_host = operation->replica_host;
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

bool CopiesWorld::StillJoining(const Operation& operation) const {
  return span_.state(operation.joined) == CopyState::kCatchingUp &&
         span_.replica_host(operation.joined) == operation.replica_host;
}

void CopiesWorld::CopyBlock(Operation* operation) {
  LeaveGate(operation);
  if (operation->block == kBlocks) {
    return Enter(operation, GatePlace::Kind::kChange, 0, kBlocks, &CopiesWorld::Flip);
  }
  Enter(operation, GatePlace::Kind::kChange, operation->block, 1, &CopiesWorld::ReadBlock);
}

void CopiesWorld::ReadBlock(Operation* operation) {
  if (!StillJoining(*operation) || span_.in_sync() == 0) return EndRepair(operation);
  if (span_.doubtful() || span_.unsettled()) {
    // The block is copied once more, after that.
    LeaveGate(operation);
    Start(Operation::Kind::kSettle);
    return CopyBlock(operation);
  }
  Message message{};
  const int from = std::countr_zero(span_.in_sync());
  message.replica_host = span_.replica_host(from);
  message.generation = Raw(span_.generation());
  message.first = operation->block;
  message.is_read = true;
  operation->answered = false;
  operation->under_way = 1;
  operation->next = [this](Operation* of) { WriteBlock(of); };
  Send(operation, message);
}

void CopiesWorld::WriteBlock(Operation* operation) {
  if (!StillJoining(*operation)) return EndRepair(operation);
  if (!operation->answered || span_.doubtful() || span_.unsettled()) {
    (void)span_.EndChange(span_.in_sync(), 0);
    return EndRepair(operation);
  }
  Message message{};
  message.replica_host = operation->replica_host;
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

void CopiesWorld::Flip(Operation* operation) {
  if (!StillJoining(*operation)) return EndRepair(operation);
  operation->change = std::make_unique<CopiedChange>(CopiedChange::Kind::kJoin);
  operation->change->SetCopy(operation->replica_host);
  BeginFlip(operation, /*leaves=*/Random(2) == 0);
}

void CopiesWorld::Shed(Operation* operation) {
  if (repairing_ || std::popcount(span_.in_sync()) < 2) return End(operation);
  operation->change = std::make_unique<CopiedChange>(CopiedChange::Kind::kJoin);
  BeginFlip(operation, /*leaves=*/true);
}

void CopiesWorld::BeginFlip(Operation* operation, bool leaves) {
  flipping_ = operation->flips = true;
  operation->known_generation = HighestEven();
  for (const uint16_t replica_host : InSync()) {
    const ReplicaHost& at = replica_hosts_[replica_host];
    if (at.alive && at.generation == operation->known_generation) operation->known.push_back(replica_host);
  }
  for (int copy = 0; copy < SpanCopies::kMost && leaves; ++copy) {
    const CopyState state = span_.state(copy);
    if ((state != CopyState::kInSync && state != CopyState::kStale) || Random(3) == 0) continue;
    operation->leaves.push_back(span_.replica_host(copy));
    operation->change->Leave(span_.replica_host(copy));
  }
  operation->shuts = Random(2) == 0;
  if (operation->shuts) operation->change->SetShuts();
  GoOn(operation);
}

void CopiesWorld::NoteLeft(const std::vector<uint16_t>& before) {
  bool some_left = false;
  for (const uint16_t replica_host : before) {
    if (PlaceOf(replica_host) >= 0) continue;
    some_left = true;
    ++totals_->left;
  }
  // No server has died since the flip began.
  if (some_left && AliveInSync() == 0) failure_ = "a copy has left, and no other that counts is alive: " + Describe();
}

void CopiesWorld::EndFlip(Operation* operation, bool stored) {
  flipping_ = false;
  for (const uint16_t replica_host : operation->leaves) {
    if (PlaceOf(replica_host) < 0) FreeLeftover(replica_host);
  }
  if (stored) CheckReaders(*operation);
  if (operation->kind == Operation::Kind::kShed) return End(operation);
  if (stored) ++totals_->repairs;
  EndRepair(operation);
}

void CopiesWorld::CheckReaders(const Operation& operation) {
  bool some_left = false;
  bool some_refuse = false;
  for (const uint16_t replica_host : operation.known) {
    const ReplicaHost& at = replica_hosts_[replica_host];
    some_left = some_left || PlaceOf(replica_host) < 0;
    some_refuse = some_refuse || !at.alive || at.generation != operation.known_generation;
  }
  const bool must_refuse = some_left && (operation.shuts || operation.kind == Operation::Kind::kShed);
  if (!must_refuse) return;
  ++totals_->refused;
  if (!some_refuse) failure_ = "a reader would still be answered by all that it knows: " + Describe();
}

void CopiesWorld::FreeLeftover(uint16_t replica_host) {
  Message message{};
  message.replica_host = replica_host;
  message.generation = Raw(span_.generation()) - 1;
  message.trims = true;
  Send(nullptr, message);
}

void CopiesWorld::EndRepair(Operation* operation) {
  repairing_ = false;
  End(operation);
}

}  // namespace nram::sim
