#include "client/pool/server_link.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "client/pool/io.h"
#include "client/transport/data_socket.h"
#include "client/transport/socket_transport.h"

namespace nram {

ServerLink::ServerLink(uint16_t index, const Endpoint& endpoint, LeaseId lease, const PoolOptions& options,
                       Poller* poller, WakeLatency* wake_latency)
    : index_(index),
      endpoint_(endpoint),
      name_(endpoint.ToString()),
      lease_(lease),
      options_(options),
      poller_(poller),
      wake_latency_(wake_latency),
      control_(ControlClient::Create(endpoint)),
      down_since_ns_(MonotonicNs()),
      last_error_(absl::UnavailableError(absl::StrCat("memory server ", name_, ": not connected yet"))) {}

ServerLink::~ServerLink() {
  BeginStop();
  if (thread_.joinable()) thread_.join();
}

void ServerLink::BeginStop() {
  MutexLock lock(&mu_);
  stopping_ = true;
  changed_.SignalAll();
}

void ServerLink::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-link");
}

absl::Status ServerLink::AwaitUp(int64_t deadline_ns) {
  MutexLock lock(&mu_);
  while (!up()) {
    if (!changed_.WaitUntil(&mu_, deadline_ns)) return up() ? absl::OkStatus() : last_error_;
  }
  return absl::OkStatus();
}

absl::Status ServerLink::AwaitUsable(int64_t deadline_ns) {
  if (up()) return absl::OkStatus();
  int64_t give_up_ns = deadline_ns;
  {
    MutexLock lock(&mu_);
    give_up_ns = std::min(deadline_ns, down_since_ns_ + options_.fail_fast_after_ms * kNsPerMs);
  }
  return AwaitUp(give_up_ns);
}

void ServerLink::Suspect() {
  MutexLock lock(&mu_);
  suspect_ = true;
  changed_.SignalAll();
}

bool ServerLink::DataConnected() const {
  for (const auto& slot : transports_) {
    const Transport* transport = slot.load();
    if (transport == nullptr || !transport->connected()) return false;
  }
  return true;
}

void ServerLink::Run() {
  int64_t backoff_ms = kBackoffMinMs;
  int64_t next_renew_ns = 0;
  bool was_slow = false;
  while (true) {
    int64_t wake_ns = next_renew_ns;
    if (!up()) RunRetries();  // those that are late by now; reaching the server may take seconds
    if (!up() || !DataConnected()) {
      const int64_t began_ns = MonotonicNs();
      std::string broken;
      for (const auto& slot : transports_) {
        if (Transport* const transport = slot.load()) absl::StrAppend(&broken, transport->TakeBreakReason());
      }
      const absl::Status status = BringUp();
      was_slow = was_slow || MonotonicNs() - began_ns > kSlowAttemptNs;
      const bool was_up = up();
      bool was_long_down = false;
      {
        MutexLock lock(&mu_);
        may_be_slow_ = was_slow;
        was_long_down = !was_up && down_since_ns_ + kNsPerSecond < MonotonicNs();
        up_ = status.ok();
        if (status.ok()) {
          backoff_ms = kBackoffMinMs;
          wake_ns = next_renew_ns = 0;  // for what the server has to say of lease, room and capacity
        } else {
          if (was_up) down_since_ns_ = MonotonicNs();
          last_error_ = Annotate(status, "cannot be used");
          wake_ns = DeadlineAfterMs(backoff_ms);
          backoff_ms = std::min(backoff_ms * 2, kBackoffMaxMs);
        }
        changed_.SignalAll();
      }
      // Without the lock: whoever has the log's other end may be waiting for one of our pages. Now and then: a server
      // that is broken breaks each connection.
      if (!broken.empty() && MonotonicNs() >= log_broken_after_ns_) {
        log_broken_after_ns_ = DeadlineAfterMs(kLogBrokenMs);
        LOG(WARNING) << "memory server " << name_ << ": a connection was broken: " << broken;
      }
      if (status.ok()) {
        LOG_IF(INFO, was_long_down) << "memory server " << name_ << " is back";
      } else if (was_up) {
        LOG(WARNING) << status.message();
      }
    } else if (MonotonicNs() >= next_renew_ns) {
      const bool renewed = Renew();
      MutexLock lock(&mu_);
      const int64_t pause_ms = lease_ttl_ms_ / 3;
      wake_ns = next_renew_ns = DeadlineAfterMs(renewed ? pause_ms : std::min(pause_ms, kRenewAgainMs));
    }
    // Each of these may wait for a control plane that does not answer.
    RunRetries();
    Ping();
    SettleReserve();
    ReserveAhead();
    Ping();
    GiveBackRoom();
    Ping();
    RunDestroys();
    Ping();
    RunUndo();
    Ping();
    if (!AwaitWork(wake_ns, &next_renew_ns)) break;
  }
  RunRetries();
  for (auto& transport : owned_transports_) transport->Disconnect();
  if (up()) (void)control_->EndLease(lease_, DeadlineAfterMs(kEndTimeoutMs));
}

