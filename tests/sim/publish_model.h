#ifndef NRAM_TESTS_SIM_PUBLISH_MODEL_H_
#define NRAM_TESTS_SIM_PUBLISH_MODEL_H_

// The contents that a region may hold, and each state of it that was published, as its owners have been told. Whoever
// reads one of them must find a state that may be, and from then on the same for ever.

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

// One thread. A change is of one owner at a time; those of one owner do not overlap.
class PublishModel {
 public:
  static constexpr uint64_t kSpans = 3;
  static constexpr uint64_t kPages = kSpans * kPagesPerSpan;
  static constexpr uint64_t kHotPages = 12;  // at the beginning of each span; the others stay holes
  // The value of a chunk: the number of the change that made it; 0: zeros.
  using Value = uint64_t;
  struct Cell {
    std::vector<Value> may;  // one of these
    bool any = false;        // or anything: what was lost came back older, or not at all
  };
  using State = std::map<uint64_t, Cell>;  // by chunk; those that are not there are zeros

  // --- Changes. `owner`: a number of its own; those of former ones do not count.
  void BeginChange(uint64_t owner, ChunkRange range, Value value);
  void EndChange(uint64_t owner, ChunkRange range, Value value, bool ok);
  // It has the region now, and nobody else has. `loses`: something may be lost.
  void TakeOver(uint64_t owner, bool loses);
  Value NextValue() { return next_value_++; }
  static void Fill(Value value, ChunkRange range, absl::Span<std::byte> out);

  // --- Seals: of a state that is the region's between Begin and End.
  void BeginSeal(uint64_t owner);
  State EndSeal(uint64_t owner);

  // --- What was read. Empty: it may be. The head's while none of its changes is under way.
  std::string ReadHead(ChunkRange range, absl::Span<const std::byte> in);
  static std::string Read(State* state, ChunkRange range, absl::Span<const std::byte> in);
  // A page may differ between two states.
  static bool SurelyDiffers(const State& a, const State& b, uint64_t page);

  // --- Publications.
  struct Published {
    uint64_t number = 0;
    VersionPlace place;
    State state;
    bool committed = false;  // that has been told
    bool forgotten = false;  // its owner has begun to
    bool never = false;      // its owner had lost the records before it began
    bool with_owner = false;
    uint64_t owner = 0;
  };
  // Empty: no version of that region had that number. One without a record may have had it, if none of its servers'
  // lives is a member now: nothing that is there knows of it, and whoever has its record finds nothing (adr/0019).
  std::string CheckUnused(const VersionPlace& place) const;
  // Returns what its record has to say in its header.
  uint64_t AddPublished(Published published);
  Published* Find(uint64_t uid);
  std::map<uint64_t, Published>& published() { return published_; }
  // All that are there are at least as new.
  uint64_t newest_committed() const { return newest_committed_; }
  void NoteCommitted(uint64_t uid);
  void NoteForgotten(uint64_t uid);
  // Nothing of before needs to be there.
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
