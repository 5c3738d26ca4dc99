#include "client/pool/version_seal.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "base/status.h"
#include "base/sync.h"

namespace nram {

VersionSeal::~VersionSeal() { CHECK_EQ(over_.load(), kOver) << "a seal went away under way"; }

void VersionSeal::Start(const IoPlace& place, VersionKeep keep, IoClass io_class, int64_t deadline_ns,
                        Callback callback, void* context) {
  place_ = place;
  keep_ = keep;
  io_class_ = io_class;
  deadline_ns_ = deadline_ns;
  callback_ = callback;
  callback_context_ = context;
  over_ = kRunning;
  OnEvent();
}

void VersionSeal::Fail(const absl::Status& status, Callback callback, void* context) {
  callback_ = callback;
  callback_context_ = context;
  (void)End(status);
}

absl::StatusOr<SealedVersion> VersionSeal::Wait() {
  constexpr int64_t kTurnNs = kNsPerSecond;
  while (over_.load() != kOver) FutexWaitUntil(&over_, kRunning, MonotonicNs() + kTurnNs);
  return result_;
}

void VersionSeal::OnEvent() {
  // While a thread is here, another one leaves its event to that one.
  if (events_.fetch_add(1) != 0) return;
  do {
    Next next = Next::kStep;
    while (next == Next::kStep) next = Step();
    if (next == Next::kOver) return;  // it may be gone
  } while (events_.fetch_sub(1) > 1);
}

VersionSeal::Next VersionSeal::Step() {
  switch (state_) {
    case State::kPay:
      return Pay();
    case State::kPaid:
      return Paid();
    case State::kSettle:
      return Settle();
    case State::kSettled:
      return Settled();
    case State::kEnter:
      return Enter();
    case State::kLook:
      return Look();
    case State::kSeal:
      return Seal();
    case State::kJudge:
      return Judge();
  }
  return Next::kOver;
}

VersionSeal::Next VersionSeal::End(const absl::StatusOr<SealedVersion>& result) {
  if (std::exchange(in_gate_, false)) place_.gate->Leave(&gate_);
  result_ = result;
  if (callback_ == nullptr) {
    over_ = kOver;
    FutexWakeAll(&over_);
  } else {
    over_ = kOver;
    callback_(this, callback_context_);
  }
  return Next::kOver;
}

VersionSeal::Next VersionSeal::Pay() {
  state_ = State::kSettle;
  if (!AddOwedDrops(place_, &calls_)) return Next::kStep;
  state_ = State::kPaid;
  Call();
  return Next::kUnderWay;
}

VersionSeal::Next VersionSeal::Paid() {
  NoteOwedDrops(place_, calls_);
  state_ = State::kSettle;
  return Next::kStep;
}

void VersionSeal::Call() {
  // Not behind the bulk of other regions: a call that is late breaks its connection.
  calls_.Start(
      place_, IoClass::kUrgent, std::min(deadline_ns_, place_.environment->NowNs() + kMissNs),
      [](void* seal) { static_cast<VersionSeal*>(seal)->OnEvent(); }, this);
}

VersionSeal::Next VersionSeal::Settle() {
  if (absl::Status status = place_.map->CheckUsable(); !status.ok()) return End(status);
  if (IsLate() || rounds_ > kRoundsMax) {
    return End(absl::DeadlineExceededError("the region changes too fast to seal a version of it in time"));
  }
  // Once a round: it looks at all spans. The last look is in the gate.
  if (next_span_ == 0 && copies()->HasLoss()) {
    return End(absl::DataLossError(absl::StrCat("a part of region ", FormatId(Raw(place_.map->key().id)),
                                                " is lost: write it again or drop it first")));
  }
  next_span_ = copies()->NextToSettle(next_span_);
  if (next_span_ == UINT64_MAX) {
    state_ = State::kEnter;
    return Next::kStep;
  }
  if (settles_ == nullptr) settles_ = std::make_unique<Io>(kReplicasMax);
  IoRequest request;
  request.op = Op::kWrite;
  request.repair = RepairWork::kSettle;
  request.range = {next_span_ * kChunksPerSpan, kChunksPerSpan};
  request.deadline_ns = deadline_ns_;
  request.io_class = io_class_;
  state_ = State::kSettled;
  settles_->Start(
      place_, request, [](Io*, void* seal) { static_cast<VersionSeal*>(seal)->OnEvent(); }, this);
  return Next::kUnderWay;
}

VersionSeal::Next VersionSeal::Settled() {
  if (const absl::Status status = settles_->Wait(); !status.ok()) {
    return End(Annotate(status, "a version can be sealed when all copies are alike"));
  }
  ++next_span_;
  state_ = State::kSettle;
  return Next::kStep;
}

VersionSeal::Next VersionSeal::Enter() {
  gate_.kind = GatePlace::Kind::kSeal;
  gate_.region = place_.map->key().id;
  gate_.range = {0, kRegionChunksMax};
  // Later changes wait behind this one, also for a slow change of another part.
  gate_.deadline_ns = std::min(deadline_ns_, place_.environment->NowNs() + kMissNs);
  gate_.context = this;
  gate_.resume = [](GatePlace* place) { static_cast<VersionSeal*>(place->context)->OnEvent(); };
  state_ = State::kLook;
  // Planted: changes are under way meanwhile.
  if (NRAM_PLANTED(publish_gate_passed)) gate_.range = {kRegionChunksMax - 1, 1};
  in_gate_ = place_.gate->Enter(&gate_);
  return in_gate_ ? Next::kStep : Next::kUnderWay;
}

VersionSeal::Next VersionSeal::Look() {
  in_gate_ = in_gate_ || gate_.outcome == GatePlace::Outcome::kIn;
  if (!in_gate_) {
    if (IsLate()) return End(absl::DeadlineExceededError("earlier changes of the region have not ended in time"));
    next_span_ = 0;
    state_ = State::kSettle;  // those behind it were let in
    return Next::kStep;
  }
  // In the gate no span changes. Spans that have become doubtful since are settled outside.
  if (place_.map->CheckUsable().ok() && !copies()->HasLoss() && copies()->NextToSettle(0) == UINT64_MAX) {
    state_ = State::kSeal;
    return Next::kStep;
  }
  in_gate_ = false;
  next_span_ = 0;
  ++rounds_;
  state_ = State::kSettle;
  place_.gate->Leave(&gate_);
  return Next::kStep;
}

VersionSeal::Next VersionSeal::Seal() {
  const RegionKey& key = place_.map->key();
  number_ = place_.map->TakeVersionNumber();
  if (number_ == VersionNumber{}) {
    return End(absl::ResourceExhaustedError(
        absl::StrCat("region ", FormatId(Raw(key.id)), " has had its last version: copy it to a new one")));
  }
  calls_.Clear();
  const SealRequest seal{
      .region = key.id, .epoch = key.epoch, .version = number_, .keep = static_cast<uint32_t>(keep_)};
  for (const CopyMap::Whereabout& at : copies()->Whereabouts()) calls_.Add(place_, at.life, MessageHeader(seal));
  state_ = State::kJudge;
  Call();
  return Next::kUnderWay;
}

void VersionSeal::GiveUp(VersionNumber number) {
  for (const VersionCalls::Leg& leg : calls_.legs()) {
    if (leg.done() || (leg.asked && !leg.answered())) {
      place_.map->AddVersionDebt({leg.life, number, number});
    }
  }
}

absl::Status VersionSeal::NoMembers() const {
  const std::string region = FormatId(Raw(place_.map->key().id));
  absl::Status first;
  for (const VersionCalls::Leg& leg : calls_.legs()) {
    if (leg.done()) continue;
    if (leg.answered() && leg.call.reason == Reason::kFull) {
      return absl::ResourceExhaustedError(absl::StrCat("region ", region, " has 1,024 versions at memory server ",
                                                       leg.session->name(),
                                                       ", or that has no room for another: drop some"));
    }
    if (first.ok()) first = leg.status();
  }
  if (calls_.legs().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("region ", region, " is on no server yet: nothing was written to it"));
  }
  const absl::string_view why = first.ok() ? "a part of it has no copy that is in sync there" : first.message();
  return absl::UnavailableError(absl::StrCat("no version of region ", region, " could be sealed: ", why));
}

