#include "client/pool/slow_waits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nram {
namespace {

const char* EndOf(Waiter::Outcome outcome) {
  switch (outcome) {
    case Waiter::Outcome::kUsable:
    case Waiter::Outcome::kGranted:
      return "got it";
    case Waiter::Outcome::kRefused:
      return "was refused";
    case Waiter::Outcome::kNoAnswer:
      return "had no answer";
    case Waiter::Outcome::kAwayTooLong:
      return "gave up: the server has been away for too long";
    case Waiter::Outcome::kLate:
      return "gave up at its deadline";
    case Waiter::Outcome::kClosing:
      return "gave up: the pool closes";
  }
  return "ended";
}

}  // namespace

const char* SlowWaits::NameOf(Waiter::For what) {
  switch (what) {
    case Waiter::For::kConnection:
      return "connection";
    case Waiter::For::kRoom:
      return "room";
    case Waiter::For::kReservedRoom:
      return "reserved_room";
  }
  return "other";
}

std::string SlowWaits::Note(Waiter::For what, Waiter::Outcome outcome, int64_t waited_ns, int64_t now_ns) {
  Total& total = totals_[static_cast<size_t>(what)];
  ++total.count;
  total.ns += std::max<int64_t>(waited_ns, 0);
  if (waited_ns < kSlowNs) return "";
  ++slow_;
  longest_ns_ = std::max(longest_ns_, waited_ns);
  if (logged_ns_ != 0 && now_ns - logged_ns_ < kLogAgainNs) return "";
  logged_ns_ = now_ns;
  const auto seconds = [](int64_t ns) { return static_cast<double>(ns) / kNsPerSecond; };
  std::string line = absl::StrFormat("an operation has waited %.1f s for its %s, and %s", seconds(waited_ns),
                                     what == Waiter::For::kConnection ? "connection"
                                     : what == Waiter::For::kRoom     ? "room"
                                                                      : "region's reserved room",
                                     EndOf(outcome));
  if (slow_ > 1) {
    absl::StrAppend(&line, absl::StrFormat("; %d more since the last such line, the longest %.1f s", slow_ - 1,
                                           seconds(longest_ns_)));
  }
  slow_ = 0;
  longest_ns_ = 0;
  return line;
}

}  // namespace nram