bool ServerLink::AwaitWork(int64_t wake_ns, int64_t* next_renew_ns) {
  MutexLock lock(&mu_);
  const int64_t soon_ns = DeadlineAfterMs(kBackoffMinMs);
  if (up() && !undos_.empty()) wake_ns = std::min(wake_ns, std::max(undo_after_ns_, soon_ns));
  if (up() && room_.unsettled()) wake_ns = std::min(wake_ns, std::max(settle_after_ns_, soon_ns));
  if (retries_ != nullptr || (up() && !destroys_.empty())) wake_ns = std::min(wake_ns, soon_ns);
  while (!stopping_ && !suspect_ && !want_look_ && MonotonicNs() < wake_ns) {
    changed_.WaitUntil(&mu_, wake_ns);
    if (retries_ != nullptr) wake_ns = std::min(wake_ns, DeadlineAfterMs(kRetryPauseMs));
  }
  if (stopping_) return false;
  if (suspect_ && up() && !DataConnected()) {
    // Down from now on, so that those who wait do wait; usually for a millisecond.
    up_ = false;
    down_since_ns_ = MonotonicNs();
  } else if (suspect_) {
    *next_renew_ns = 0;
  }
  suspect_ = want_look_ = false;
  return true;
}

absl::Status ServerLink::BringUp() {
  // The control plane may be slow to answer, and what is needed now is the connections: their hello tells whether lease
  // and server are those from before. But the lease must not end while they cannot be had.
  if (incarnation() != 0 && ConnectBoth(kSlowAttemptNs / kNsPerMs).ok()) return absl::OkStatus();
  NRAM_RETURN_IF_ERROR(Greet());
  return ConnectBoth(kControlTimeoutMs);
}

absl::Status ServerLink::ConnectBoth(int64_t timeout_ms) {
  {
    MutexLock lock(&mu_);
    timeout_ms = std::min(timeout_ms, lease_ttl_ms_ / 3);
  }
  const int64_t deadline_ns = DeadlineAfterMs(timeout_ms);
  for (const auto& slot : transports_) {
    NRAM_RETURN_IF_ERROR(Annotate(slot.load()->Connect(deadline_ns), absl::StrCat("memory server ", name_)));
  }
  alive_ns_ = MonotonicNs();  // hello asks for a lease that lives
  return absl::OkStatus();
}

