#ifndef NRAM_CLIENT_MEMORY_OBSERVER_H_
#define NRAM_CLIENT_MEMORY_OBSERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/memory/advice.h"
#include "client/memory/page_in.h"
#include "client/memory/segment.h"
#include "client/pool/pool.h"
#include "client/pool/publication.h"

namespace nram {

// Published versions as others see them: which there are, their regions, and how mapped ones go on to the next
// (adr/0019). Thread-safe, except for calls about the same view at the same time.
class Observer {
 public:
  // All outlive it.
  Observer(int64_t io_timeout_ms, Pool* pool, SegmentIndex* index, PageIn* page_in, Advice* advice)
      : io_timeout_ms_(io_timeout_ms), pool_(pool), index_(index), page_in_(page_in), advice_(advice) {}

  // Mappings of one version: they go on together.
  struct View {
    std::shared_ptr<Publication> publication;
    std::shared_ptr<const PublicationRecord> record;  // changed under mu_, by Next alone
    std::vector<Segment*> segments;                   // the ones still mapped, in any order
  };
  struct Opened {
    std::unique_ptr<View> view;
    std::vector<std::unique_ptr<Region>> regions;  // in the record's order
  };
  // The version (0: the newest) of a publication: its first region, or `all`. NOT_FOUND: there is none. DATA_LOSS: it
  // is gone though its record is there. Else as Pool::AttachRegion and OpenVersion. Blocks for four times the timeout.
  absl::StatusOr<Opened> Open(const std::string& name, uint64_t version, bool all);
  // Its segments are mapped.
  void Add(std::unique_ptr<View> view);
  // Before the segment is unmapped.
  void Forget(const Segment* segment);

  // Goes on to the newest version, as soon as that is above the present one. Pages that the two share remain resident.
  // The program must not use the view's mappings meanwhile. After an error all is as before. DEADLINE_EXCEEDED: there
  // was no newer one until `deadline_ns`. FAILED_PRECONDITION: the newer one lacks a mapping of these, or has another
  // length of it. INVALID_ARGUMENT: the segment is not observed. Blocks for four times the timeout besides.
  absl::StatusOr<uint64_t> Next(const SegmentRef& segment, int64_t deadline_ns);
  // The view has it until Next, and until its last segment is forgotten. Null: the segment is not observed.
  std::shared_ptr<const PublicationRecord> RecordOf(const Segment* segment) const;
  // Where an array of that record is; null: its mapping is not mapped. Valid as long. DATA_LOSS: it cannot be there.
  absl::StatusOr<const std::byte*> DataOf(const Segment* segment, const PublishedArray& array) const;

 private:
  // A mapping of a view, on its way to the next version.
  struct Move {
    SegmentRef segment;
    std::unique_ptr<Region> region;  // the next one; then the former one
    std::vector<bool> changed;       // a page each
  };
  absl::StatusOr<std::shared_ptr<Publication>> FindPublication(const std::string& name);
  View* FindView(const Segment* segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Opens the newest version's regions for the view's mappings, and finds the changed pages.
  absl::StatusOr<std::vector<Move>> Prepare(const View& view, const PublicationRecord& record) const;
  absl::Status FindChanges(Move* move) const;
  void Exchange(Move* move);

  const int64_t io_timeout_ms_;
  Pool* const pool_;
  SegmentIndex* const index_;
  PageIn* const page_in_;
  Advice* const advice_;

  mutable Mutex mu_;
  std::map<std::string, std::weak_ptr<Publication>> publications_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<View>> views_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_OBSERVER_H_
