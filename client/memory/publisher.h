#ifndef NRAM_CLIENT_MEMORY_PUBLISHER_H_
#define NRAM_CLIENT_MEMORY_PUBLISHER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/memory/bound_copies.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/page_out.h"
#include "client/memory/publish_gate.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/userfault.h"
#include "client/pool/pool.h"
#include "client/pool/publication.h"

namespace nram {

struct PublisherOptions {
  int64_t io_timeout_ms = 10'000;
  // A version is given up if threads have waited this long for budget, and none of its pages has been sent meanwhile.
  int64_t patience_ms = 250;
  int64_t seal_patience_ms = 1'000;  // the same while servers seal it
  // As PublishRequest::most, of any publication: 2 or more, and fewer than a region and a record can have.
  uint32_t versions_max = 1'000;
};

// The answer to a new version that would be one too many.
enum class WhenFull {
  kDropOldest,  // drops versions, the oldest first, observed or not
  kWait,        // until observers have released one
  kFail,
};

struct PublishRequest {
  std::vector<SegmentRef> segments;  // of this handle; the first one's name is the publication's
  VersionKeep keep = VersionKeep::kWithOwner;
  uint32_t history = 2;  // published versions to keep, this one included, besides held ones; 1 or more
  uint64_t step = 0;
  std::string header_json;
  // Versions that there may be at a time, held ones and this one included: 2 or more; 0:
  // PublisherOptions::versions_max.
  uint32_t most = 0;
  WhenFull when_full = WhenFull::kDropOldest;
  int64_t wait_ms = 0;  // with kWait
  std::vector<PublishedArray> arrays;
};

// Makes versions of mapped memory, one at a time (adr/0019). Publish fixes the present content: dirty pages become
// bound. A thread sends them, or the copies made before the program wrote to them again (bound_copies.h). When servers
// have all of them, they seal the version, and a record says that it is there. Thread-safe.
class Publisher {
 public:
  static constexpr uint32_t kSegmentsMax = 64;

  // All outlive it.
  Publisher(const PublisherOptions& options, Pool* pool, PublishGate* gate, Userfault* userfault, Residency* residency,
            ChunkSums* sums, BoundCopies* copies, Counters* counters);
  // Every segment must have been forgotten.
  ~Publisher();

  // The segment can be published from now on. `former`: an earlier owner's publication; may be null.
  void Add(Segment* segment, std::unique_ptr<Publication> former);
  // From now on the segment is not published; waits for a publication of it. `destroys`: so is its record.
  void Forget(Segment* segment, bool destroys);

  // Returns when the state is fixed, with the version's number; blocks while an earlier publication is under way, for
  // as long as that takes, and while pages are dropped. INVALID_ARGUMENT: a segment cannot be published, or not for
  // that long, or the header is no JSON or too long, or CheckArrays refuses the arrays. ALREADY_EXISTS: NAME.versions
  // is taken. OUT_OF_RANGE: there are as many versions as there may be; some older ones may be gone then.
  // DEADLINE_EXCEEDED, UNAVAILABLE. Nothing else has changed after any error.
  absl::StatusOr<uint64_t> Publish(PublishRequest request);
  // Blocks until the version (0: the last) can be observed. DEADLINE_EXCEEDED: not yet. INVALID_ARGUMENT: nothing was
  // published by that segment's name, or not that version. UNKNOWN: servers have not answered whether it is there.
  // It is there when a later version is, and this says so then. Else why it could not be published.
  absl::Status AwaitPublished(const Segment& segment, uint64_t version, int64_t deadline_ns);
  // The version does not exist from now on. Pages that only it has are freed when no client observes it any more.
  // Blocks while a publication is under way, for as long as that takes. NOT_FOUND.
  absl::Status Drop(const Segment& segment, uint64_t version);

 private:
  static constexpr size_t kFailuresMax = 64;
  static constexpr size_t kHeldMax = 1'024;  // as many as a region can have
  static constexpr size_t kLookAtHeld = 16;

  // Dropped, but a client may still observe it.
  struct HeldVersion {
    PublicationRecord record;  // without its header and arrays
    bool told = false;         // servers drop it when no client observes it
  };

  // The versions of one name.
  struct Stream {
    std::shared_ptr<Publication> publication;  // null: nothing yet
    std::deque<PublicationRecord> kept;        // the oldest first
    std::deque<HeldVersion> held;
    size_t look_at = kLookAtHeld;  // when `held` has this many, servers are asked which are gone
    uint64_t begun = 0;
    uint64_t ended = 0;
    std::map<uint64_t, absl::Status> failures;  // of the newest that have ended
    uint64_t forgotten = 0;                     // how this version and older ones have ended may be unknown
  };
  struct Job {
    PublishRequest request;
    Stream* stream = nullptr;
    PublicationRecord record;
    bool given_up = false;
    // Of IsStalled.
    uint64_t bound_pages = 0;
    int64_t moved_ns = 0;
    int64_t free_ns = 0;  // the last time when no thread waited for budget
  };

  // Only one thread has the turn, and with it all parts of the Streams except those that AwaitPublished reads.
  void AwaitTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndTurnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Stream*> CheckRequest(const PublishRequest& request);
  absl::Status Begin(Job* job, int64_t deadline_ns);
  absl::Status OpenPublication(Job* job);
  // Sees to it that one version more is not too many. May wait.
  absl::Status MakeRoom(Stream* stream, const PublishRequest& request);
  // The oldest kept version is dropped.
  absl::Status ForgetOldest(Stream* stream);
  void Flip(const Job& job);

  void Run();
  // Tells the waiters for the version how it has ended.
  void Tell(Job* job, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the thread.
  absl::Status Execute(Job* job);
  absl::Status Send(Job* job, PageOut* out);
  // Waits until some of the segment's bound pages are sent.
  void AwaitSome(Segment* segment, PageOut* out);
  // Sends some bound pages of the segment from *page on, and moves that. False: there are none.
  bool SendSome(const SegmentRef& segment, uint64_t* page, PageOut* out);
  absl::Status Seal(Job* job);
  absl::Status Commit(Job* job);
  void Release(const Job& job);
  // Bound pages are dirty again.
  void GiveUp(Job* job);
  bool IsStalled(Job* job, int64_t patience_ms);
  absl::Status Stalled() const;
  void DropOld(Job* job);
  // True if no server has it any more, or this client cannot drop it.
  bool DropVersions(const PublicationRecord& record, bool force = false);
  void Hold(Stream* stream, PublicationRecord record);
  // `all`: also those that servers know of, to see which are gone.
  void DropHeld(Stream* stream, bool all = false);

  const PublisherOptions options_;
  Pool* const pool_;
  PublishGate* const gate_;
  Userfault* const userfault_;
  Residency* const residency_;
  ChunkSums* const sums_;
  BoundCopies* const copies_;
  Counters* const counters_;

  Mutex mu_;
  CondVar changed_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // a thread has the turn
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Job> job_ ABSL_GUARDED_BY(mu_);  // for the thread
  std::map<const Segment*, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  std::map<RegionId, Segment*> segments_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PUBLISHER_H_
