#ifndef NRAM_CLIENT_POOL_SLOW_WAITS_H_
#define NRAM_CLIENT_POOL_SLOW_WAITS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "client/pool/retry_queue.h"

namespace nram {

// An account of the waits for one server, and a line for the log now and then about long ones: the kind of wait, and
// its length. Operations that need not wait are not counted. Not thread-safe.
class SlowWaits {
 public:
  static constexpr int64_t kSlowNs = kNsPerSecond;
  static constexpr int64_t kLogAgainNs = 10 * kNsPerSecond;

  struct Total {
    uint64_t count = 0;
    int64_t ns = 0;
  };
  // By Waiter::For.
  using Totals = std::array<Total, 3>;
  // For figures and the log.
  static const char* NameOf(Waiter::For what);

  // A wait of `waited_ns` has ended so. Returns the log's line about it and those before it; "": none.
  std::string Note(Waiter::For what, Waiter::Outcome outcome, int64_t waited_ns, int64_t now_ns);
  const Totals& totals() const { return totals_; }

 private:
  Totals totals_;
  uint64_t slow_ = 0;       // since the last line
  int64_t longest_ns_ = 0;  // of these
  int64_t logged_ns_ = 0;   // 0: never
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SLOW_WAITS_H_
