
#include "tests/sim/copies_world.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

namespace nram::sim {

CopiesWorld::CopiesWorld(uint64_t seed, CopiesTotals* totals) : random_(seed), totals_(totals) {
  for (int i = 0; i < kBlocks; ++i) history_.emplace_back(RegisterHistory::Effect::kOnce);
  std::vector<uint16_t> replica_hosts;
  const uint64_t count = 1 + Random(3);
  for (uint64_t i = 0; i < count; ++i) replica_hosts.push_back(NewReplicaHost());
  moves_ = Random(2) == 0;
  span_.Place(replica_hosts, /*one_copy=*/false);
}

CopiesWorld::~CopiesWorld() {
  // Operations under way when a world has failed have no end.
  if (!operations_.empty()) (void)gate_.release();
}

std::string CopiesWorld::Run(int steps) {
  for (int i = 0; i < steps && IsOn(); ++i) Step(i);
  for (const auto& death : deaths_) Bury(death.first);
  deaths_.clear();
  // The quiet phase: everything arrives, all operations end, and all copies in sync are the same.
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

uint16_t CopiesWorld::NewReplicaHost() {
  replica_hosts_.emplace_back();
  return static_cast<uint16_t>(replica_hosts_.size() - 1);
}

Moment CopiesWorld::Oldest() const {
  Moment oldest = now_;
  for (const auto& operation : operations_) {
    if (operation->kind == Operation::Kind::kRead) oldest = std::min(oldest, operation->began);
  }
  return oldest;
}

void CopiesWorld::Step(int number) {
  const uint64_t choice = Random(100);
  if (!calm_ && choice < 20 && operations_.size() < 8) {
    const uint64_t kind = Random(moves_ ? 24 : 20);
    Start(kind < 9    ? Operation::Kind::kWrite
          : kind < 18 ? Operation::Kind::kRead
          : kind < 19 ? Operation::Kind::kSettle
          : kind < 22 ? Operation::Kind::kRepair
                      : Operation::Kind::kShed);
  } else if (!calm_ && choice < 32) {
    Break(static_cast<uint16_t>(Random(replica_hosts_.size())));
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
  // An operation that waits too long for an answer breaks the connection.
  for (auto it = messages_.begin(); it != messages_.end(); ++it) {
    if (it->sender != nullptr && it->sender->left < -200) {
      Break(it->replica_host);
      break;
    }
  }
  operations_.remove_if([](const auto& operation) { return operation->over; });
  CheckOthersRefuse();
}

std::string CopiesWorld::Describe() const {
  std::string text = "generation " + std::to_string(Raw(span_.generation())) + (span_.doubtful() ? ", doubtful" : "") +
                     (span_.unsettled() ? ", unsettled" : "");
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (span_.state(copy) == CopyState::kAbsent) continue;
    const ReplicaHost& at = replica_hosts_[span_.replica_host(copy)];
    text += "; copy " + std::to_string(copy) + " state " + std::to_string(static_cast<int>(span_.state(copy))) +
            " has " + std::to_string(at.generation) + (at.alive ? "" : " dead") + (at.sure ? "" : " unsure");
  }
  return text;
}

int CopiesWorld::PlaceOf(uint16_t replica_host) const {
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (span_.state(copy) != CopyState::kAbsent && span_.replica_host(copy) == replica_host) return copy;
  }
  return -1;
}

std::vector<uint16_t> CopiesWorld::InSync() const {
  std::vector<uint16_t> replica_hosts;
  for (unsigned rest = span_.in_sync(); rest != 0; rest &= rest - 1) {
    replica_hosts.push_back(span_.replica_host(std::countr_zero(rest)));
  }
  return replica_hosts;
}

int CopiesWorld::AliveInSync() const {
  int alive = 0;
  for (const uint16_t replica_host : InSync()) alive += replica_hosts_[replica_host].alive ? 1 : 0;
  return alive;
}

uint32_t CopiesWorld::HighestEven() const {
  uint32_t highest = 0;
  for (const ReplicaHost& at : replica_hosts_) {
    if (at.alive && at.generation % 2 == 0) highest = std::max(highest, at.generation);
  }
  return highest;
}

void CopiesWorld::CheckOthersRefuse() {
  if (span_.doubtful()) return;
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    const CopyState state = span_.state(copy);
    if (state != CopyState::kStale && (state != CopyState::kCatchingUp || flipping_)) continue;
    const ReplicaHost& at = replica_hosts_[span_.replica_host(copy)];
    if (at.generation == Raw(span_.generation())) {
      failure_ = "copy " + std::to_string(copy) + " (state " + std::to_string(static_cast<int>(state)) +
                 ") is not in sync and could be believed: generation " + std::to_string(at.generation);
    }
  }
}

void CopiesWorld::CheckNextOwner() {
  const uint32_t highest = HighestEven();
  CopySet in_sync = span_.in_sync();
  for (size_t i = 0; i < replica_hosts_.size(); ++i) {
    if (!replica_hosts_[i].alive || replica_hosts_[i].generation != highest) continue;
    const bool believed = [&] {
      for (unsigned rest = in_sync; rest != 0; rest &= rest - 1) {
        if (span_.replica_host(std::countr_zero(rest)) == i) return true;
      }
      return false;
    }();
    if (!believed) failure_ = "the next owner would believe a copy that is not in sync";
  }
}

void CopiesWorld::CheckCopies() {
  for (unsigned rest = span_.in_sync(); rest != 0; rest &= rest - 1) {
    const ReplicaHost& at = replica_hosts_[span_.replica_host(std::countr_zero(rest))];
    const ReplicaHost& first = replica_hosts_[span_.replica_host(std::countr_zero(span_.in_sync()))];
    if (at.values != first.values) failure_ = "at rest, two copies in sync differ";
    if (at.generation != Raw(span_.generation())) failure_ = "at rest, a copy in sync has another generation";
  }
}

}  // namespace nram::sim
