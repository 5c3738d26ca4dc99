#include "client/pool/live_members.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/pool/waking.h"

namespace nram {
namespace {

std::vector<Endpoint> EndpointsOf(const Sessions& sessions) {
  std::vector<Endpoint> endpoints;
  for (const auto& session : sessions) endpoints.push_back(session->endpoint());
  return endpoints;
}

// A line each, of a bounded number.
void LogSome(const std::vector<std::string>& names, const std::string& what) {
  constexpr size_t kLinesMax = 16;
  for (size_t i = 0; i < std::min(names.size(), kLinesMax); ++i)
    LOG(INFO) << "memory server " << names[i] << " " << what;
  if (names.size() > kLinesMax) LOG(INFO) << names.size() - kLinesMax << " more memory servers: each " << what;
}

}  // namespace

std::vector<std::string> LiveMembers::NamesOf(const std::vector<size_t>& numbers) const {
  std::vector<std::string> names;
  for (const size_t number : numbers) names.push_back(sessions_->at(number)->name());
  return names;
}

LiveMembers::LiveMembers(Sessions* sessions, std::shared_ptr<MemberSource> source, Environment* environment, Host* host)
    : sessions_(sessions),
      source_(std::move(source)),
      environment_(environment),
      host_(host),
      roster_(EndpointsOf(*sessions), sessions->most()) {
  // A source whose members are in files of this machine needs no other file.
  if (source_ != nullptr && source_->may_be_remote()) cache_ = std::make_unique<MemberCache>(source_->name());
}

LiveMembers::~LiveMembers() { Stop(); }

void LiveMembers::Begin() {
  {
    MutexLock lock(&mu_);
    for (const auto& session : *sessions_) order_.push_back(session.get());
    // Each client begins with others.
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[environment_->RandomId() % i]);
    // The first one's driver logs for all of them.
    std::iter_swap(absl::c_find(order_, sessions_->at(0)), order_.end() - 1);
    if (sessions_->size() <= kAllAwakeMax) {
      WakeLocked(sessions_->size());
    } else {
      (void)WakeSome();
    }
  }
  waker_ = std::thread([this] { WakeLoop(); });
  pthread_setname_np(waker_.native_handle(), "nram-wake");
  if (source_ == nullptr) return;
  watcher_ = std::thread([this] { Watch(); });
  pthread_setname_np(watcher_.native_handle(), "nram-members");
}

void LiveMembers::Stop() {
  if (source_ != nullptr) source_->Stop();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  {
    MutexLock lock(&wanted_mu_);
    ended_ = true;
    wanted_changed_.SignalAll();
  }
  if (watcher_.joinable()) watcher_.join();
  if (waker_.joinable()) waker_.join();
}

// --- The members.

void LiveMembers::Watch() {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    Look();
    source_->AwaitNext();
  }
}

void LiveMembers::Look() {
  const absl::StatusOr<std::vector<Member>> members = source_->Look(DeadlineAfterMs(kLookMs));
  NoteTrouble(members.status());
  if (members.ok()) Hear(*members);
}

void LiveMembers::NoteTrouble(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;  // that it says nothing any more is its end
  }
  const std::string said = std::exchange(trouble_, std::string(status.message()));
  if (said == trouble_) return;
  if (status.ok()) {
    LOG(INFO) << source_->name() << " lists the pool's servers again";
  } else {
    LOG(WARNING) << "no news of the pool's servers; the known ones are kept: " << status.message();
  }
}

std::vector<Member> LiveMembers::OnlyAccepted(const std::vector<Member>& members) {
  std::vector<Member> accepted;
  for (const Member& member : members) {
    std::string why;
    if (host_->Accepts(member.endpoint, &why)) {
      accepted.push_back(member);
    } else if (refused_.size() < kRefusedMax && refused_.insert(member.endpoint.ToString()).second) {
      LOG(WARNING) << "memory server " << member.endpoint.ToString() << " is not used: " << why;
    }
  }
  return accepted;
}

void LiveMembers::Hear(const std::vector<Member>& members) {
  const std::vector<Member> accepted = OnlyAccepted(members);
  // A list of which nothing can be used is no word, as an empty one is none.
  if (accepted.empty()) return;
  const int64_t now_ns = MonotonicNs();
  const bool counts = now_ns - counted_ns_ >= source_->period_ms() * kNsPerMs * 9 / 10;
  if (counts) counted_ns_ = now_ns;
  Apply(roster_.Hear(accepted, counts));
  SetRemoved();
  // Not the word itself: after an outage it may be short for a while.
  std::vector<Member> present;
  for (size_t i = 0; i < roster_.size(); ++i) {
    if (!roster_.has_left(i)) present.push_back({sessions_->at(i)->endpoint()});
  }
  Keep(present);
}

