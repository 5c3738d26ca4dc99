#include "members/roster.h"

#include <utility>

namespace nram {

Roster::Roster(const std::vector<Endpoint>& first, size_t most) : most_(most), entries_(first.size()) {
  for (size_t i = 0; i < first.size(); ++i) numbers_[first[i].ToString()] = i;
}

Roster::Step Roster::Hear(const std::vector<Member>& members, bool counts) {
  Step step;
  for (Entry& entry : entries_) entry.listed = false;
  for (const Member& member : members) {
    std::string name = member.endpoint.ToString();
    const auto known = numbers_.find(name);
    if (known != numbers_.end()) {
      Entry& entry = entries_[known->second];
      entry.listed = true;
      entry.absences = entry.absences_of_many = 0;
      if (std::exchange(entry.left, false)) step.returns.push_back(known->second);
    } else if (entries_.size() >= most_) {
      ++step.refused;
    } else {
      numbers_.emplace(std::move(name), entries_.size());
      entries_.emplace_back();
      step.joins.push_back(member.endpoint);
    }
  }
  if (!counts) return step;
  size_t there = 0;
  size_t absent = 0;
  for (const Entry& entry : entries_) {
    if (entry.left) continue;
    ++(entry.listed ? there : absent);
  }
  // Each kind has its own count: a source that recovers bit by bit is at fault for those that still lack, too.
  const bool many = absent > there;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.listed || entry.left) continue;
    if (many ? ++entry.absences_of_many < kAbsencesOfMany : ++entry.absences < kAbsences) continue;
    entry.left = true;
    step.leaves.push_back(i);
  }
  return step;
}

}  // namespace nram
