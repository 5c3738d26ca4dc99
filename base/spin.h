#ifndef NRAM_BASE_SPIN_H_
#define NRAM_BASE_SPIN_H_

#include <algorithm>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace nram {

// How long waiters may poll before they sleep. Polling saves two wake-ups of threads for each round trip, and costs a
// core while it lasts.
struct SpinOptions {
  static constexpr int64_t kDefaultUs = 50;
  int64_t limit_us = AutoLimitUs();

  // The default: kDefaultUs where there are at least 4 processors, none where cores are scarce.
  static int64_t AutoLimitUs() { return std::thread::hardware_concurrency() >= 4 ? kDefaultUs : 0; }

  // "auto", "off", "on" or a number of microseconds up to 10000.
  static absl::Status Parse(absl::string_view text, SpinOptions* options) {
    int64_t us = 0;
    if (text == "auto") {
      options->limit_us = AutoLimitUs();
    } else if (text == "off") {
      options->limit_us = 0;
    } else if (text == "on") {
      options->limit_us = kDefaultUs;
    } else if (absl::SimpleAtoi(text, &us) && us >= 0 && us <= 10000) {
      options->limit_us = us;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is not accepted: expected auto, off, on or 0 to 10000 (microseconds)"));
    }
    return absl::OkStatus();
  }
};

// Call it between two looks at a socket: a look takes the socket's lock, which the thread that delivers to the socket
// needs.
inline void SpinPause() { __builtin_ia32_pause(); }

// Decides for one waiter how long its next wait may poll: up to the limit while waits usually end about that soon, else
// not at all, except for a try now and then. Not thread-safe.
class SpinPolicy {
 public:
  explicit SpinPolicy(SpinOptions options) : limit_ns_(options.limit_us * kNsPerUs) {}

  bool enabled() const { return limit_ns_ > 0; }

  int64_t NextBudgetNs() {
    if (limit_ns_ == 0) return 0;
    if (typical_wait_ns_ <= 2 * limit_ns_) return limit_ns_;
    return ++skipped_ % kTryEvery == 0 ? limit_ns_ : 0;
  }
  void Report(int64_t waited_ns) {
    // A sleep of minutes must not take minutes to forget.
    waited_ns = std::min(waited_ns, 16 * limit_ns_);
    typical_wait_ns_ += (waited_ns - typical_wait_ns_) / 8;
  }

 private:
  static constexpr uint32_t kTryEvery = 16;
  const int64_t limit_ns_;
  int64_t typical_wait_ns_ = 0;
  uint32_t skipped_ = 0;
};

}  // namespace nram

#endif  // NRAM_BASE_SPIN_H_