absl::Status ServerLink::Greet() {
  const int64_t deadline_ns = DeadlineAfterMs(kControlTimeoutMs);
  NRAM_ASSIGN_OR_RETURN(const ServerHello hello, control_->Hello(deadline_ns));
  int64_t ttl_ms = options_.lease_ttl_ms;
  if (ttl_ms == 0 && hello.lease_ttl_ms < options_.lease_ttl_min_ms) ttl_ms = options_.lease_ttl_min_ms;
  NRAM_ASSIGN_OR_RETURN(const LeaseInfo lease, control_->GrantLease(lease_, options_.owner, ttl_ms, deadline_ns));
  if (lease.ttl_ms < options_.lease_ttl_min_ms) {
    return absl::FailedPreconditionError(
        absl::StrCat("memory server ", name_, " grants leases of ", lease.ttl_ms, " ms at most, and this client needs ",
                     options_.lease_ttl_min_ms, ": give it a longer --lease-ttl-ms, or this one shorter deadlines"));
  }
  {
    MutexLock lock(&mu_);
    lease_ttl_ms_ = options_.lease_ttl_ms > 0 ? std::min(options_.lease_ttl_ms, lease.ttl_ms) : lease.ttl_ms;
    host_state_ = hello.host;
  }
  host_ = static_cast<uint32_t>(std::hash<std::string>()(hello.host.boot_id));
  const uint64_t former_incarnation = incarnation();
  if (hello.incarnation != former_incarnation) {
    NRAM_RETURN_IF_ERROR(ConnectData(hello));
    incarnation_.store(hello.incarnation, std::memory_order_release);
  }
  room_.Enter(lease.incarnation, lease.term);
  refused_ = false;
  NoteLease(lease, std::nullopt);
  LOG_IF(WARNING, former_incarnation != 0 && hello.incarnation != former_incarnation)
      << "memory server " << name_ << " has restarted: what it stored is lost";
  return absl::OkStatus();
}

// Makes transports for the server's present life. Those of a former one stay, broken, for calls that still name them.
absl::Status ServerLink::ConnectData(const ServerHello& hello) {
  if (lives_ >= kLivesMax && MonotonicNs() < next_life_ns_) {
    return absl::UnavailableError(absl::StrCat("memory server ", name_, " has restarted ", lives_,
                                               " times: its present life is taken in within a minute"));
  }
  Endpoint data = endpoint_;
  const bool same_host = hello.host.boot_id == BootId() && hello.host.boot_id != "unknown";
  absl::StatusOr<uid_t> owner = absl::NotFoundError("it names none");
  if (!hello.data_socket.empty() && (endpoint_.is_unix() || (options_.unix_sockets && same_host))) {
    // Where the control plane is a socket, the data plane is beside it, whatever the server's own files are.
    const std::string path = endpoint_.is_unix() ? DataSocketBeside(endpoint_.path) : hello.data_socket;
    owner = CheckDataSocket(path);
    if (owner.ok()) data = {"", 0, path};
    if (absl::IsPermissionDenied(owner.status()) && said_of_socket_ != owner.status().message()) {
      said_of_socket_ = std::string(owner.status().message());
      LOG(WARNING) << "memory server " << name_ << ": " << said_of_socket_;
    }
  }
  if (!owner.ok() && (endpoint_.is_unix() || hello.data_port == 0)) {
    return absl::UnavailableError(absl::StrCat(
        "memory server ", name_, " has no data plane that this client can reach: ", owner.status().message()));
  }
  if (!owner.ok()) data.port = hello.data_port;
  if (options_.reroute_data_for_test) data = options_.reroute_data_for_test(index_, data);
  NRAM_ASSIGN_OR_RETURN(const SocketAddress address, ResolveEndpoint(data, DeadlineAfterMs(kControlTimeoutMs)));
  for (int i = 0; i < 2; ++i) {
    // Early enough that an operation has the time to be sent again.
    const int64_t silence_timeout_ms = std::max(options_.io_timeout_ms / 2, kSilenceMinMs);
    SocketTransportOptions options{lease_, /*urgent=*/i == 1, hello.incarnation, options_.spin, silence_timeout_ms};
    options.wake_latency = wake_latency_;
    options.version = hello.version;
    if (owner.ok() && !options_.reroute_data_for_test) options.peer = *owner;
    owned_transports_.push_back(std::make_unique<SocketTransport>(address, options, poller_));
    if (Transport* former = transports_[i].exchange(owned_transports_.back().get())) former->Disconnect();
  }
  ++lives_;
  next_life_ns_ = DeadlineAfterMs(kLifePauseMs);
  MutexLock lock(&mu_);
  data_plane_ = data.ToString();
  return absl::OkStatus();
}

