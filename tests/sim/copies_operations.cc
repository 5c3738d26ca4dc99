// Writes, settling and reads.

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/copies_world.h"

namespace nram::sim {

void CopiesWorld::Start(Operation::Kind kind) {
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
      operation->block = static_cast<int>(Random(SpanCopies::kMost));  // the copy that it reads first
      return SendRead(operation);
    case Operation::Kind::kRepair:
      return BeginRepair(operation);
    case Operation::Kind::kShed:
      return Enter(operation, GatePlace::Kind::kChange, 0, kBlocks, &CopiesWorld::Shed);
    default:
      operation->change = std::make_unique<CopiedChange>(kind == Operation::Kind::kSettle ? CopiedChange::Kind::kSettle
                                                                                          : CopiedChange::Kind::kData);
      return Enter(operation, GatePlace::Kind::kChange, operation->first, operation->count, &CopiesWorld::GoOn);
  }
}

void CopiesWorld::Enter(Operation* operation, GatePlace::Kind kind, int first, int count,
                        void (CopiesWorld::*then)(Operation*)) {
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

void CopiesWorld::LeaveGate(Operation* operation) {
  if (!operation->in_gate) return;
  operation->in_gate = false;
  gate_->Leave(&operation->gate);
}

void CopiesWorld::End(Operation* operation) {
  operation->over = true;
  LeaveGate(operation);
}

void CopiesWorld::GoOn(Operation* operation) {
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
      message.replica_host = span_.replica_host(copy);
      message.generation = Raw(span_.GenerationFor(copy));
      if (step.joins) message.generation = Raw(span_.generation());
      if (step.shuts) message.generation = Raw(span_.generation()) - 1;
      message.first = operation->first;
      message.count = step.raises_only ? 0 : operation->count;
      message.value = operation->zeros ? 0 : operation->number;
      message.creates = !replica_hosts_[message.replica_host].sure;
      Send(operation, message);
    }
    if (operation->under_way > 0) return;
  }
}

void CopiesWorld::EndChange(Operation* operation, CopiedChange::Step::Kind kind) {
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

void CopiesWorld::SendRead(Operation* operation) {
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
  operation->replica_host = span_.replica_host(copy);
  operation->generation = Raw(span_.generation());
  operation->answered = false;
  operation->under_way = 1;
  operation->next = [this](Operation* of) { LookAtRead(of); };
  Message message{};
  message.replica_host = operation->replica_host;
  message.generation = operation->generation;
  message.first = operation->first;
  message.is_read = true;
  Send(operation, message);
}

void CopiesWorld::LookAtRead(Operation* operation) {
  if (gate_->IsChanging(kRegion, {static_cast<uint64_t>(operation->first), 1})) {
    return Enter(operation, GatePlace::Kind::kLook, operation->first, 1, &CopiesWorld::SendRead);
  }
  bool in_sync = false;
  for (unsigned rest = span_.in_sync(); rest != 0; rest &= rest - 1) {
    in_sync = in_sync || span_.replica_host(std::countr_zero(rest)) == operation->replica_host;
  }
  if (span_.doubtful() || (!operation->answered && span_.unsettled())) {
    // A settle begins; then the read tries again.
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

}  // namespace nram::sim
