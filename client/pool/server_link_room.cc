// The room of a ServerLink: what is reserved on the server ahead of use, and whose it is.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/pool/server_link.h"

namespace nram {

bool ServerLink::TryTakeRoom(uint64_t bytes) {
  const auto wanted = static_cast<int64_t>(bytes);
  int64_t room = room_bytes_.load(std::memory_order_relaxed);
  if (room < wanted) return false;
  room_events_ += 1;
  room_taken_bytes_ += wanted;
  do {
    if (room < wanted) {
      room_taken_bytes_ -= wanted;
      return false;
    }
  } while (!room_bytes_.compare_exchange_weak(room, room - wanted));
  if (!written_to_.load(std::memory_order_relaxed)) written_to_ = true;
  // Half a step left: have the thread reserve the next one before anybody must wait for it.
  if (room - wanted < static_cast<int64_t>(options_.reserve_step_bytes / 2) &&
      !refused_.load(std::memory_order_relaxed)) {
    WantLook();
  }
  return true;
}

absl::Status ServerLink::TakeRoom(uint64_t bytes, int64_t deadline_ns) {
  while (!TryTakeRoom(bytes)) {
    // In this order: what was given back ends a refusal before it is over.
    const bool giving_back = giving_back_;
    if (!giving_back && refused_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory server ", name_, " has no room for ", FormatByteSize(bytes)));
    }
    NRAM_RETURN_IF_ERROR(Reserve(bytes, deadline_ns));
  }
  return absl::OkStatus();
}

void ServerLink::ReturnRoom(uint64_t taken_bytes, uint64_t used_bytes) {
  const int64_t unused = static_cast<int64_t>(taken_bytes) - static_cast<int64_t>(used_bytes);
  room_events_ += 1;
  const int64_t room = room_bytes_.fetch_add(unused) + unused;
  room_taken_bytes_ -= static_cast<int64_t>(taken_bytes);
  if (unused > 0 && room > kStepsKept * static_cast<int64_t>(options_.reserve_step_bytes)) WantLook();
}

uint32_t ServerLink::room_generation() {
  MutexLock lock(&aside_mu_);
  return room_generation_;
}

bool ServerLink::SetAside(uint64_t taken_bytes, uint32_t generation) {
  room_events_ += 1;
  MutexLock lock(&aside_mu_);
  const bool is_there = generation == room_generation_;
  if (is_there) room_aside_bytes_ += static_cast<int64_t>(taken_bytes);
  room_taken_bytes_ -= static_cast<int64_t>(taken_bytes);
  return is_there;
}

bool ServerLink::TakeAside(uint64_t bytes, uint32_t generation) {
  room_events_ += 1;
  MutexLock lock(&aside_mu_);
  if (generation != room_generation_) return false;
  room_taken_bytes_ += static_cast<int64_t>(bytes);
  room_aside_bytes_ -= static_cast<int64_t>(bytes);
  return true;
}

bool ServerLink::ReturnAside(uint64_t taken_bytes, uint64_t used_bytes, uint32_t generation) {
  room_events_ += 1;
  MutexLock lock(&aside_mu_);
  const bool is_there = generation == room_generation_;
  if (is_there) room_aside_bytes_ += static_cast<int64_t>(taken_bytes) - static_cast<int64_t>(used_bytes);
  room_taken_bytes_ -= static_cast<int64_t>(taken_bytes);
  return is_there;
}

void ServerLink::ReleaseAside(uint64_t bytes, uint32_t generation) {
  if (TakeAside(bytes, generation)) ReturnRoom(bytes, 0);
}

void ServerLink::ChargeAside(uint64_t bytes, uint32_t generation) {
  room_events_ += 1;
  MutexLock lock(&aside_mu_);
  if (generation != room_generation_) return;
  room_aside_bytes_ += static_cast<int64_t>(bytes);
  room_bytes_ -= static_cast<int64_t>(bytes);
}

// As a write under way: until its end nobody knows what of the promise is the region's.
uint32_t ServerLink::BeginKeepingTrim() {
  room_events_ += 1;
  room_taken_bytes_ += 1;
  return room_generation();
}

bool ServerLink::EndKeepingTrim(uint64_t returned_bytes, uint32_t generation) {
  room_events_ += 1;
  MutexLock lock(&aside_mu_);
  const bool is_there = generation == room_generation_;
  if (is_there) room_aside_bytes_ += static_cast<int64_t>(returned_bytes);
  room_taken_bytes_ -= 1;
  return is_there;
}

// Whatever changes the room counts an event first, and what is taken rises before the room falls and falls after it has
// risen: so a count with nothing taken, and no event since another, is whole.
ServerLink::RoomCount ServerLink::CountRoom() {
  RoomCount count;
  MutexLock lock(&aside_mu_);
  count.aside = room_aside_bytes_;
  count.room = room_bytes_;
  count.taken = room_taken_bytes_;
  count.events = room_events_;
  return count;
}

absl::Status ServerLink::Reserve(uint64_t bytes, int64_t deadline_ns) {
  const int64_t came_ns = MonotonicNs();
  {
    MutexLock lock(&reserve_mu_);
    bool in_time = true;
    while (reserving_ && in_time) in_time = reserve_ended_.WaitUntil(&reserve_mu_, deadline_ns);
    if (room_bytes_ >= static_cast<int64_t>(bytes)) return absl::OkStatus();  // somebody else did meanwhile
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
  const auto pages = [](uint64_t of) { return static_cast<int64_t>((of + kRoomBytesPerPage - 1) / kRoomBytesPerPage); };
  deadline_ns = std::min(deadline_ns, ControlDeadline());
  // A whole step, or failing that just what is needed now.
  const uint64_t freed_before = freed_events_;
  // As a write under way: whether the server's next word on the room counts this in, nobody knows.
  room_events_ += 1;
  room_taken_bytes_ += 1;
  const auto done = absl::MakeCleanup([this] {
    room_events_ += 1;
    room_taken_bytes_ -= 1;
  });
  for (const uint64_t ask : {bytes + options_.reserve_step_bytes, bytes}) {
    const absl::StatusOr<LeaseInfo> lease = SendReserve(pages(ask), deadline_ns);
    if (lease.ok() && !IsPresentTerm(*lease)) {
      Suspect();
      return absl::UnavailableError(absl::StrCat("memory server ", name_, ": the lease has been granted anew"));
    }
    if (lease.ok()) {
      room_bytes_ += pages(ask) * static_cast<int64_t>(kRoomBytesPerPage);
      NoteLease(*lease, nullptr);
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
  ReserveOrder order;
  {
    MutexLock lock(&aside_mu_);
    order.term = term_;
  }
  order.number = ++reserve_order_;
  unsettled_term_ = order.term;
  absl::StatusOr<LeaseInfo> lease = control_->Reserve(lease_, pages, order, deadline_ns);
  // These were decided after what came before was over.
  const absl::StatusCode code = lease.status().code();
  if (code == absl::StatusCode::kOk || code == absl::StatusCode::kResourceExhausted ||
      code == absl::StatusCode::kFailedPrecondition) {
    unsettled_term_ = 0;
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
  if (!up() || unsettled_term_ == 0 || MonotonicNs() < settle_after_ns_ || !BeginReserving()) return;
  if (!SendReserve(0, ControlDeadline()).ok()) settle_after_ns_ = DeadlineAfterMs(kRenewAgainMs);
  EndReserving();
}

void ServerLink::ReserveAhead() {
  const auto half = static_cast<int64_t>(options_.reserve_step_bytes / 2);
  if (!up() || !written_to_ || refused_ || room_bytes_ >= half || MonotonicNs() < reserve_ahead_after_ns_) return;
  const absl::Status status = Reserve(static_cast<uint64_t>(half), ControlDeadline());
  if (!status.ok()) reserve_ahead_after_ns_ = DeadlineAfterMs(kBackoffMaxMs);
}

// What a region returned, or what was taken for more than there was: others may need it.
void ServerLink::GiveBackRoom() {
  const auto step = static_cast<int64_t>(options_.reserve_step_bytes);
  int64_t room = room_bytes_;
  if (!up() || room <= kStepsKept * step || MonotonicNs() < give_back_after_ns_) return;
  {
    MutexLock lock(&reserve_mu_);
    if (reserving_) return;
    reserving_ = giving_back_ = true;
  }
  room_events_ += 1;
  bool given_back = false;
  // Whatever this client believes, what regions keep is not to be given away.
  absl::StatusOr<LeaseInfo> lease = control_->RenewLease(lease_, ControlDeadline());
  if (lease.ok() && IsPresentTerm(*lease)) {
    const RoomCount count = CountRoom();
    const int64_t most = static_cast<int64_t>(lease->promised_bytes) - count.aside - count.taken - step;
    int64_t pages = 0;
    room = room_bytes_;
    do {
      pages = std::max<int64_t>(std::min(room - step, most), 0) / static_cast<int64_t>(kRoomBytesPerPage);
    } while (!room_bytes_.compare_exchange_weak(room, room - pages * static_cast<int64_t>(kRoomBytesPerPage)));
    if (pages > 0) lease = SendReserve(-pages, ControlDeadline());
    given_back = pages > 0 && lease.ok();
    // Else a renewal will tell.
    if (lease.ok()) NoteLease(*lease, nullptr);
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
