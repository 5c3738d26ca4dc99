#include "client/pool/reserver.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/plant.h"

namespace nram {
namespace {

int64_t PagesOf(uint64_t bytes) {
  return static_cast<int64_t>((bytes + Room::kBytesPerPage - 1) / Room::kBytesPerPage);
}

}  // namespace

Reserver::Ask Reserver::Reserve(Ask::Kind kind, int64_t pages) {
  // Until it is answered, nothing that the server says of the room counts.
  room_->SetUnsettled(true);
  Ask ask;
  ask.kind = kind;
  ask.pages = pages;
  ask.order = {room_->lease_term(), ++last_order_};
  ask.freed_before = freed_events_;
  return ask;
}

Reserver::Ask Reserver::Next(int64_t now_ns, uint64_t wish_bytes) {
  if (surplus_pages_ > 0) {
    return Reserve(Ask::Kind::kGiveBack, -static_cast<int64_t>(std::exchange(surplus_pages_, 0)));
  }
  if (room_->unsettled() && now_ns >= settle_ns_) return Reserve(Ask::Kind::kSettle, 0);
  uint64_t bytes = 0;
  if (wish_bytes > 0) {
    if (now_ns >= reserve_ns_) bytes = wish_bytes;
  } else if (IsAheadDue() && now_ns >= ahead_ns_) {
    bytes = static_cast<uint64_t>(half());
  }
  if (bytes > 0) {
    // A whole step, or failing that no more than is needed now.
    Ask ask = Reserve(Ask::Kind::kReserve, PagesOf(ask_exactly_ ? bytes : bytes + StepBytes()));
    ask.for_bytes = bytes;
    ask.exactly = ask_exactly_ || StepBytes() == 0;
    ask.order.ahead = wish_bytes == 0 || !ask.exactly;
    return ask;
  }
  if (wish_bytes == 0 && has_surplus() && now_ns >= give_back_ns_) {
    giving_back_ = true;
    Ask ask;
    ask.kind = Ask::Kind::kMeasure;
    return ask;
  }
  return {};
}

int64_t Reserver::DueNs(uint64_t wish_bytes) const {
  int64_t due_ns = INT64_MAX;
  if (surplus_pages_ > 0) return 0;
  if (room_->unsettled()) due_ns = std::min(due_ns, settle_ns_);
  if (wish_bytes > 0) {
    due_ns = std::min(due_ns, reserve_ns_);
  } else {
    if (IsAheadDue()) due_ns = std::min(due_ns, ahead_ns_);
    if (has_surplus()) due_ns = std::min(due_ns, give_back_ns_);
  }
  return due_ns;
}

Reserver::Answer Reserver::End(const Ask& ask, const absl::StatusOr<LeaseInfo>& answer, int64_t now_ns) {
  if (ask.kind == Ask::Kind::kMeasure) {
    // The server has been away since.
    if (!giving_back_ && !NRAM_PLANTED(surplus_counted_again)) return Answer::kDone;
    // Whatever this client believes, the regions' quotas must not be given away.
    if (answer.ok() && room_->IsPresent(answer->incarnation, answer->term)) {
      surplus_pages_ = room_->TakeSurplus(answer->reservation_bytes, pressed_ == Pressed::kAsked ? 0 : step_bytes_);
    }
    if (surplus_pages_ == 0) {
      EndGivingBack(/*done=*/false, now_ns);
    } else if (!NRAM_PLANTED(surplus_counted_again)) {
      // The server still counts it: until it is given back, its word is not exact.
      room_->SetUnsettled(true);
    }
    return Answer::kDone;
  }
  // These were decided after all that came before was over.
  const absl::StatusCode code = answer.status().code();
  const bool full = code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kFailedPrecondition;
  if (answer.ok() || full) {
    room_->SetUnsettled(false);
  } else {
    settle_ns_ = now_ns + kSettleAgainMs * kNsPerMs;
  }
  if (ask.kind == Ask::Kind::kReserve) {
    const Answer end = EndReserve(ask, answer, now_ns);
    unanswered_ = end == Answer::kNoAnswer;
    return end;
  }
  // A renewal will tell the state of room that was taken out and not given back.
  if (ask.kind == Ask::Kind::kGiveBack) EndGivingBack(answer.ok(), now_ns);
  return Answer::kDone;
}

Reserver::Answer Reserver::EndReserve(const Ask& ask, const absl::StatusOr<LeaseInfo>& answer, int64_t now_ns) {
  const absl::StatusCode code = answer.status().code();
  if (answer.ok()) {
    ask_exactly_ = false;
    const uint64_t bytes = static_cast<uint64_t>(ask.pages) * Room::kBytesPerPage;
    return room_->AddReservation(bytes, answer->incarnation, answer->term) ? Answer::kDone : Answer::kNoAnswer;
  }
  if (code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kFailedPrecondition) {
    ask_exactly_ = !ask.exactly;
    if (!ask.exactly) return Answer::kDone;  // asked again, for less
    // The server has less. It may still have a span's worth, or room that was freed while the answer was on its way.
    if (ask.for_bytes <= kRefusedBytes && freed_events_ == ask.freed_before) refused_ = true;
    ahead_ns_ = now_ns + kAheadAgainMs * kNsPerMs;
    return Answer::kRefused;
  }
  reserve_ns_ = now_ns + kReserveAgainMs * kNsPerMs;
  ahead_ns_ = now_ns + kAheadAgainMs * kNsPerMs;
  return Answer::kNoAnswer;
}

void Reserver::EndGivingBack(bool done, int64_t now_ns) {
  giving_back_ = false;
  if (!done) give_back_ns_ = now_ns + kGiveBackAgainMs * kNsPerMs;
}

void Reserver::NoteTerm() {
  refused_ = giving_back_ = unanswered_ = false;
  surplus_pages_ = 0;
}

void Reserver::Reset() {
  giving_back_ = false;
  surplus_pages_ = 0;
  ask_exactly_ = false;
  settle_ns_ = reserve_ns_ = 0;
}

}  // namespace nram
