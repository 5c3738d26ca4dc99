#ifndef NRAM_BASE_HOST_WAKE_LATENCY_H_
#define NRAM_BASE_HOST_WAKE_LATENCY_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/sync.h"

namespace nram {

enum class FastWake { kAuto, kOn, kOff };

// "auto", "on" or "off".
absl::Status ParseFastWake(absl::string_view text, FastWake* fast_wake);

// Keeps idle processors from sleeping while there is much to do. It asks the kernel's PM QoS, through the device
// /dev/cpu_dma_latency, which root may open, and other users if a udev rule allows it.
//
// Each round trip wakes two threads. To wake a processor that sleeps takes 40 us on a virtual machine whose host does
// not poll for it; one that polls is there in 2. Not sleeping costs power, or the host's time, so the request is held
// only while Count is called a thousand times a second or more, and given up a tenth of a second later. kAuto is kOn
// on machines of up to 16 processors. A child of fork(2) does not hold the request. Thread-safe.
class WakeLatency {
 public:
  static constexpr char kDevice[] = "/dev/cpu_dma_latency";

  // `device`: a file in place of the kernel's device, for tests.
  explicit WakeLatency(FastWake fast_wake, std::string device = kDevice);
  ~WakeLatency();

  // Says that a thread is about to wait, or that a piece of work has come. Costs a few nanoseconds.
  void Count() {
    if (enabled_ && (count_.fetch_add(1, std::memory_order_relaxed) + 1) % kLookEvery == 0) Look();
  }
  bool held() const { return held_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kLookEvery = 64;
  static constexpr int64_t kPerSecondMin = 1'000;
  static constexpr int64_t kPeriodMs = 100;

  void Look();
  void Run();

  const std::string device_;
  const bool enabled_;
  std::atomic<uint64_t> count_{0};
  std::atomic<int64_t> looked_ns_{0};
  std::atomic<bool> held_{false};
  Mutex mu_;
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_BASE_HOST_WAKE_LATENCY_H_
