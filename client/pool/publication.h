#ifndef NRAM_CLIENT_POOL_PUBLICATION_H_
#define NRAM_CLIENT_POOL_PUBLICATION_H_

// Versions that others find by name (adr/0019): the region NAME.versions lists them. It has one owner, which publishes,
// and any number of readers.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/pool/pool.h"
#include "client/pool/publication_record.h"

namespace nram {

// Thread-safe: calls are serialized, except AwaitAbove. All block, until their absolute, monotonic deadline at most,
// and some milliseconds. Errors beside their own are Region's.
class Publication {
 public:
  static constexpr size_t kNameBytesMax = 246;

  // As Pool::CreateRegion, and until io_timeout_ms. `options`: those of the region NAME; NAME.versions has as many
  // copies as the pool's hosts allow. INVALID_ARGUMENT: the name is empty, or too long. ALREADY_EXISTS: there is one.
  // `pool` outlives it.
  static absl::StatusOr<std::unique_ptr<Publication>> Create(Pool* pool, const std::string& name,
                                                             const RegionOptions& options);
  // As Pool::AttachRegion. NOT_FOUND: no client has ever published under that name. An owner must attach this first,
  // and then its regions. A publication that a former owner has begun and not committed does not exist.
  static absl::StatusOr<std::unique_ptr<Publication>> Attach(Pool* pool, const std::string& name, AttachMode mode);

  // --- Of the owner; of others FAILED_PRECONDITION.
  // The versions that the record names are there from now on. Its number is above all former ones. After an error
  // without an answer (UNAVAILABLE, DEADLINE_EXCEEDED) it may be there or not, as StandingOf says. INVALID_ARGUMENT: as
  // CheckRecord, or it has more than 60 KiB, or its number is too low. RESOURCE_EXHAUSTED: there are 1,023 already.
  absl::Status Commit(const PublicationRecord& record, int64_t deadline_ns);
  // The standing of a record that Commit was called with. kUnsure: it may be there, and its versions must not be
  // dropped. After
  // the next Commit that succeeds (the same one again will do) it is there; after a Forget it is not. Blocks only while
  // another call is under way.
  enum class Standing { kNotThere, kThere, kUnsure };
  Standing StandingOf(uint64_t number);
  // It is not there from now on; its versions may be dropped then, and not before. NOT_FOUND: it is not there.
  absl::Status Forget(uint64_t number, int64_t deadline_ns);
  // The lowest number that Commit accepts.
  uint64_t NextNumber();
  // Frees NAME.versions on every server, as Region::Destroy; this is unusable afterwards. Versions that it names are
  // not dropped.
  absl::Status Destroy();
  // Drops the versions of the region that no record names: a former owner has left them. Must be called before the
  // region is sealed: from then on its numbers are above all that records have named.
  absl::Status DropUnrecorded(Region* region, int64_t deadline_ns);

  // --- Of any client.
  // 0: the newest. NOT_FOUND: there is none, or not that one.
  absl::StatusOr<PublicationRecord> Read(uint64_t number, int64_t deadline_ns);
  // The oldest first.
  absl::StatusOr<std::vector<PublicationRecord>> List(int64_t deadline_ns);
  // The number of the newest, as soon as that is above `number`. It asks from time to time, after a twentieth of the
  // time between two publications: 1 ms to 1 s. DEADLINE_EXCEEDED: there was none.
  absl::StatusOr<uint64_t> AwaitAbove(uint64_t number, int64_t deadline_ns);

  const std::string& name() const { return name_; }
  bool read_only() const { return read_only_; }

 private:
  static constexpr int64_t kPauseMs = 10;
  static constexpr int64_t kPollMaxMs = 1'000;
  static constexpr int64_t kLookAgainMs = 50;
  static constexpr int64_t kLookMaxMs = 1'000;

  Publication(Pool* pool, const std::string& name, bool read_only) : pool_(pool), name_(name), read_only_(read_only) {}
  static std::string RegionName(const std::string& name) { return name + ".versions"; }
  static absl::Status CheckName(const std::string& name);
  bool IsPlaced(uint64_t offset) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !region_->ServersOf(offset).empty();
  }
  // This handle knows where all spans are.
  bool IsLaid() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The head, and a page in each span, so that readers know where all of them are.
  absl::Status Lay(int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads the records that a former owner has left.
  absl::Status Load(int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteRecorded(const PublicationRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For readers. Spans laid since the region was attached are holes to them. True: it was attached again.
  bool LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckOwner() const;
  absl::Status Write(uint64_t offset, std::string data, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The last write to the head may be there or not.
  bool IsHeadUnsure() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return head_.newest > sure_; }
  // Until it is answered.
  absl::Status WriteHead(int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ClearSlot(uint32_t slot, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<uint32_t> FreeSlot(uint64_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReadBytes(uint64_t offset, std::string* data, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<PublicationHead> ReadHead(int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<PublicationRecord> ReadSlot(uint32_t slot, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Each slot that is not empty.
  absl::Status VisitSlots(int64_t deadline_ns,
                          absl::FunctionRef<void(uint32_t slot, absl::StatusOr<PublicationRecord> record)> visit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<PublicationRecord>> ListLocked(const PublicationHead& head, int64_t deadline_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<PublicationRecord> ReadLocked(uint64_t number, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NotThere(uint64_t number) const;
  // To the next look.
  void NoteNewest(uint64_t newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t PollMs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Pool* const pool_;
  const std::string name_;
  const bool read_only_;
  Mutex mu_;
  std::unique_ptr<Region> region_ ABSL_GUARDED_BY(mu_);

  // --- Of the owner.
  PublicationHead head_ ABSL_GUARDED_BY(mu_);
  uint64_t sure_ ABSL_GUARDED_BY(mu_) = 0;                           // head_.newest of its last write that was done
  uint64_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;                     // and of its last one without an answer
  uint64_t highest_ ABSL_GUARDED_BY(mu_) = 0;                        // number that a slot may have had
  std::map<uint64_t, uint32_t> slots_ ABSL_GUARDED_BY(mu_);          // by number
  std::map<RegionId, VersionNumber> recorded_ ABSL_GUARDED_BY(mu_);  // the highest number that a slot has named
  // They may have something that was not committed: to be cleared before a higher number is.
  std::vector<uint32_t> dirty_ ABSL_GUARDED_BY(mu_);

  // --- Of readers: when the newest was another one for the last time.
  int64_t look_again_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t seen_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t seen_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t period_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_PUBLICATION_H_
