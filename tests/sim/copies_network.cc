// Messages on their way, and the servers that execute them; connections that break, and servers that die.

#include <algorithm>
#include <iterator>
#include <vector>

#include "tests/sim/copies_world.h"

namespace nram::sim {

void CopiesWorld::Send(Operation* operation, Message message) {
  // A part of the messages that were given up never arrives.
  if (messages_.size() > 60) messages_.remove_if([](const Message& old) { return old.sender == nullptr; });
  message.sender = operation;
  message.connection = replica_hosts_[message.replica_host].connection;
  const bool known_dead = !replica_hosts_[message.replica_host].alive && !IsSilent(message.replica_host);
  if (known_dead) return Answer(message, CopiedChange::End::kMissed, 0);
  messages_.push_back(message);
}

void CopiesWorld::Deliver() {
  auto it = messages_.begin();
  std::advance(it, Random(messages_.size()));
  const Message message = *it;
  messages_.erase(it);
  ReplicaHost& at = replica_hosts_[message.replica_host];
  if (!at.alive || message.connection < at.newest_heard) return Answer(message, CopiedChange::End::kMissed, 0);
  if (storm_ && Random(2) == 0) {
    if (message.sender == nullptr) return;  // it never arrives
    messages_.push_back(message);
    return Break(message.replica_host);
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
  // A lost answer breaks the connection.
  if (!calm_ && Random(storm_ ? 2 : 12) == 0) {
    messages_.push_front(message);
    messages_.front().connection = -1;  // executed already
    return Break(message.replica_host);
  }
  answers_.push_back({message, is_other ? CopiedChange::End::kOtherGeneration : CopiedChange::End::kStored, found});
  if (Random(2) == 0) DeliverAnswer();
}

void CopiesWorld::DeliverAnswer() {
  auto it = answers_.begin();
  std::advance(it, Random(answers_.size()));
  const Reply reply = *it;
  answers_.erase(it);
  Answer(reply.message, reply.end, reply.found);
}

void CopiesWorld::Answer(const Message& message, CopiedChange::End end, uint64_t found) {
  Operation* const operation = message.sender;
  if (operation == nullptr) return;
  const bool stored = end == CopiedChange::End::kStored;
  if (stored && !message.is_read) replica_hosts_[message.replica_host].sure = true;
  operation->answered = stored;
  operation->found = found;
  if (operation->change != nullptr) operation->change->Ended(message.replica_host, end);
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

void CopiesWorld::Break(uint16_t replica_host) {
  ++replica_hosts_[replica_host].connection;
  std::vector<Message> given_up;
  for (Message& message : messages_) {
    if (message.replica_host != replica_host || message.sender == nullptr) continue;
    given_up.push_back(message);
    message.sender = nullptr;
  }
  for (auto it = answers_.begin(); it != answers_.end();) {
    if (it->message.replica_host == replica_host) {
      given_up.push_back(it->message);
      it = answers_.erase(it);
    } else {
      ++it;
    }
  }
  for (const Message& message : given_up) Answer(message, CopiedChange::End::kMissed, 0);
}

void CopiesWorld::Kill() {
  // Not the last one in sync: then all is lost, which another test covers.
  const int copy = static_cast<int>(Random(SpanCopies::kMost));
  if (span_.state(copy) == CopyState::kAbsent) return;
  const uint16_t replica_host = span_.replica_host(copy);
  if (!replica_hosts_[replica_host].alive || (span_.state(copy) == CopyState::kInSync && AliveInSync() < 2)) return;
  // A copy that has just made another dispensable may be the only one.
  if (flipping_) return;
  ++totals_->deaths;
  replica_hosts_[replica_host].alive = false;
  if (Random(2) == 0) {
    // The owner does not learn of it for a while.
    ++totals_->silent_deaths;
    deaths_.emplace_back(replica_host, 1 + static_cast<int>(Random(200)));
    return;
  }
  Bury(replica_host);
  Break(replica_host);
}

void CopiesWorld::Bury(uint16_t replica_host) {
  if (const int copy = PlaceOf(replica_host); copy >= 0) (void)span_.Bury(1u << copy);
}

bool CopiesWorld::IsSilent(uint16_t replica_host) const {
  return std::any_of(deaths_.begin(), deaths_.end(), [&](const auto& death) { return death.first == replica_host; });
}

}  // namespace nram::sim
