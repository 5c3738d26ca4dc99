#ifndef NRAM_CLIENT_MEMORY_PUBLISH_GATE_H_
#define NRAM_CLIENT_MEMORY_PUBLISH_GATE_H_

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "client/memory/segment.h"

namespace nram {

// The demands of publishing on all code that handles pages (adr/0019). Thread-safe.
//
// A lock. Code that changes a page's protection and its state together holds it shared, and never over the network. A
// publication holds it alone while it flips: so it sees each page either before such a change or after it. Of a segment
// that is being published, from the flip to the seal, only bound pages go to servers, and nothing is trimmed there.
//
// Lock order: before Residency's and Userfault's callers' own; nothing that waits for a page may be done under it.
class ABSL_LOCKABLE PublishGate {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.Lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() { mu_.ReaderLock(); }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mu_.ReaderUnlock(); }

  // While it is there, the segment is not being published.
  class Trimming {
   public:
    Trimming(Trimming&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), segment_(std::move(other.segment_)) {}
    Trimming& operator=(Trimming&&) = delete;
    ~Trimming() {
      if (gate_ != nullptr) gate_->EndTrim(segment_.get());
    }

   private:
    friend class PublishGate;
    Trimming(PublishGate* gate, SegmentRef segment) : gate_(gate), segment_(std::move(segment)) {}
    PublishGate* gate_;  // null: it cannot be published anyway
    SegmentRef segment_;
  };
  // Blocks while the segment is being published. DEADLINE_EXCEEDED.
  absl::StatusOr<Trimming> BeginTrim(const SegmentRef& segment, int64_t deadline_ns) {
    if (!segment->publishable) return Trimming(nullptr, SegmentRef());
    MutexLock lock(&turns_mu_);
    while (turns_[segment.get()].published) {
      if (!changed_.WaitUntil(&turns_mu_, deadline_ns) && turns_[segment.get()].published) return TooLong();
    }
    ++turns_[segment.get()].trims;
    return Trimming(this, segment.Share());
  }
  // Blocks while the segment is being published. DEADLINE_EXCEEDED.
  absl::Status AwaitSealed(const Segment& segment, int64_t deadline_ns) {
    if (!segment.publishable) return absl::OkStatus();
    MutexLock lock(&turns_mu_);
    const auto is_published = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turns_mu_) {
      const auto it = turns_.find(&segment);
      return it != turns_.end() && it->second.published;
    };
    while (is_published()) {
      if (!changed_.WaitUntil(&turns_mu_, deadline_ns) && is_published()) return TooLong();
    }
    return absl::OkStatus();
  }

  // For the publisher, which publishes the segments from here to EndPublish. Blocks while something is trimmed there,
  // and later trims wait. DEADLINE_EXCEEDED: it has not begun.
  absl::Status BeginPublish(absl::Span<const SegmentRef> segments, int64_t deadline_ns) {
    MutexLock lock(&turns_mu_);
    for (const SegmentRef& segment : segments) turns_[segment.get()].published = true;
    for (const SegmentRef& segment : segments) {
      while (turns_[segment.get()].trims > 0) {
        if (changed_.WaitUntil(&turns_mu_, deadline_ns) || turns_[segment.get()].trims == 0) continue;
        EndPublishLocked(segments);
        return absl::DeadlineExceededError("pages of the mapping were being dropped for too long");
      }
    }
    return absl::OkStatus();
  }
  void EndPublish(absl::Span<const SegmentRef> segments) {
    MutexLock lock(&turns_mu_);
    EndPublishLocked(segments);
  }

 private:
  struct Turns {
    uint32_t trims = 0;
    bool published = false;
  };
  static absl::Status TooLong() { return absl::DeadlineExceededError("a version was being published for too long"); }
  void EndTrim(Segment* segment) {
    MutexLock lock(&turns_mu_);
    const auto it = turns_.find(segment);
    if (--it->second.trims == 0 && !it->second.published) turns_.erase(it);
    changed_.SignalAll();
  }
  void EndPublishLocked(absl::Span<const SegmentRef> segments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turns_mu_) {
    for (const SegmentRef& segment : segments) {
      const auto it = turns_.find(segment.get());
      it->second.published = false;
      if (it->second.trims == 0) turns_.erase(it);
    }
    changed_.SignalAll();
  }

  SharedMutex mu_;
  Mutex turns_mu_;
  CondVar changed_;
  // Segments with something under way. A trim that waits may have left an empty entry: at most one a segment.
  std::map<const Segment*, Turns> turns_ ABSL_GUARDED_BY(turns_mu_);
};

// Shared, or alone.
class ABSL_SCOPED_LOCKABLE GateShared {
 public:
  explicit GateShared(PublishGate* gate) ABSL_SHARED_LOCK_FUNCTION(gate) : gate_(gate) { gate_->ReaderLock(); }
  ~GateShared() ABSL_UNLOCK_FUNCTION() { gate_->ReaderUnlock(); }
  GateShared(const GateShared&) = delete;
  GateShared& operator=(const GateShared&) = delete;

 private:
  PublishGate* const gate_;
};

class ABSL_SCOPED_LOCKABLE GateAlone {
 public:
  explicit GateAlone(PublishGate* gate) ABSL_EXCLUSIVE_LOCK_FUNCTION(gate) : gate_(gate) { gate_->Lock(); }
  ~GateAlone() ABSL_UNLOCK_FUNCTION() { gate_->Unlock(); }
  GateAlone(const GateAlone&) = delete;
  GateAlone& operator=(const GateAlone&) = delete;

 private:
  PublishGate* const gate_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PUBLISH_GATE_H_
