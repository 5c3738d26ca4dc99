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
  for (const Errand& errand : errands_) CHECK_EQ(errand.state, Errand::kOver) << "a sweep went away under way";
}

Sweep::Errand* Sweep::Add(const IoPlace& place, const RegionMap::Target& target, const MessageHeader& request,
                          int64_t deadline_ns) {
  Errand& errand = errands_.emplace_back();
  errand.sweep = this;
  errand.place = place;
  errand.session = place.sessions->at(target.server);
  errand.incarnation = target.incarnation;
  errand.unsure = target.known == RegionMap::Known::kPerhaps;
  errand.call.request = request;
  errand.call.deadline_ns = deadline_ns;
  errand.call.done = &OnCallDone;
  errand.call.context = &errand;
  errand.waiter.what = Waiter::For::kConnection;
  errand.waiter.deadline_ns = deadline_ns;
  errand.waiter.resume = &OnResume;
  errand.waiter.context = &errand;
  return &errand;
}

void Sweep::AddTrim(const IoPlace& place, uint8_t flags, const ChunkRange& range, int64_t deadline_ns) {
  const uint64_t end_span = (range.end() + kChunksPerSpan - 1) / kChunksPerSpan;
  for (const RegionMap::Target& target : place.map->Whereabouts(range.first / kChunksPerSpan, end_span)) {
    const TrimRequest trim{.region = place.map->key().id, .range = range, .epoch = place.map->key().epoch};
    Errand* const errand = Add(place, target, MessageHeader(trim, flags), deadline_ns);
    if ((flags & kFlagReservation) != 0) {
      errand->trim = place.map->BeginTrim(target.server, errand->session->room());
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
  left_ = errands_.size() + 1;
  for (Errand& errand : errands_) {
    errand.call.wait_expected = callback == nullptr;
    errand.waiter.urgent = io_class == IoClass::kUrgent;
    Launch(&errand);
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
  for (Errand& errand : errands_) {
    while (errand.state != Errand::kOver) {
      Transport* const transport = errand.transport;
      if (transport != nullptr && !errand.call.is_done()) {
        transport->Wait(&errand.call);
        continue;
      }
      // Another thread is judging it, or it waits for its server.
      uint32_t expected = Errand::kRunning;
      if (errand.state.compare_exchange_strong(expected, Errand::kSleeping) || expected == Errand::kSleeping) {
        FutexWaitUntil(&errand.state, Errand::kSleeping, errand.place.environment->NowNs() + kSleepNs);
      }
    }
    if (first_error.ok()) first_error = errand.status;
  }
  return first_error;
}

void Sweep::Launch(Errand* errand) {
  errand->times_up = errand->session->times_up();
  ServerLife* const life = errand->session->life();
  if (life->incarnation != errand->incarnation) {
    // It has restarted: nothing is left there to free. But a trim must not hide that the rest is lost.
    const bool is_loss = errand->call.request.op == Op::kTrim && !errand->unsure;
    return End(errand, !is_loss ? absl::OkStatus()
                                : absl::DataLossError(
                                      absl::StrCat("memory server ", errand->session->name(), " has restarted")));
  }
  if (!life->connected()) {
    return Retry(errand, absl::UnavailableError(
                             absl::StrCat("memory server ", errand->session->name(), ": a connection is down")));
  }
  Transport* const transport = life->transport(io_class_);
  errand->transport = transport;
  transport->Start(&errand->call);
}

void Sweep::Judge(Errand* errand) {
  const Call& call = errand->call;
  errand->transport = nullptr;
  errand->sent = errand->sent || call.sent;
  const absl::Status status = CallStatus(call, errand->session->name());
  if (call.code == absl::StatusCode::kOk) {
    if (call.reason == Reason::kUnknownRegion) {
      const bool nothing_there = call.request.op == Op::kDestroy || errand->unsure;
      return End(errand, nothing_there ? absl::OkStatus() : absl::DataLossError(status.message()));
    }
    if (call.reason != Reason::kLeaseEnded && call.reason != Reason::kFenced) return End(errand, status);
    if (call.reason == Reason::kLeaseEnded) errand->session->NoteLeaseEnded(errand->times_up);
    return Retry(errand, status);
  }
  errand->session->Suspect();
  if (call.code == absl::StatusCode::kDeadlineExceeded) return End(errand, status);
  Retry(errand, status);  // the server was away, or the answer was garbled
}

void Sweep::Retry(Errand* errand, const absl::Status& why) {
  errand->status = why;
  if (!errand->session->WaitFor(&errand->waiter)) Resume(errand);
}

void Sweep::Resume(Errand* errand) {
  switch (errand->waiter.outcome) {
    case Waiter::Outcome::kUsable:
      if (errand->place.environment->NowNs() < errand->call.deadline_ns) return Launch(errand);
      break;
    case Waiter::Outcome::kAwayTooLong:
      return End(errand, absl::UnavailableError(errand->session->last_error().message()));
    case Waiter::Outcome::kClosing:
      return End(errand, absl::UnavailableError("the pool is being closed"));
    default:
      break;
  }
  End(errand, absl::UnavailableError(errand->status.message()));
}

void Sweep::End(Errand* errand, const absl::Status& status) {
  errand->status = status;
  errand->session->NoteFreed();
  if (errand->call.request.op == Op::kDestroy && IsUnanswered(status) && !NRAM_PLANTED(destroy_forgotten)) {
    const RegionKey& key = errand->place.map->key();
    errand->session->DestroyLater({key.id, key.epoch, errand->incarnation});
  }
  if ((errand->call.request.flags & kFlagReservation) != 0) EndKeepingTrim(errand);
  // From here on a sweep that a thread waits for may be destroyed.
  const bool has_callback = callback_ != nullptr;
  if (errand->state.exchange(Errand::kOver) == Errand::kSleeping) FutexWakeAll(&errand->state);
  if (has_callback) EndOne();
}

void Sweep::EndKeepingTrim(Errand* errand) {
  const Call& call = errand->call;
  RegionRoom::TrimEnd end{errand->sent, call.is_done() && call.code == absl::StatusCode::kOk, std::nullopt};
  if (errand->status.ok() && end.answered && call.reason == Reason::kOk) {
    end.kept_chunks = static_cast<uint32_t>(call.kept_bytes / kChunkBytes);
  }
  errand->place.map->EndTrim(errand->session->index(), errand->session->room(), errand->trim, end);
  errand->session->NoteReturned();
}

void Sweep::EndOne() {
  if (left_.fetch_sub(1) == 1) callback_(this, callback_context_);
}

}  // namespace nram