void LiveMembers::Apply(const Roster::Step& step) {
  LogSome(NamesOf(step.returns), "is a member of the pool again");
  LogSome(NamesOf(step.leaves), absl::StrCat("is no longer a member of the pool (", source_->name(),
                                             "): no new spans are placed there, and its pages are moved"));
  std::vector<std::string> joins;
  for (const Endpoint& server : step.joins) joins.push_back(server.ToString());
  LogSome(joins, absl::StrCat("joins the pool (", source_->name(), ")"));
  if (step.refused > 0 && !std::exchange(told_full_, true)) {
    LOG(ERROR) << step.refused << " servers cannot join: a pool has " << sessions_->most()
               << " servers at most while it is open, including former members; restart this program";
  }
  if (step.joins.empty()) return;
  {
    MutexLock lock(&mu_);
    for (const Endpoint& server : step.joins) {
      ServerSession* const session = host_->AddSession(server);
      order_.insert(order_.begin() + static_cast<ptrdiff_t>(environment_->RandomId() % (order_.size() + 1)), session);
    }
    CHECK_EQ(sessions_->size(), roster_.size()) << "members and sessions have other numbers";
    if (sessions_->size() <= kAllAwakeMax) WakeLocked(order_.size());
  }
  MutexLock lock(&wanted_mu_);
  wanted_changed_.SignalAll();
}

void LiveMembers::SetRemoved() {
  absl::flat_hash_set<size_t> by_other_names;
  for (size_t i = 0; i < roster_.size(); ++i) {
    const uint16_t twin = sessions_->at(i)->twin();
    if (!roster_.has_left(i) && twin != kNoServer) by_other_names.insert(twin);
  }
  for (size_t i = 0; i < roster_.size(); ++i) {
    sessions_->at(i)->SetRemoved(roster_.has_left(i) && !by_other_names.contains(i));
  }
}

void LiveMembers::Keep(const std::vector<Member>& members) {
  const int64_t now_ns = MonotonicNs();
  if (cache_ == nullptr || (members == kept_ && now_ns - kept_ns_ < kWriteMs * kNsPerMs)) return;
  kept_ = members;
  kept_ns_ = now_ns;
  std::vector<Endpoint> servers;
  for (const Member& member : members) servers.push_back(member.endpoint);
  const absl::Status status = cache_->Write(servers);
  LOG_IF_EVERY_N(WARNING, !status.ok(), 100)
      << "the server list of " << source_->name() << " is not cached: " << status.message();
}

// --- The awake sessions.

void LiveMembers::WakeAll() {
  MutexLock lock(&mu_);
  WakeLocked(order_.size());
}

void LiveMembers::WantAwake(ServerSession* session) {
  MutexLock lock(&wanted_mu_);
  wanted_.push_back(session);
  wanted_changed_.SignalAll();
}

void LiveMembers::WakeLoop() {
  int64_t wait_ms = kFirstMs;
  std::vector<ServerSession*> late;  // that are wanted, and could not be driven
  while (true) {
    std::vector<ServerSession*> wanted;
    {
      MutexLock lock(&wanted_mu_);
      if (!ended_ && wanted_.empty()) wanted_changed_.WaitUntil(&wanted_mu_, DeadlineAfterMs(wait_ms));
      if (ended_) return;
      wanted.swap(wanted_);
    }
    MutexLock lock(&mu_);
    const bool is_urgent = absl::c_any_of(wanted, [](const ServerSession* session) { return session->asleep(); });
    wanted.insert(wanted.end(), late.begin(), late.end());
    late.clear();
    for (ServerSession* const session : wanted) {
      if (!DriveLocked(session) && !absl::c_linear_search(late, session)) late.push_back(session);
    }
    if (is_urgent) WakeLocked(kNeighbours);
    wait_ms = late.empty() ? WakeSome() : kWakeMs;
  }
}

int64_t LiveMembers::WakeSome() {
  const int64_t now_ns = environment_->NowNs();
  std::erase_if(coming_, [&](const Woken& woken) {
    return woken.session->up() || !woken.session->may_be_slow() || now_ns - woken.since_ns >= Waking::kComingNs;
  });
  std::erase_if(order_, [](const ServerSession* session) { return !session->asleep(); });
  Waking waking;
  waking.asleep = absl::c_count_if(order_, [](const ServerSession* session) { return !session->removed(); });
  waking.coming = coming_.size();
  if (waking.asleep == 0) return 1'000;
  bool is_any_up = false;
  for (const auto& session : *sessions_) {
    if (!session->up()) continue;
    is_any_up = true;
    const ServerCapacity capacity = session->capacity();
    if (capacity.draining || session->asks() || session->refused()) continue;
    ++waking.with_room;
    waking.free_bytes += capacity.free_bytes;
  }
  WakeLocked(waking.ToWake());
  return is_any_up ? kWakeMs : kFirstMs;
}

void LiveMembers::WakeLocked(size_t count) {
  std::vector<ServerSession*> removed;  // they may be members again
  while (count > 0 && !order_.empty()) {
    ServerSession* const session = order_.back();
    order_.pop_back();
    if (session->removed()) removed.push_back(session);
    if (!session->asleep() || session->removed()) continue;
    if (!DriveLocked(session)) {
      order_.push_back(session);  // the next one to be woken, later
      break;
    }
    --count;
  }
  order_.insert(order_.begin(), removed.begin(), removed.end());
}

bool LiveMembers::DriveLocked(ServerSession* session) {
  if (!session->asleep() || stopping_) return true;
  if (!host_->Drive(session)) return false;
  coming_.push_back({session, environment_->NowNs()});
  return true;
}

}  // namespace nram
