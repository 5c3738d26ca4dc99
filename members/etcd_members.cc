#include "members/etcd_members.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "members/etcd_names.h"
#include "members/etcd_table.h"
#include "members/pause.h"

namespace nram {
namespace {

constexpr int64_t kAgainMinMs = 100;
constexpr int64_t kPeriodMs = 1'000;

class EtcdMembers final : public MemberSource {
 public:
  EtcdMembers(const EtcdSpec& spec, std::unique_ptr<EtcdClient> client, const EtcdTimes& times)
      : times_(times), spec_(spec), prefix_(spec.KeyPrefix()), name_(spec.ToString()), client_(std::move(client)) {}
  ~EtcdMembers() override {
    Stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::StatusOr<std::vector<Member>> Look(int64_t deadline_ns) override;
  int64_t period_ms() const override { return kPeriodMs; }
  void AwaitNext() override { news_.Wait(kPeriodMs); }
  void Stop() override {
    news_.Stop();
    again_.Stop();
    client_->Stop();
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  const std::string& name() const override { return name_; }
  bool may_be_remote() const override { return true; }
  std::unique_ptr<NameArbiter> OpenNames() const override {
    return NewEtcdNames(spec_, [hosts = spec_.hosts] { return EtcdClient::Create(hosts, EtcdTlsDir()); });
  }

 private:
  void Run();
  // Lists and watches until that ends.
  absl::Status Follow();
  void TakeListing(const EtcdClient::Listing& listing);
  void TakeChanges(const std::vector<EtcdClient::Change>& changes);
  std::string PutLocked(const std::string& key, absl::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return absl::StartsWith(key, prefix_) ? table_.Put(key, value) : "";
  }
  void NoteHeardLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Log(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) LOG_IF(WARNING, !line.empty()) << line;
  }

  const EtcdTimes times_;
  const EtcdSpec spec_;
  const std::string prefix_;
  const std::string name_;
  const std::unique_ptr<EtcdClient> client_;
  Pause news_;
  Pause again_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  EtcdTable table_ ABSL_GUARDED_BY(mu_);
  int64_t heard_ns_ ABSL_GUARDED_BY(mu_) = 0;  // 0: never
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

absl::StatusOr<std::vector<Member>> EtcdMembers::Look(int64_t deadline_ns) {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "nram-etcd");
  }
  MutexLock lock(&mu_);
  while (heard_ns_ == 0 && !stopped_ && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
  if (heard_ns_ == 0 || MonotonicNs() - heard_ns_ > times_.fresh_ms * kNsPerMs) {
    return trouble_.ok() ? absl::UnavailableError(absl::StrCat(name_, ": etcd does not answer"))
                         : Annotate(trouble_, name_);
  }
  std::vector<Member> members = table_.Members();
  if (members.empty()) {
    return absl::NotFoundError(
        absl::StrCat(name_, ": no server is registered there; start some with --register=", name_));
  }
  return members;
}

void EtcdMembers::Run() {
  int64_t again_ms = kAgainMinMs;
  bool is_told = false;
  while (!again_.stopped()) {
    const int64_t began_ns = MonotonicNs();
    const absl::Status ended = Follow();
    if (absl::IsCancelled(ended) && again_.stopped()) return;
    // etcd has compacted these changes, but still has their keys: they are listed anew.
    if (absl::IsOutOfRange(ended)) {
      LOG(INFO) << name_ << ": " << ended.message() << "; listing its keys again";
      again_.Wait(kAgainMinMs);
      continue;
    }
    bool was_heard = false;
    {
      MutexLock lock(&mu_);
      trouble_ = ended;
      was_heard = heard_ns_ >= began_ns;
      changed_.SignalAll();
    }
    if (was_heard) {
      again_ms = kAgainMinMs;
      is_told = false;
    }
    // The caller that needs the list reports the consequences.
    LOG_IF(INFO, !std::exchange(is_told, true)) << name_ << " does not answer: " << ended.message();
    again_.Wait(again_ms);
    again_ms = std::min(2 * again_ms, times_.again_max_ms);
  }
}

absl::Status EtcdMembers::Follow() {
  NRAM_ASSIGN_OR_RETURN(const EtcdClient::Listing listing,
                        client_->List(prefix_, static_cast<int64_t>(kPoolServersMax), DeadlineAfterMs(times_.list_ms)));
  TakeListing(listing);
  return client_->Watch(prefix_, listing.revision + 1, times_.silence_ms,
                        [this](const std::vector<EtcdClient::Change>& changes) { TakeChanges(changes); });
}

void EtcdMembers::NoteHeardLocked() {
  heard_ns_ = MonotonicNs();
  trouble_ = absl::OkStatus();
  changed_.SignalAll();
}

void EtcdMembers::TakeListing(const EtcdClient::Listing& listing) {
  std::vector<std::string> lines;
  {
    MutexLock lock(&mu_);
    table_.Clear();
    for (const EtcdClient::Pair& pair : listing.pairs) lines.push_back(PutLocked(pair.key, pair.value));
    if (listing.count > static_cast<int64_t>(listing.pairs.size())) {
      lines.push_back(absl::StrCat(name_, " has ", listing.count, " keys; only ", listing.pairs.size(), " are read"));
    }
    NoteHeardLocked();
  }
  Log(lines);
  news_.Wake();
}

void EtcdMembers::TakeChanges(const std::vector<EtcdClient::Change>& changes) {
  std::vector<std::string> lines;
  {
    MutexLock lock(&mu_);
    for (const EtcdClient::Change& change : changes) {
      if (!change.value.has_value()) {
        table_.Erase(change.key);
      } else if (table_.size() < kPoolServersMax) {
        lines.push_back(PutLocked(change.key, *change.value));
      }
    }
    NoteHeardLocked();
  }
  Log(lines);
  if (!changes.empty()) news_.Wake();
}

}  // namespace

std::unique_ptr<MemberSource> NewEtcdMembers(const EtcdSpec& spec, std::unique_ptr<EtcdClient> client,
                                             const EtcdTimes& times) {
  return std::make_unique<EtcdMembers>(spec, std::move(client), times);
}

}  // namespace nram
