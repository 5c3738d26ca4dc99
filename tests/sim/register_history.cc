#include "tests/sim/register_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace nram::sim {

void RegisterHistory::EndWrite(uint64_t number, bool known, Moment now, Moment oldest) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].number != number) continue;
    if (known) {
      values_[i].first_end = std::min(values_[i].first_end, now);
      NoteEffect(i, now);
    } else {
      values_[i].failed = now;
    }
    break;
  }
  Prune(oldest);
}

void RegisterHistory::NoteEffect(size_t at, Moment now) {
  const Value& value = values_[at];
  for (Value& other : values_) {
    if (other.failed < value.write_began) other.dead = std::min(other.dead, now);
  }
  NoteOther(value, value.write_began, now);
}

void RegisterHistory::NoteOther(const Value& found, Moment began, Moment now) {
  for (Value& other : values_) {
    if (&other != &found && other.first_end < began) other.dead = std::min(other.dead, now);
  }
}

int RegisterHistory::FindConflict(size_t at, Moment began, Moment now) const {
  const Value& found = values_[at];
  if (began > found.dead) return static_cast<int>(at);
  const Moment last_begin = std::max(found.last_begin, began);
  const Moment first_end = effect_ == Effect::kOnce ? std::min(found.first_end, now) : found.first_end;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (i == at) continue;
    if (first_end < values_[i].last_begin && values_[i].first_end < last_begin) return static_cast<int>(i);
  }
  return -1;
}

void RegisterHistory::NoteRead(size_t at, Moment began, Moment now) {
  Value& found = values_[at];
  const bool first = found.first_end == kNever;
  found.last_begin = std::max(found.last_begin, began);
  if (effect_ == Effect::kOnce) found.first_end = std::min(found.first_end, now);
  if (first) NoteEffect(at, now);
  NoteOther(found, began, now);
}

std::string RegisterHistory::EndRead(uint64_t number, Moment began, Moment now, Moment oldest) {
  const auto it = std::find_if(values_.begin(), values_.end(),
                               [&](const Value& value) { return value.number == number && !value.zeros; });
  if (it == values_.end()) {
    return absl::StrCat("found write ", number, ", which was overwritten long ago or never begun; ", Describe());
  }
  const auto at = static_cast<size_t>(it - values_.begin());
  if (const int conflict = FindConflict(at, began, now); conflict >= 0) {
    return absl::StrCat("a read begun at ", began, " found write ", number, " although write ",
                        values_[conflict].number, " stands after it; ", Describe());
  }
  NoteRead(at, began, now);
  Prune(oldest);
  return "";
}

std::string RegisterHistory::EndReadOfZeros(Moment began, Moment now, Moment oldest) {
  int possible = -1;
  int count = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].zeros || FindConflict(i, began, now) >= 0) continue;
    possible = static_cast<int>(i);
    ++count;
  }
  if (count == 0) return absl::StrCat("a read begun at ", began, " found zeros instead of data; ", Describe());
  // The read does not tell several zeros apart.
  if (count == 1) NoteRead(static_cast<size_t>(possible), began, now);
  Prune(oldest);
  return "";
}

bool RegisterHistory::MustHoldData() const {
  return std::none_of(values_.begin(), values_.end(), [](const Value& value) { return value.zeros; });
}

void RegisterHistory::Prune(Moment oldest) {
  if (values_.size() == 1) return;
  // Values that stand before one that is over are over too.
  const auto is_over = [&](const Value& value) {
    if (value.over || value.dead < oldest) return true;
    return std::any_of(values_.begin(), values_.end(), [&](const Value& other) {
      return &other != &value && value.first_end < other.last_begin && (other.over || other.first_end < oldest);
    });
  };
  size_t count = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (Value& value : values_) {
      if (value.over || !is_over(value)) continue;
      value.over = changed = true;
      ++count;
    }
  }
  if (count > 0) std::erase_if(values_, [](const Value& value) { return value.over; });
}

std::string RegisterHistory::Describe() const {
  const auto text = [](Moment moment) { return moment == kNever ? "-" : absl::StrCat(moment); };
  std::string all = "writes that may be there:";
  for (const Value& value : values_) {
    absl::StrAppend(&all, " ", value.number, value.zeros ? "z" : "", "[began ", text(value.write_began),
                    ", last begin ", text(value.last_begin), ", first end ", text(value.first_end), ", failed ",
                    text(value.failed), ", dead ", text(value.dead), "]");
  }
  return all;
}

}  // namespace nram::sim
