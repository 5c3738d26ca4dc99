#include "client/pool/version_calls.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"

namespace nram {

absl::Status VersionCalls::Leg::status() const {
  if (asked) return CallStatus(call, session->name());
  return absl::UnavailableError(absl::StrCat("memory server ", session->name(), " does not answer"));
}

VersionCalls::~VersionCalls() { CHECK_EQ(left_.load(), 0u) << "calls went away under way"; }

void VersionCalls::Add(const IoPlace& place, const CopyMap::Life& life, const MessageHeader& request) {
  ServerSession* const session = place.sessions->at(life.server);
  const ServerLife* const now = session->life();
  if (now == nullptr || now->incarnation != life.incarnation) return;
  Leg& leg = legs_.emplace_back();
  leg.calls = this;
  leg.life = life;
  leg.session = session;
  leg.call.request = request;
}

void VersionCalls::Start(const IoPlace& place, IoClass io_class, int64_t deadline_ns, Done done, void* context) {
  map_ = place.map;
  done_ = done;
  done_context_ = context;
  left_ = legs_.size() + 1;
  for (Leg& leg : legs_) {
    leg.times_up = leg.session->times_up();
    ServerLife* const life = leg.session->life();
    leg.asked = life->incarnation == leg.life.incarnation && life->connected();
    if (!leg.asked) {
      EndOne();
      continue;
    }
    leg.call.deadline_ns = deadline_ns;
    leg.call.done = &OnCallDone;
    leg.call.context = &leg;
    life->transport(io_class)->Start(&leg.call);
  }
  EndOne();
}

void VersionCalls::OnCallDone(Call* call) {
  auto* const leg = static_cast<Leg*>(call->context);
  leg->calls->Judge(leg);
  leg->calls->EndOne();
}

void VersionCalls::Judge(Leg* leg) {
  ServerSession* const session = leg->session;
  if (leg->call.code != absl::StatusCode::kOk) {
    session->Suspect();
    if (leg->call.code == absl::StatusCode::kDeadlineExceeded) session->NoteSilence();
    return;
  }
  switch (leg->call.reason) {
    case Reason::kLeaseEnded:
      return session->NoteLeaseEnded(leg->times_up);
    case Reason::kFenced:
      return session->Suspect();
    case Reason::kStaleEpoch:
    case Reason::kNotOwner:
      return map_->NoteFenced();
    default:
      return;
  }
}

void VersionCalls::EndOne() {
  if (left_.fetch_sub(1) == 1) done_(done_context_);
}

bool AddOwedDrops(const IoPlace& place, VersionCalls* calls) {
  const RegionKey& key = place.map->key();
  bool is_owed = false;
  for (const VersionDebt& debt : place.map->TakeVersionDebts()) {
    const ServerSession& session = *place.sessions->at(debt.life.server);
    if (session.incarnation() != debt.life.incarnation) continue;  // nothing of it is left there
    if (!session.usable()) {
      place.map->AddVersionDebt(debt);
      continue;
    }
    is_owed = true;
    // No client has opened a version that is in no record.
    calls->Add(place, debt.life,
               MessageHeader(DropVersionRequest{
                   .region = key.id, .epoch = key.epoch, .first = debt.first, .last = debt.last, .force = debt.force}));
  }
  return is_owed;
}

void NoteOwedDrops(const IoPlace& place, const VersionCalls& drops) {
  for (const VersionCalls::Leg& leg : drops.legs()) {
    const bool is_unbound = leg.call.reason == Reason::kLeaseEnded || leg.call.reason == Reason::kFenced;
    if (leg.answered() && !is_unbound) continue;
    const auto drop = leg.call.request.as<DropVersionRequest>();
    place.map->AddVersionDebt({leg.life, drop.first, drop.last, drop.force});
  }
}

absl::StatusOr<DroppedVersions> DropVersionsOf(const IoPlace& place, VersionNumber first, VersionNumber last,
                                               bool force, IoClass io_class, int64_t deadline_ns) {
  VersionCalls calls;
  (void)AddOwedDrops(place, &calls);
  const RegionKey& key = place.map->key();
  // A server may get it later, or have it asked again, when newer ones have been sealed.
  last = std::min(last, place.map->newest_version());
  const DropVersionRequest drop{
      .region = key.id, .epoch = key.epoch, .first = first, .last = last, .force = uint8_t{force}};
  for (const CopyMap::Whereabout& at : place.map->copies()->Whereabouts()) {
    if (first > last) break;
    calls.Add(place, at.life, MessageHeader(drop));
  }
  struct Waiting {
    Mutex mu;
    CondVar ended;
    bool is_over = false;
  } waiting;
  calls.Start(
      place, io_class, deadline_ns,
      [](void* context) {
        auto* const waits = static_cast<Waiting*>(context);
        MutexLock lock(&waits->mu);
        waits->is_over = true;
        waits->ended.SignalAll();
      },
      &waiting);
  {
    MutexLock lock(&waiting.mu);
    while (!waiting.is_over) waiting.ended.WaitUntil(&waiting.mu, MonotonicNs() + kNsPerSecond);
  }
  NoteOwedDrops(place, calls);
  NRAM_RETURN_IF_ERROR(place.map->CheckUsable());
  DroppedVersions dropped;
  for (const VersionCalls::Leg& leg : calls.legs()) {
    dropped.unanswered += leg.answered() ? 0 : 1;
    if (!leg.done()) continue;
    const auto reply = FromWords<DropVersionReply>(leg.call.answer);
    dropped.freed_bytes += reply.freed_bytes;
    dropped.held = std::max(dropped.held, reply.held);
  }
  return dropped;
}

}  // namespace nram
