#include "client/pool/sweep.h"

#include <glog/logging.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "base/sync.h"

namespace nram {
namespace {

// The poller looks as often at a connection that no thread waits on.
constexpr int64_t kSleepNs = 20 * kNsPerMs;

bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

Sweep::~Sweep() {
  for (const Leg& leg : legs_) CHECK_EQ(leg.state, Leg::kOver) << "a sweep went away under way";
}

Sweep::Leg* Sweep::Add(const IoPlace& place, const RegionMap::Target& target, const MessageHeader& request,
                       int64_t deadline_ns) {
  Leg& leg = legs_.emplace_back();
  leg.sweep = this;
  leg.place = place;
  leg.session = place.sessions->at(target.server);
  leg.incarnation = target.incarnation;
  leg.unsure = target.known == RegionMap::Known::kPerhaps;
  leg.call.request = request;
  leg.call.deadline_ns = deadline_ns;
  leg.call.done = &OnCallDone;
  leg.call.context = &leg;
  leg.waiter.what = Waiter::For::kConnection;
  leg.waiter.deadline_ns = deadline_ns;
  leg.waiter.resume = &OnResume;
  leg.waiter.context = &leg;
  return &leg;
}

void Sweep::AddTrim(const IoPlace& place, uint8_t flags, const ChunkRange& range, int64_t deadline_ns) {
  const uint64_t end_span = (range.end() + kChunksPerSpan - 1) / kChunksPerSpan;
  for (const RegionMap::Target& target : place.map->Whereabouts(range.first / kChunksPerSpan, end_span)) {
    const TrimRequest trim{.region = place.map->key().id, .range = range, .epoch = place.map->key().epoch};
    Leg* const leg = Add(place, target, MessageHeader(trim, flags), deadline_ns);
    if ((flags & kFlagReservation) != 0) {
      leg->trim = place.map->BeginTrim(target.server, leg->session->room());
    }
  }
}

void Sweep::AddDestroy(const IoPlace& place, int64_t deadline_ns) {
  const DestroyRequest destroy{.region = place.map->key().id, .epoch = place.map->key().epoch};
  for (const RegionMap::Target& target : place.map->Whereabouts()) {
    Add(place, target, MessageHeader(destroy), deadline_ns);
  }
}

void Sweep::Start(IoClass io_class, Callback callback, void* context) {
  io_class_ = io_class;
  callback_ = callback;
  callback_context_ = context;
  left_ = legs_.size() + 1;
  for (Leg& leg : legs_) {
    leg.call.wait_expected = callback == nullptr;
    leg.waiter.urgent = io_class == IoClass::kUrgent;
    Launch(&leg);
  }
  if (callback != nullptr) EndOne();
}

void Sweep::Fail(const absl::Status& status, Callback callback, void* context) {
  failed_ = status;
  Start(IoClass::kBulk, callback, context);
}

void Sweep::StartCopied(const IoPlace& place, const IoRequest& request, Callback callback, void* context) {
  callback_ = callback;
  callback_context_ = context;
  copied_ = std::make_unique<Io>();
  const auto end = [](Io*, void* sweep) {
    auto* const self = static_cast<Sweep*>(sweep);
    self->callback_(self, self->callback_context_);
  };
  copied_->Start(place, request, callback == nullptr ? nullptr : +end, this);
}

absl::Status Sweep::Wait() {
  if (copied_ != nullptr) return copied_->Wait();
  absl::Status first_error = failed_;
  for (Leg& leg : legs_) {
    while (leg.state != Leg::kOver) {
      Transport* const transport = leg.transport;
      if (transport != nullptr && !leg.call.is_done()) {
        transport->Wait(&leg.call);
        continue;
      }
      // Another thread is judging it, or it waits for its server.
      uint32_t expected = Leg::kRunning;
      if (leg.state.compare_exchange_strong(expected, Leg::kSleeping) || expected == Leg::kSleeping) {
        FutexWaitUntil(&leg.state, Leg::kSleeping, leg.place.environment->NowNs() + kSleepNs);
      }
    }
    if (first_error.ok()) first_error = leg.status;
  }
  return first_error;
}

void Sweep::Launch(Leg* leg) {
  leg->times_up = leg->session->times_up();
  ServerLife* const life = leg->session->life();
  if (life->incarnation != leg->incarnation) {
    // It has restarted: nothing is left there to free. But a trim must not hide that the rest is lost.
    const bool is_loss = leg->call.request.op == Op::kTrim && !leg->unsure;
    return End(leg, !is_loss
                        ? absl::OkStatus()
                        : absl::DataLossError(absl::StrCat("memory server ", leg->session->name(), " has restarted")));
  }
  if (!life->connected()) {
    return Retry(
        leg, absl::UnavailableError(absl::StrCat("memory server ", leg->session->name(), ": a connection is down")));
  }
  Transport* const transport = life->transport(io_class_);
  leg->transport = transport;
  transport->Start(&leg->call);
}

void Sweep::Judge(Leg* leg) {
  const Call& call = leg->call;
  leg->transport = nullptr;
  leg->sent = leg->sent || call.sent;
  const absl::Status status = CallStatus(call, leg->session->name());
  if (call.code == absl::StatusCode::kOk) {
    if (call.reason == Reason::kUnknownRegion) {
      const bool nothing_there = call.request.op == Op::kDestroy || leg->unsure;
      return End(leg, nothing_there ? absl::OkStatus() : absl::DataLossError(status.message()));
    }
    if (call.reason != Reason::kLeaseEnded && call.reason != Reason::kFenced) return End(leg, status);
    if (call.reason == Reason::kLeaseEnded) leg->session->NoteLeaseEnded(leg->times_up);
    return Retry(leg, status);
  }
  leg->session->Suspect();
  if (call.code == absl::StatusCode::kDeadlineExceeded) return End(leg, status);
  Retry(leg, status);  // the server was away, or the answer was garbled
}

void Sweep::Retry(Leg* leg, const absl::Status& why) {
  leg->status = why;
  if (!leg->session->WaitFor(&leg->waiter)) Resume(leg);
}

void Sweep::Resume(Leg* leg) {
  switch (leg->waiter.outcome) {
    case Waiter::Outcome::kUsable:
      if (leg->place.environment->NowNs() < leg->call.deadline_ns) return Launch(leg);
      break;
    case Waiter::Outcome::kAwayTooLong:
      return End(leg, absl::UnavailableError(leg->session->last_error().message()));
    case Waiter::Outcome::kClosing:
      return End(leg, absl::UnavailableError("the pool is being closed"));
    default:
      break;
  }
  End(leg, absl::UnavailableError(leg->status.message()));
}

void Sweep::End(Leg* leg, const absl::Status& status) {
  leg->status = status;
  leg->session->NoteFreed();
  if (leg->call.request.op == Op::kDestroy && IsUnanswered(status) && !NRAM_PLANTED(destroy_forgotten)) {
    const RegionKey& key = leg->place.map->key();
    leg->session->DestroyLater({key.id, key.epoch, leg->incarnation});
  }
  if ((leg->call.request.flags & kFlagReservation) != 0) EndKeepingTrim(leg);
  // From here on a sweep that a thread waits for may be destroyed.
  const bool has_callback = callback_ != nullptr;
  if (leg->state.exchange(Leg::kOver) == Leg::kSleeping) FutexWakeAll(&leg->state);
  if (has_callback) EndOne();
}

void Sweep::EndKeepingTrim(Leg* leg) {
  const Call& call = leg->call;
  RegionRoom::TrimEnd end{leg->sent, call.is_done() && call.code == absl::StatusCode::kOk, std::nullopt};
  if (leg->status.ok() && end.answered && call.reason == Reason::kOk) {
    end.kept_chunks = static_cast<uint32_t>(call.kept_bytes / kChunkBytes);
  }
  leg->place.map->EndTrim(leg->session->index(), leg->session->room(), leg->trim, end);
  leg->session->NoteReturned();
}

void Sweep::EndOne() {
  if (left_.fetch_sub(1) == 1) callback_(this, callback_context_);
}

}  // namespace nram
