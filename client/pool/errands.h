#ifndef NRAM_CLIENT_POOL_ERRANDS_H_
#define NRAM_CLIENT_POOL_ERRANDS_H_

// What is to be freed at a server when it answers again: parts of destroyed regions, and named regions whose creation
// has failed. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"

namespace nram {

// Not thread-safe: its session's lock guards it.
class Errands {
 public:
  struct Destroy {
    RegionId region{};
    Epoch epoch{};
    uint64_t incarnation = 0;  // the life of the server that has it; another one has nothing of it
    bool answered = false;     // set by whoever carries it out
  };
  // A named region that was being created under `lease`, which is its own, and is not to be. Ending the lease makes
  // sure that the server executes no create under it any more; then the region is destroyed.
  struct Undo {
    std::string name;
    RegionId region{};
    LeaseId lease{};
    uint64_t incarnation = 0;
  };

  // False: as many are remembered as may be; it is freed with the lease.
  bool Add(const Destroy& destroy);
  void Add(Undo undo) { undos_.push_back(std::move(undo)); }
  // Whether one more undo is to be remembered.
  bool MayUndo() const { return undos_.size() < kUndosMax; }
  bool IsUndoing(const std::string& name) const;

  // Those to be carried out now, some at a time, in the life `incarnation`. They are remembered no more.
  std::vector<Destroy> TakeDestroys(uint64_t incarnation);
  // The undo to be carried out now, or null. It stays until EndUndo.
  const Undo* NextUndo(int64_t now_ns) const;
  // Forgets those of former lives of the server. True if there were any.
  bool DropOldUndos(uint64_t incarnation);
  // The first one was carried out, or is tried again if the server did not answer. True if it is over.
  bool EndUndo(const absl::Status& status, int64_t now_ns);
  // When there is something to do; INT64_MAX: never.
  int64_t DueNs() const;

 private:
  static constexpr size_t kDestroysMax = 1 << 18;
  static constexpr size_t kDestroysAtOnce = 64;
  static constexpr size_t kUndosMax = 1024;
  static constexpr int64_t kUndoAgainMs = 500;

  std::vector<Destroy> destroys_;
  std::vector<Undo> undos_;
  int64_t undo_ns_ = 0;  // not before
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_ERRANDS_H_
