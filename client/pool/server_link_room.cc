// The room of a ServerLink: what is reserved on the server ahead of use, and whose it is.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/pool/server_link.h"

namespace nram {

Room::Grant ServerLink::TryTakeRoom(uint64_t bytes) {
  Room::Grant grant = room_.TryTake(bytes);
  if (!grant) return grant;
  if (!written_to_.load(std::memory_order_relaxed)) written_to_ = true;
  // Half a step left: have the thread ask for the next one before anybody must wait for it.
  if (room_.free_bytes() < static_cast<int64_t>(options_.reserve_step_bytes / 2) &&
      !refused_.load(std::memory_order_relaxed)) {
    WantLook();
  }
  return grant;
}

absl::StatusOr<Room::Grant> ServerLink::TakeRoom(uint64_t bytes, int64_t deadline_ns) {
  while (true) {
    Room::Grant grant = TryTakeRoom(bytes);
    if (grant) return grant;
    // In this order: what was given back ends a refusal before it is over.
    const bool giving_back = giving_back_;
    if (!giving_back && refused_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory server ", name_, " has no room for ", FormatByteSize(bytes)));
    }
    NRAM_RETURN_IF_ERROR(Reserve(bytes, deadline_ns));
  }
}

absl::Status ServerLink::Reserve(uint64_t bytes, int64_t deadline_ns) {
  const int64_t came_ns = MonotonicNs();
  {
    MutexLock lock(&reserve_mu_);
    bool in_time = true;
    while (reserving_ && in_time) in_time = reserve_ended_.WaitUntil(&reserve_mu_, deadline_ns);
    if (room_.free_bytes() >= static_cast<int64_t>(bytes)) return absl::OkStatus();  // somebody else did meanwhile
    // A server that does not answer costs those who come together one wait, not one after the other.
    if (reserving_ || !up() || reserve_failed_ns_ > came_ns || MonotonicNs() >= deadline_ns) {
      return absl::UnavailableError(absl::StrCat("memory server ", name_, " does not answer: no room can be reserved"));
    }
    reserving_ = true;
  }
  absl::Status status = AskForRoom(bytes, deadline_ns);
  MutexLock lock(&reserve_mu_);
  reserving_ = false;
  if (!status.ok() && !absl::IsResourceExhausted(status)) reserve_failed_ns_ = MonotonicNs();
  reserve_ended_.SignalAll();
  return status;
}

absl::Status ServerLink::AskForRoom(uint64_t bytes, int64_t deadline_ns) {
  const auto pages = [](uint64_t bytes) {
    return static_cast<int64_t>((bytes + Room::kBytesPerPage - 1) / Room::kBytesPerPage);
  };
  deadline_ns = std::min(deadline_ns, ControlDeadline());
  // A whole step, or failing that just what is needed now.
  const uint64_t freed_before = freed_events_;
  // As a write under way: whether the server's next word on the room counts this in, nobody knows.
  const auto done = absl::MakeCleanup([this, term = room_.Hold()] { room_.Unhold(0, term); });
  for (const uint64_t ask : {bytes + options_.reserve_step_bytes, bytes}) {
    const absl::StatusOr<LeaseInfo> lease = SendReserve(pages(ask), deadline_ns);
    if (lease.ok()) {
      const uint64_t promised = static_cast<uint64_t>(pages(ask)) * Room::kBytesPerPage;
      if (!room_.Promised(promised, lease->incarnation, lease->term)) {
        Suspect();
        return absl::UnavailableError(absl::StrCat("memory server ", name_, ": the lease has been granted anew"));
      }
      NoteLease(*lease, std::nullopt);
      return absl::OkStatus();
    }
    if (lease.status().code() == absl::StatusCode::kAborted) {
      Suspect();
      return absl::UnavailableError(lease.status().message());
    }
    const bool full = lease.status().code() == absl::StatusCode::kResourceExhausted ||
                      lease.status().code() == absl::StatusCode::kFailedPrecondition;
    if (!full) return lease.status();
    if (ask == bytes) {
      // That much there is not; a span's worth there may be, or what was freed while the answer was on its way.
      if (bytes <= kRefusedBytes && freed_events_ == freed_before) refused_ = true;
      return absl::ResourceExhaustedError(lease.status().message());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LeaseInfo> ServerLink::SendReserve(int64_t pages, int64_t deadline_ns) {
  const ReserveOrder order{room_.lease_term(), ++reserve_order_};
  room_.SetUnsettled(true);
  absl::StatusOr<LeaseInfo> lease = control_->Reserve(lease_, pages, order, deadline_ns);
  // These were decided after what came before was over.
  const absl::StatusCode code = lease.status().code();
  if (code == absl::StatusCode::kOk || code == absl::StatusCode::kResourceExhausted ||
      code == absl::StatusCode::kFailedPrecondition) {
    room_.SetUnsettled(false);
  }
  return lease;
}

bool ServerLink::BeginReserving() {
  MutexLock lock(&reserve_mu_);
  return !std::exchange(reserving_, true);
}

void ServerLink::EndReserving() {
  MutexLock lock(&reserve_mu_);
  reserving_ = giving_back_ = false;
  reserve_ended_.SignalAll();
}

void ServerLink::SettleReserve() {
  if (!up() || !room_.unsettled() || MonotonicNs() < settle_after_ns_ || !BeginReserving()) return;
  if (!SendReserve(0, ControlDeadline()).ok()) settle_after_ns_ = DeadlineAfterMs(kRenewAgainMs);
  EndReserving();
}

void ServerLink::ReserveAhead() {
  const auto half = static_cast<int64_t>(options_.reserve_step_bytes / 2);
  if (!up() || !written_to_ || refused_ || room_.free_bytes() >= half) return;
  if (MonotonicNs() < reserve_ahead_after_ns_) return;
  const absl::Status status = Reserve(static_cast<uint64_t>(half), ControlDeadline());
  if (!status.ok()) reserve_ahead_after_ns_ = DeadlineAfterMs(kBackoffMaxMs);
}

// What a region returned, or what was taken for more than there was: others may need it.
void ServerLink::GiveBackRoom() {
  const uint64_t step = options_.reserve_step_bytes;
  if (!up() || room_.free_bytes() <= kStepsKept * static_cast<int64_t>(step) || MonotonicNs() < give_back_after_ns_) {
    return;
  }
  {
    MutexLock lock(&reserve_mu_);
    if (reserving_) return;
    reserving_ = giving_back_ = true;
  }
  bool given_back = false;
  // Whatever this client believes, what regions keep is not to be given away.
  absl::StatusOr<LeaseInfo> lease = control_->RenewLease(lease_, ControlDeadline());
  if (lease.ok() && room_.IsPresent(lease->incarnation, lease->term)) {
    const auto pages = static_cast<int64_t>(room_.TakeSurplus(lease->promised_bytes, step));
    if (pages > 0) lease = SendReserve(-pages, ControlDeadline());
    given_back = pages > 0 && lease.ok();
    // Else a renewal will tell.
    if (lease.ok()) NoteLease(*lease, std::nullopt);
  }
  if (!given_back) give_back_after_ns_ = DeadlineAfterMs(kBackoffMaxMs);
  EndReserving();
}

ServerCapacity ServerLink::capacity() const {
  MutexLock lock(&mu_);
  return capacity_;
}

ServerHost ServerLink::host_state() const {
  MutexLock lock(&mu_);
  return host_state_;
}

}  // namespace nram
