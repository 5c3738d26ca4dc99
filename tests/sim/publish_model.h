#ifndef NRAM_TESTS_SIM_PUBLISH_MODEL_H_
#define NRAM_TESTS_SIM_PUBLISH_MODEL_H_

// The possible contents of a region, and each published state of it, as its owners know them. A read of one of them
// must find a possible state, and from then on always the same.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/units.h"
#include "client/pool/publication_record.h"

namespace nram::sim {

// One thread. A change belongs to one owner; the changes of one owner do not overlap.
class PublishModel {
 public:
  static constexpr uint64_t kSpans = 3;
  static constexpr uint64_t kPages = kSpans * kPagesPerSpan;
  static constexpr uint64_t kHotPages = 12;  // at the beginning of each span; the others remain holes
  // The value of a chunk: the number of the change that made it; 0: zeros.
  using Value = uint64_t;
  struct Cell {
    std::vector<Value> may;  // one of these
    bool any = false;        // or anything: lost data returned in an older state, or not at all
  };
  using State = std::map<uint64_t, Cell>;  // by chunk; absent ones are zeros

  // --- Changes. `owner`: a number of its own; former owners' changes do not count.
  void BeginChange(uint64_t owner, ChunkRange range, Value value);
  void EndChange(uint64_t owner, ChunkRange range, Value value, bool ok);
  // It alone has the region now. `loses`: data may be lost.
  void TakeOver(uint64_t owner, bool loses);
  Value NextValue() { return next_value_++; }
  static void Fill(Value value, ChunkRange range, absl::Span<std::byte> out);

  // --- Seals: of a state that is the region's between Begin and End.
  void BeginSeal(uint64_t owner);
  State EndSeal(uint64_t owner);

  // --- Reads. Empty: the data is possible. The head's while none of its changes is under way.
  std::string ReadHead(ChunkRange range, absl::Span<const std::byte> in);
  static std::string Read(State* state, ChunkRange range, absl::Span<const std::byte> in);
  // A page may differ between two states.
  static bool SurelyDiffers(const State& a, const State& b, uint64_t page);

  // --- Publications.
  struct Published {
    uint64_t number = 0;
    VersionPlace place;
    State state;
    bool committed = false;  // the commit was acknowledged
    bool forgotten = false;  // its owner has begun to forget it
    bool never = false;      // its owner had lost the records before it began
    bool with_owner = false;
    uint64_t owner = 0;
  };
  // Empty: no version of that region had that number. One without a record may have had it, if none of its servers'
  // lives is a member now: no present server knows of it, and an observer with its record finds nothing (adr/0019).
  std::string CheckUnused(const VersionPlace& place) const;
  // Returns the text for its record's header.
  uint64_t AddPublished(Published published);
  Published* Find(uint64_t uid);
  std::map<uint64_t, Published>& published() { return published_; }
  // All present ones are at least as new.
  uint64_t newest_committed() const { return newest_committed_; }
  void NoteCommitted(uint64_t uid);
  void NoteForgotten(uint64_t uid);
  // None of the former publications needs to be there.
  void NoteRecordsLost();
  uint64_t owner() const { return owner_; }

 private:
  struct Head {
    Cell settled;
    std::vector<Value> under_way;
  };
  Head& At(uint64_t chunk);

  uint64_t owner_ = 0;
  bool may_be_any_ = false;  // all chunks
  std::map<uint64_t, Head> head_;
  std::optional<State> sealing_;
  std::map<uint64_t, Published> published_;
  uint64_t newest_committed_ = 0;
  Value next_value_ = 1;
  uint64_t next_uid_ = 1;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_PUBLISH_MODEL_H_
