#include "base/wake_latency.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {
namespace {

constexpr char kDevice[] = "/dev/cpu_dma_latency";
constexpr unsigned kAutoProcessorsMax = 16;

}  // namespace

absl::Status ParseFastWake(absl::string_view text, FastWake* fast_wake) {
  if (text == "auto") {
    *fast_wake = FastWake::kAuto;
  } else if (text == "on") {
    *fast_wake = FastWake::kOn;
  } else if (text == "off") {
    *fast_wake = FastWake::kOff;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not accepted: expected auto, on or off"));
  }
  return absl::OkStatus();
}

WakeLatency::WakeLatency(FastWake fast_wake)
    : enabled_((fast_wake == FastWake::kOn ||
                (fast_wake == FastWake::kAuto && std::thread::hardware_concurrency() <= kAutoProcessorsMax)) &&
               access(kDevice, W_OK) == 0) {
  if (enabled_) thread_ = std::thread([this] { Run(); });
}

WakeLatency::~WakeLatency() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void WakeLatency::Look() {
  const int64_t now_ns = MonotonicNs();
  const int64_t since_ns = now_ns - looked_ns_.exchange(now_ns, std::memory_order_relaxed);
  if (held() || since_ns > static_cast<int64_t>(kLookEvery) * kNsPerSecond / kPerSecondMin) return;
  MutexLock lock(&mu_);
  wanted_ = true;
  changed_.SignalAll();
}

void WakeLatency::Run() {
  UniqueFd device;
  uint64_t seen = 0;
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (!wanted_) {
      changed_.WaitUntil(&mu_, DeadlineAfterMs(3'600'000));
      continue;
    }
    const int64_t deadline_ns = DeadlineAfterMs(kPeriodMs);
    if (!device.valid()) {
      device.reset(open(kDevice, O_WRONLY | O_CLOEXEC));
      const int32_t latency_us = 0;
      (void)!write(device.get(), &latency_us, sizeof latency_us);
      held_ = true;
      seen = count_.load();
    }
    while (!stopping_ && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
    const uint64_t count = count_.load();
    if (stopping_ || count - seen < kPerSecondMin * kPeriodMs / 1000 / 2) {
      device.reset();
      held_ = false;
      wanted_ = false;
    }
    seen = count;
  }
}

}  // namespace nram