VersionSeal::Next VersionSeal::Judge() {
  const VersionNumber number = number_;
  SealedVersion sealed{.number = number, .incarnations = {}, .least_in_sync = 0};
  std::vector<CopyMap::Life> members;
  bool is_old = false;
  bool has_new = false;  // one has refused for the first time
  VersionNumber highest = number;
  for (const VersionCalls::Leg& leg : calls_.legs()) {
    if (leg.done()) members.push_back(leg.life);
    // Planted: it may seal the version later, with the changes made since.
    if (NRAM_PLANTED(publish_late_member) && leg.asked && !leg.answered()) members.push_back(leg.life);
    if (!leg.answered()) continue;
    // The server has freed its data of the region.
    if (leg.call.reason == Reason::kUnknownRegion) copies()->Bury(leg.life);
    // It was sealed there, or yielded or was dropped since.
    if (leg.call.reason != Reason::kOldVersion && leg.call.reason != Reason::kUnknownSnapshot) continue;
    is_old = true;
    const uint64_t incarnation = leg.life.incarnation;
    if (place_.map->IsRefuser(incarnation)) continue;
    highest = std::max(highest, FromWords<SealReply>(leg.call.answer).newest);
    if (absl::c_linear_search(refused_, incarnation)) {
      place_.map->NoteRefuser(incarnation);
      continue;
    }
    refused_.push_back(incarnation);
    has_new = true;
  }
  if (absl::Status status = place_.map->CheckUsable(); !status.ok()) return End(status);
  // A server without data of the region need not be a member.
  const auto is_used = [&](const CopyMap::Life& life) { return copies()->IsUsed(life.server); };
  if (std::any_of(members.begin(), members.end(), is_used)) {
    std::erase_if(members, [&](const CopyMap::Life& life) { return !is_used(life); });
  }
  for (const CopyMap::Life& life : members) sealed.incarnations.push_back(life.incarnation);
  sealed.least_in_sync = static_cast<uint32_t>(std::max(copies()->LeastInSync(members), 0));
  // One that says so again may lie: the others do without it, if they can.
  if (is_old && (has_new || sealed.least_in_sync == 0)) {
    // Of a former owner, which has dropped them since.
    GiveUp(number);
    const uint64_t above =
        std::clamp<uint64_t>(Raw(highest), uint64_t{Raw(number)} + step_, uint64_t{Raw(number)} + kJumpMax);
    place_.map->NoteVersion(VersionNumber{static_cast<uint32_t>(std::min<uint64_t>(above, Raw(kVersionNumberMax)))});
    step_ = std::min(2 * step_, kJumpMax);
    if (IsLate() || ++rounds_ > kRoundsMax) {
      return End(absl::UnavailableError("the servers of the region refuse the numbers of its versions"));
    }
    state_ = State::kSeal;
    return Next::kStep;
  }
  if (sealed.least_in_sync == 0) {
    GiveUp(number);
    return End(NoMembers());
  }
  // It is unknown whether they will execute it, and then it is of another time.
  for (const VersionCalls::Leg& leg : calls_.legs()) {
    if (NRAM_PLANTED(publish_late_member)) break;
    if (leg.asked && !leg.answered()) place_.map->AddVersionDebt({leg.life, number, number});
  }
  return End(sealed);
}

}  // namespace nram