bool ServerLink::Renew() {
  const uint64_t look = room_.Look();
  const absl::StatusOr<LeaseInfo> lease = control_->RenewLease(lease_, ControlDeadline());
  if (lease.ok()) {
    // It may have been granted anew without our having had the answer.
    room_.Enter(lease->incarnation, lease->term);
    NoteLease(*lease, look);
    return true;
  }
  if (lease.status().code() == absl::StatusCode::kNotFound) {
    LOG(WARNING) << lease.status().message();
    for (const auto& slot : transports_) slot.load()->Disconnect();
  }
  // Where data flows all the same, a ping renews as well; the lease must not end for want of the control plane alone.
  if (lease.status().code() != absl::StatusCode::kNotFound) Ping();
  bool has_ended = false;
  {
    MutexLock lock(&mu_);
    has_ended = MonotonicNs() - alive_ns_ > lease_ttl_ms_ * kNsPerMs;
  }
  // There, or is about to: whoever needs this server must not take it for one that can be used. Not under the lock: the
  // calls that this ends come back here.
  if (has_ended) {
    for (const auto& slot : transports_) slot.load()->Disconnect();
  }
  MutexLock lock(&mu_);
  last_error_ = lease.status();
  // The data connections tell whether the server is there; a control plane that is slow to answer is no reason to stop.
  if (!DataConnected()) {
    up_ = false;
    down_since_ns_ = MonotonicNs();
    changed_.SignalAll();
  }
  return false;
}

int64_t ServerLink::ControlDeadline() {
  MutexLock lock(&mu_);
  return DeadlineAfterMs(std::min(kControlTimeoutMs, lease_ttl_ms_ / 4));
}

void ServerLink::Ping() {
  {
    MutexLock lock(&mu_);
    if (stopping_ || !up() || MonotonicNs() - alive_ns_ < lease_ttl_ms_ * kNsPerMs * 2 / 5) return;
  }
  Transport* const urgent = transports_[1].load();
  Call ping;
  ping.request = MessageHeader(PingRequest{});
  ping.deadline_ns = ControlDeadline();  // too late, it breaks the connection; the next one's hello renews too
  const int64_t asked_ns = MonotonicNs();
  urgent->Start(&ping);
  urgent->Wait(&ping);
  if (ping.code != absl::StatusCode::kOk) return;
  alive_ns_ = ping.reason == Reason::kOk ? asked_ns : 0;
}

void ServerLink::NoteLease(const LeaseInfo& info, std::optional<uint64_t> look) {
  alive_ns_ = MonotonicNs();
  if (look) room_.Hear(info.promised_bytes, *look);
  if (info.capacity.free_bytes > kSpanBytes) refused_ = false;
  MutexLock lock(&mu_);
  capacity_ = info.capacity;
}

void ServerLink::WantLook() {
  MutexLock lock(&mu_);
  if (!want_look_) {
    want_look_ = true;
    changed_.SignalAll();
  }
}

void ServerLink::RetryLater(IoPart* part) {
  MutexLock lock(&mu_);
  part->next_retry = retries_;
  retries_ = part;
  if (!part->waits_for_room) suspect_ = true;
  changed_.SignalAll();
}

