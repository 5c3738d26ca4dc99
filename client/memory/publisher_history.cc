// Publisher's part in versions that are there already: how many there may be, and which go.

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/memory/publisher.h"

namespace nram {
namespace {

constexpr int64_t kRoomPauseMs = 20;  // the longest pause between looks whether observers have released versions

}  // namespace

absl::Status Publisher::MakeRoom(Stream* stream, const PublishRequest& request) {
  const size_t most = std::min(request.most == 0 ? UINT32_MAX : request.most, options_.versions_max);
  const auto is_full = [&] { return stream->kept.size() + stream->held.size() >= most; };
  if (is_full()) DropHeld(stream, /*all=*/true);
  if (!is_full()) return absl::OkStatus();
  // Drops those that the next one would drop anyway; but the newest is kept until there is a newer one.
  const size_t stay = std::clamp<size_t>(request.history - 1, 1, most - 1);
  while (is_full() && stream->kept.size() > stay) NRAM_RETURN_IF_ERROR(ForgetOldest(stream));
  const int64_t deadline_ns = DeadlineAfterMs(request.when_full == WhenFull::kWait ? request.wait_ms : 0);
  for (int64_t pause_ms = 1;; pause_ms = std::min(2 * pause_ms, kRoomPauseMs)) {
    // Unobserved versions first.
    DropHeld(stream, /*all=*/true);
    while (request.when_full == WhenFull::kDropOldest && is_full() && !stream->held.empty() &&
           DropVersions(stream->held.front().record, /*force=*/true)) {
      stream->held.pop_front();
    }
    if (!is_full()) return absl::OkStatus();
    const int64_t now_ns = MonotonicNs();
    if (now_ns >= deadline_ns) break;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(deadline_ns - now_ns, pause_ms * kNsPerMs)));
  }
  const char* const why = request.when_full == WhenFull::kDropOldest
                              ? "a server does not answer, so the oldest cannot be dropped"
                          : request.when_full == WhenFull::kWait ? "observers have not released one in time"
                                                                 : "observers must release one first";
  return absl::OutOfRangeError(absl::StrCat("there are ", stream->kept.size() + stream->held.size(),
                                            " versions; the maximum is ", most, ": ", why));
}

bool Publisher::DropVersions(const PublicationRecord& record, bool force) {
  bool gone = true;
  for (const VersionPlace& place : record.regions) {
    SegmentRef segment;
    {
      MutexLock lock(&mu_);
      if (const auto it = segments_.find(place.region); it != segments_.end()) segment = SegmentRef(it->second);
    }
    // Another owner drops versions that no record names.
    if (!segment) continue;
    const auto dropped =
        segment->region()->DropVersions(place.number, place.number, force, {.timeout_ms = options_.io_timeout_ms});
    gone = gone && (dropped.ok() ? dropped->held == 0 : !force);
  }
  return gone;
}

void Publisher::Hold(Stream* stream, PublicationRecord record) {
  record.header_json.clear();
  record.arrays.clear();
  stream->held.push_back({std::move(record)});
}

void Publisher::DropHeld(Stream* stream, bool all) {
  // Servers that have been told drop it with its last hold. To ask them each time, for each, would make observers slow
  // the producer down.
  all = all || stream->held.size() >= stream->look_at;
  std::deque<HeldVersion> left;
  for (HeldVersion& held : stream->held) {
    if (!all && held.told) {
      left.push_back(std::move(held));
    } else if (!DropVersions(held.record)) {
      held.told = true;
      left.push_back(std::move(held));
    }
  }
  // More than a region can have are not there.
  while (left.size() > kHeldMax) left.pop_front();
  stream->held = std::move(left);
  if (all) stream->look_at = 2 * stream->held.size() + kLookAtHeld;
}

absl::Status Publisher::ForgetOldest(Stream* stream) {
  const absl::Status status =
      stream->publication->Forget(stream->kept.front().number, DeadlineAfterMs(options_.io_timeout_ms));
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  Hold(stream, std::move(stream->kept.front()));
  stream->kept.pop_front();
  return absl::OkStatus();
}

void Publisher::DropOld(Job* job) {
  Stream* const stream = job->stream;
  // After an error the next publication tries again.
  while (stream->kept.size() > job->request.history && ForgetOldest(stream).ok()) {
  }
  DropHeld(stream);
}

}  // namespace nram
