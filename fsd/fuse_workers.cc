#include "fsd/fuse_workers.h"

#include <errno.h>
#include <glog/logging.h>
#include <poll.h>
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

// Whether handling it may wait for a memory server, or for the kernel to write something back.
bool MayWait(uint32_t opcode) {
  return opcode == FUSE_READ || opcode == FUSE_WRITE || opcode == FUSE_SETATTR || opcode == FUSE_FALLOCATE ||
         opcode == FUSE_COPY_FILE_RANGE || opcode == FUSE_LSEEK;
}

}  // namespace

FuseWorkers::FuseWorkers(FuseAdapter* adapter, fuse_session* session, int threads, FastWake fast_wake)
    : adapter_(adapter), session_(session), wake_latency_(fast_wake), ended_(eventfd(0, EFD_CLOEXEC)) {
  // Does nothing but end the read that it comes into (no SA_RESTART).
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(SIGUSR1, &wake, nullptr);
  serving_ = threads;
  for (int i = 0; i < threads; ++i) {
    Thread* const self = threads_.emplace_back(std::make_unique<Thread>()).get();
    self->thread = std::thread([this, self] { Run(self); });
    pthread_setname_np(self->thread.native_handle(), "nram-fuse");
  }
}

FuseWorkers::~FuseWorkers() {
  stopping_ = true;
  // A signal may come just before the read that it is meant for, so it is repeated.
  while (serving_ > 0) {
    for (const auto& thread : threads_) pthread_kill(thread->thread.native_handle(), SIGUSR1);
    WakeOne();
    poll(nullptr, 0, 2);
  }
  for (const auto& thread : threads_) thread->thread.join();
  std::string counts;
  for (uint32_t i = 0; i < kOpcodesMax; ++i) {
    if (requests_[i] > 0) absl::StrAppend(&counts, " ", i, ":", requests_[i].load());
  }
  LOG(INFO) << "requests by opcode (linux/fuse.h):" << counts;
}

void FuseWorkers::Run(Thread* self) {
  self->worker.MakeCurrent();
  size_t bytes = 0;
  while (Read(self, &bytes)) {
    wake_latency_.Count();
    const uint32_t opcode = self->worker.header().opcode;
    requests_[std::min<uint32_t>(opcode, kOpcodesMax - 1)].fetch_add(1, std::memory_order_relaxed);
    if (reading_ == 0 && MayWait(opcode)) WakeOne();
    if (!adapter_->HandleUnknown(fuse_session_fd(session_), self->worker)) {
      fuse_buf buffer{};
      buffer.mem = self->worker.request();
      buffer.size = bytes;
      fuse_session_process_buf(session_, &buffer);
    }
  }
  const uint64_t one = 1;
  if (!stopping_) (void)!write(ended_.get(), &one, sizeof one);
  WakeOne();  // each that leaves takes the next one with it
  --serving_;
}

bool FuseWorkers::Read(Thread* self, size_t* bytes) {
  while (!stopping_) {
    if (reading_ >= kReadersMax) {
      Park(self);
      if (stopping_) break;
    }
    ++reading_;
    const ssize_t n = read(fuse_session_fd(session_), self->worker.request(), FuseWorker::kRequestBytes);
    const int error = errno;
    --reading_;
    if (n >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
      *bytes = static_cast<size_t>(n);
      return true;
    }
    // ENOENT: the request was taken back while it was being read. ENODEV: unmounted.
    if (n < 0 && (error == ENOENT || error == EINTR || error == EAGAIN)) continue;
    if (n >= 0 || error != ENODEV) LOG(ERROR) << "/dev/fuse: " << n << ", " << strerror(error);
    break;
  }
  return false;
}

void FuseWorkers::Park(Thread* self) {
  {
    MutexLock lock(&park_mu_);
    self->parked = 1;
    parked_.push_back(self);
    // Whoever stopped reading after the look that sent this thread here found nobody to wake.
    if (reading_ < kReadersMax) {
      parked_.pop_back();
      return;
    }
  }
  while (self->parked.load(std::memory_order_acquire) != 0 && !stopping_) {
    FutexWaitUntil(&self->parked, 1, DeadlineAfterMs(60'000));
  }
}

void FuseWorkers::WakeOne() {
  Thread* thread = nullptr;
  {
    MutexLock lock(&park_mu_);
    if (parked_.empty()) return;
    thread = parked_.back();
    parked_.pop_back();
    thread->parked.store(0, std::memory_order_release);
  }
  FutexWakeAll(&thread->parked);
}

}  // namespace nram
