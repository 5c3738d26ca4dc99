#include "fsd/fuse_workers.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {
namespace {

constexpr int kDriveMs = 1'000;
constexpr int kRequestsAtATime = 16;
constexpr int64_t kSignalAgainMs = 2;

}  // namespace

FuseWorkers::FuseWorkers(FuseAdapter* adapter, fuse_session* session, FastWake fast_wake, Poller* poller)
    : adapter_(adapter),
      session_(session),
      fd_(fuse_session_fd(session)),
      wake_latency_(fast_wake),
      owned_poller_(poller == nullptr ? new Poller() : nullptr),
      poller_(poller == nullptr ? owned_poller_.get() : poller),
      ended_(eventfd(0, EFD_CLOEXEC)) {
  // This signal only ends the wait that it comes into (no SA_RESTART).
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(SIGUSR1, &wake, nullptr);
  // The kernel may take a request back between the news of it and the read.
  PCHECK(fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK) == 0);
}

absl::Status FuseWorkers::Start(int threads) {
  if (!poller_->Watch(fd_)) {
    return absl::ResourceExhaustedError(
        "the kernel watches no more descriptors for this user (fs.epoll.max_user_watches)");
  }
  serving_ = static_cast<uint32_t>(threads);
  {
    MutexLock lock(&park_mu_);
    parked_.reserve(static_cast<size_t>(threads));
  }
  for (int i = 0; i < threads; ++i) {
    Thread* const self = threads_.emplace_back(std::make_unique<Thread>()).get();
    self->owner = this;
    self->thread = std::thread([this, self] { Run(self); });
    pthread_setname_np(self->thread.native_handle(), "nram-fuse");
  }
  return absl::OkStatus();
}

FuseWorkers::~FuseWorkers() {
  stopping_ = true;
  // A signal may come just before the wait that it is meant for, so it is repeated until all threads are out.
  for (uint32_t serving = serving_; serving > 0; serving = serving_) {
    for (const auto& thread : threads_) {
      pthread_kill(thread->thread.native_handle(), SIGUSR1);
      thread->parked = 0;
      FutexWakeAll(&thread->parked);
    }
    FutexWaitUntil(&serving_, serving, DeadlineAfterMs(kSignalAgainMs));
  }
  for (const auto& thread : threads_) thread->thread.join();
  if (!threads_.empty()) poller_->Unwatch();
  std::string counts;
  for (uint32_t i = 0; i < kOpcodesMax; ++i) {
    if (requests_[i] > 0) absl::StrAppend(&counts, " ", i, ":", requests_[i].load());
  }
  LOG(INFO) << "requests by opcode (linux/fuse.h):" << counts;
}

void FuseWorkers::Run(Thread* self) {
  self->MakeCurrent();
  do {
    AwaitLead(self);
  } while (!stopping_ && Lead(self));
  PassLead(self);
  --serving_;
  FutexWakeAll(&serving_);  // the destructor joins this thread before serving_ goes away
}

bool FuseWorkers::Lead(Thread* self) {
  while (!stopping_) {
    if (!poller_->Drive(kDriveMs)) continue;
    size_t bytes = 0;
    Got got = Got::kNothing;
    // The requests that these send to servers go out together. Then the answers get their turn.
    for (int i = 0; i < kRequestsAtATime && (got = Read(self, &bytes)) == Got::kRequest; ++i) {
      Handle(self, bytes);
      if (!self->leads) return true;
    }
    if (got != Got::kEnd) continue;
    // The other threads need not try.
    stopping_ = true;
    const uint64_t one = 1;
    (void)!write(ended_.get(), &one, sizeof one);
  }
  return false;
}

FuseWorkers::Got FuseWorkers::Read(Thread* self, size_t* bytes) {
  while (!stopping_) {
    const ssize_t n = read(fd_, self->request(), FuseWorker::kRequestBytes);
    if (n >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
      *bytes = static_cast<size_t>(n);
      return Got::kRequest;
    }
    if (n < 0 && errno == EAGAIN) return Got::kNothing;
    // ENOENT: the kernel took the request back meanwhile. ENODEV: it is unmounted.
    if (n < 0 && (errno == ENOENT || errno == EINTR)) continue;
    if (n >= 0 || errno != ENODEV) LOG(ERROR) << "/dev/fuse: " << n << ", " << strerror(errno);
    return Got::kEnd;
  }
  return Got::kNothing;
}

void FuseWorkers::Handle(Thread* self, size_t bytes) {
  wake_latency_.Count();
  requests_[std::min<uint32_t>(self->header().opcode, kOpcodesMax - 1)].fetch_add(1, std::memory_order_relaxed);
  if (adapter_->HandleUnknown(fd_, *self, bytes)) return;
  fuse_buf buffer{};
  buffer.mem = self->request();
  buffer.size = bytes;
  fuse_session_process_buf(session_, &buffer);
}

void FuseWorkers::AwaitLead(Thread* self) {
  {
    MutexLock lock(&park_mu_);
    self->leads = !led_;
    led_ = true;
    if (self->leads) return;
    self->parked = 1;
    parked_.push_back(self);
  }
  while (self->parked.load(std::memory_order_acquire) != 0 && !stopping_) {
    FutexWaitUntil(&self->parked, 1, DeadlineAfterMs(60'000));
  }
}

void FuseWorkers::PassLead(Thread* self) {
  if (!self->leads) return;
  poller_->StopDriving();
  self->leads = false;
  Thread* next = nullptr;
  {
    MutexLock lock(&park_mu_);
    if (parked_.empty()) {
      led_ = false;  // the thread that is done first takes it
      return;
    }
    next = parked_.back();
    parked_.pop_back();
  }
  next->leads = true;
  next->parked.store(0, std::memory_order_release);
  FutexWakeAll(&next->parked);
}

}  // namespace nram
