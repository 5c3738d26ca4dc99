#ifndef NRAM_MEMBERS_ROSTER_H_
#define NRAM_MEMBERS_ROSTER_H_

// The members, by all answers of a source so far. Pure: takes the source's answers, and returns the changes.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "members/member_source.h"

namespace nram {

// A member has a number, which is never another's. Not thread-safe.
class Roster {
 public:
  // Words without a member, one after the other, until it counts as removed.
  static constexpr int kAbsences = 3;
  // The same when more than half of the members are absent at once: rather the source is at fault.
  static constexpr int kAbsencesOfMany = 30;

  struct Step {
    std::vector<Endpoint> joins;  // they get the next numbers, in this order
    std::vector<size_t> leaves;   // they get no new pages, and their pages are to move
    std::vector<size_t> returns;  // they were removed, and are members again
    size_t refused = 0;           // beyond the numbers that there are

    bool empty() const { return joins.empty() && leaves.empty() && returns.empty(); }
  };

  // `first` have the numbers from 0 on. `most`: numbers that there are.
  Roster(const std::vector<Endpoint>& first, size_t most);

  // A whole list. `counts`: those that it lacks have been absent once more; it is to be so once a period, however often
  // the source speaks.
  Step Hear(const std::vector<Member>& members, bool counts);

  size_t size() const { return entries_.size(); }
  // In the last list.
  bool is_listed(size_t number) const { return entries_[number].listed; }
  bool has_left(size_t number) const { return entries_[number].left; }

 private:
  struct Entry {
    bool listed = true;
    bool left = false;
    int absences = 0;          // in a row, in words that lack few
    int absences_of_many = 0;  // and in those that lack more than half
  };

  const size_t most_;
  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, size_t> numbers_;  // by the endpoint's text
};

}  // namespace nram

#endif  // NRAM_MEMBERS_ROSTER_H_
