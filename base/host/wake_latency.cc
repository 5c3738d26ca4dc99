#include "base/host/wake_latency.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {
namespace {

constexpr unsigned kAutoProcessorsMax = 16;
constexpr size_t kHoldersMax = 64;
constexpr int32_t kAnyLatencyUs = 2'000'000'000;  // the kernel's word for "as long as you like"

// The descriptors by which this process holds the request, plus one; 0: none. They are global, so that the child of a
// fork can close them without a lock.
std::array<std::atomic<int>, kHoldersMax> held_fds;

void CloseInChild() {
  for (std::atomic<int>& held : held_fds) {
    if (const int fd = held.exchange(0) - 1; fd >= 0) close(fd);
  }
}

// The request while it is held.
class Request {
 public:
  explicit Request(const std::string& device) : fd_(open(device.c_str(), O_WRONLY | O_CLOEXEC)) {
    for (size_t i = 0; fd_ >= 0 && slot_ == nullptr && i < kHoldersMax; ++i) {
      int free = 0;
      if (held_fds[i].compare_exchange_strong(free, fd_ + 1)) slot_ = &held_fds[i];
    }
    if (slot_ != nullptr) Ask(0);
  }
  ~Request() {
    // The request is ended by a word, not only by closing: a child that is forked while CloseInChild does not know the
    // descriptor keeps it open.
    if (slot_ != nullptr) {
      Ask(kAnyLatencyUs);
      slot_->store(0);
    }
    if (fd_ >= 0) close(fd_);
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

 private:
  void Ask(int32_t latency_us) { (void)!pwrite(fd_, &latency_us, sizeof latency_us, 0); }

  const int fd_;
  std::atomic<int>* slot_ = nullptr;
};

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

WakeLatency::WakeLatency(FastWake fast_wake, std::string device)
    : device_(std::move(device)),
      enabled_((fast_wake == FastWake::kOn ||
                (fast_wake == FastWake::kAuto && std::thread::hardware_concurrency() <= kAutoProcessorsMax)) &&
               access(device_.c_str(), W_OK) == 0) {
  if (!enabled_) return;
  static const int registered = pthread_atfork(nullptr, nullptr, CloseInChild);
  (void)registered;
  thread_ = std::thread([this] { Run(); });
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
  std::optional<Request> request;
  uint64_t seen = 0;
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (!wanted_) {
      changed_.WaitUntil(&mu_, DeadlineAfterMs(3'600'000));
      continue;
    }
    const int64_t deadline_ns = DeadlineAfterMs(kPeriodMs);
    if (!request) {
      request.emplace(device_);
      held_ = true;
      seen = count_.load();
    }
    while (!stopping_ && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
    const uint64_t count = count_.load();
    if (stopping_ || count - seen < kPerSecondMin * kPeriodMs / 1000 / 2) {
      request.reset();
      held_ = false;
      wanted_ = false;
    }
    seen = count;
  }
}

}  // namespace nram