void ServerLink::DestroyLater(RegionId region, Epoch epoch, uint64_t incarnation) {
  MutexLock lock(&mu_);
  if (destroys_.size() < kDestroysMax) {
    destroys_.push_back({region, epoch, incarnation});
  } else {
    LOG_EVERY_N(WARNING, 10'000) << "memory server " << name_
                                 << ": more was deleted while it was away than is remembered";
  }
}

// As many as wait, some at a time, while the server answers.
void ServerLink::RunDestroys() {
  // In turns, as RunRetries.
  const int64_t turn_ends_ns = DeadlineAfterMs(kRetryTurnMs);
  while (up() && MayChange() && MonotonicNs() < turn_ends_ns) {
    std::vector<Destroyed> some;
    {
      MutexLock lock(&mu_);
      const size_t count = std::min(destroys_.size(), kDestroysAtOnce);
      some.assign(destroys_.end() - static_cast<ptrdiff_t>(count), destroys_.end());
      destroys_.resize(destroys_.size() - count);
    }
    std::erase_if(some, [this](const Destroyed& one) { return one.incarnation != incarnation(); });
    if (some.empty()) return;
    std::vector<Call> calls(some.size());
    Transport* const data = transport(IoClass::kBulk);
    for (size_t i = 0; i < some.size(); ++i) {
      calls[i].request = MessageHeader(DestroyRequest{.region = some[i].region, .epoch = some[i].epoch});
      calls[i].deadline_ns = ControlDeadline();
      data->Start(&calls[i]);
    }
    for (size_t i = 0; i < some.size(); ++i) {
      data->Wait(&calls[i]);
      if (calls[i].code != absl::StatusCode::kOk) DestroyLater(some[i].region, some[i].epoch, some[i].incarnation);
    }
    NoteFreed();
  }
}

void ServerLink::UndoCreate(Undo undo) {
  MutexLock lock(&mu_);
  undos_.push_back(std::move(undo));  // MayUndo was asked; calls at the same time go beyond by their number
  want_look_ = true;
  changed_.SignalAll();
}

bool ServerLink::MayUndo() const {
  MutexLock lock(&mu_);
  return undos_.size() < kUndosMax;
}

bool ServerLink::AwaitUndone(const std::string& name, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  while (true) {
    const bool done = std::none_of(undos_.begin(), undos_.end(), [&](const Undo& undo) { return undo.name == name; });
    if (done || !up() || MonotonicNs() >= deadline_ns) return done;
    changed_.WaitUntil(&mu_, deadline_ns);
  }
}

void ServerLink::RunUndo() {
  if (!up() || MonotonicNs() < undo_after_ns_) return;
  Undo undo;
  {
    MutexLock lock(&mu_);
    if (undos_.empty()) return;
    undo = undos_.front();
  }
  absl::Status status;
  if (undo.incarnation == incarnation()) {
    status = control_->EndLease(undo.lease, ControlDeadline());
    if (status.ok()) status = control_->DestroyRegion(lease_, undo.region, false, ControlDeadline()).status();
  }
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    undo_after_ns_ = DeadlineAfterMs(kRenewAgainMs);
    return;
  }
  // Somebody else has taken it over meanwhile, say.
  LOG_IF(WARNING, !status.ok()) << "a named region that could not be created is left: " << status.message();
  MutexLock lock(&mu_);
  undos_.erase(undos_.begin());
  want_look_ = want_look_ || !undos_.empty();  // the next one: after a ping, or a renewal, if one is due
  changed_.SignalAll();
}

void ServerLink::RunRetries() {
  IoPart* part = nullptr;
  bool give_up = hopeless();
  bool last_turn = false;
  {
    MutexLock lock(&mu_);
    std::swap(part, retries_);
    last_turn = stopping_;
    give_up = give_up || stopping_;
  }
  // To start one again may wait for another server's room; this server's lease must not end meanwhile.
  const int64_t turn_ends_ns = DeadlineAfterMs(kRetryTurnMs);
  while (part != nullptr) {
    IoPart* next = part->next_retry;
    const int64_t now_ns = MonotonicNs();
    const bool due = up() || give_up || now_ns >= part->call.deadline_ns;
    if (due && (last_turn || now_ns < turn_ends_ns)) {
      part->io->Restart(part, /*give_up=*/!up());
    } else {
      MutexLock lock(&mu_);
      part->next_retry = retries_;
      retries_ = part;
    }
    part = next;
  }
}

}  // namespace nram
