#ifndef NRAM_TESTS_UTIL_FAKE_MEMBERS_H_
#define NRAM_TESTS_UTIL_FAKE_MEMBERS_H_

#include <atomic>
#include <string>
#include <vector>

#include "base/sync.h"
#include "members/member_source.h"
#include "members/pause.h"

namespace nram {

// A source that gives a test's members. Thread-safe.
class FakeMembers : public MemberSource {
 public:
  explicit FakeMembers(const std::vector<Endpoint>& servers, bool may_be_remote = false)
      : may_be_remote_(may_be_remote) {
    Set(servers);
  }

  void Set(const std::vector<Endpoint>& servers) {
    MutexLock lock(&mu_);
    members_ = std::vector<Member>();
    for (const Endpoint& server : servers) members_->push_back({server});
    pause_.Wake();
  }
  void Fail(absl::Status status) {
    MutexLock lock(&mu_);
    members_ = std::move(status);
  }
  // The number of requests. Each is a period of its own.
  int64_t looks() const { return looks_; }

  absl::StatusOr<std::vector<Member>> Look(int64_t) override {
    ++looks_;
    MutexLock lock(&mu_);
    return members_;
  }
  int64_t period_ms() const override { return kPeriodMs; }
  void AwaitNext() override { pause_.Wait(kPeriodMs); }
  void Stop() override { pause_.Stop(); }
  const std::string& name() const override { return name_; }
  bool may_be_remote() const override { return may_be_remote_; }

 private:
  static constexpr int64_t kPeriodMs = 10;

  const bool may_be_remote_;
  const std::string name_ = "fake:members";
  std::atomic<int64_t> looks_{0};
  Pause pause_;
  Mutex mu_;
  absl::StatusOr<std::vector<Member>> members_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_FAKE_MEMBERS_H_
