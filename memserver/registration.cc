#include "memserver/registration.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {

Registration::Registration(Options options, std::unique_ptr<EtcdClient> client)
    : options_(std::move(options)),
      key_(absl::StrCat(options_.spec.KeyPrefix(), options_.record.address)),
      client_(std::move(client)) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-register");
}

Registration::~Registration() {
  bool ended = false;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
    const int64_t deadline_ns = DeadlineAfterMs(kEndMs);
    while (!ended_ && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
    ended = ended_;
  }
  // A call is under way that etcd does not answer.
  if (!ended) client_->Stop();
  thread_.join();
  // The key goes with its lease; if etcd does not answer, when the lease ends.
  if (ended && lease_ != 0) (void)client_->EndLease(lease_, DeadlineAfterMs(kEndMs));
}

void Registration::Run() {
  PutAgainAndAgain();
  MutexLock lock(&mu_);
  ended_ = true;
  changed_.SignalAll();
}

void Registration::PutAgainAndAgain() {
  int64_t again_ms = kAgainMinMs;
  while (true) {
    const absl::Status status = Step();
    Remark(status);
    again_ms = status.ok() ? kAgainMinMs : std::min(2 * again_ms, kAgainMaxMs);
    const int64_t deadline_ns = DeadlineAfterMs(status.ok() ? kLookMs : again_ms);
    MutexLock lock(&mu_);
    while (!stopping_ && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
    if (stopping_) return;
  }
}

absl::Status Registration::Step() {
  const auto deadline_ns = [] { return DeadlineAfterMs(kCallMs); };
  if (lease_ == 0) {
    NRAM_ASSIGN_OR_RETURN(lease_, client_->GrantLease(options_.ttl_s, deadline_ns()));
    kept_ns_ = MonotonicNs();
    put_.clear();
  }
  if (MonotonicNs() - kept_ns_ >= options_.ttl_s * kNsPerSecond / 3) {
    const absl::Status kept = client_->KeepAlive(lease_, deadline_ns());
    if (absl::IsNotFound(kept)) lease_ = 0;
    NRAM_RETURN_IF_ERROR(kept);
    kept_ns_ = MonotonicNs();
  }
  ServerRecord record = options_.record;
  record.state = options_.state();
  std::string value = record.Encode();
  if (value == put_ && MonotonicNs() - put_ns_ < kPutAgainMs * kNsPerMs) return absl::OkStatus();
  const absl::Status status = client_->Put(key_, value, lease_, deadline_ns());
  if (absl::IsNotFound(status)) lease_ = 0;
  NRAM_RETURN_IF_ERROR(status);
  put_ = std::move(value);
  put_ns_ = MonotonicNs();
  return absl::OkStatus();
}

void Registration::Remark(const absl::Status& status) {
  const bool had_failed = std::exchange(failed_, !status.ok());
  if (failed_ && !had_failed) {
    LOG(WARNING) << "not registered as " << key_ << ": " << status.message() << "; retrying";
  } else if (!failed_ && (had_failed || put_ns_ == 0)) {
    LOG(INFO) << "registered as " << key_;
  }
}

}  // namespace nram
