#ifndef NRAM_CLIENT_POOL_DEFERRED_DESTROYS_H_
#define NRAM_CLIENT_POOL_DEFERRED_DESTROYS_H_

// The work that waits for a server to answer again: freeing parts of destroyed regions, and undoing failed creates of
// named regions. Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"

namespace nram {

// Not thread-safe: its session's lock guards it.
class DeferredDestroys {
 public:
  struct Destroy {
    RegionId region{};
    Epoch epoch{};
    uint64_t incarnation = 0;  // the life of the server that has the region; another life has nothing of it
    bool answered = false;     // set by the driver
  };
  // A named region whose creation has failed. It has a lease of its own. The driver ends that lease first: then the
  // server refuses a create that is still on its way. After that the driver destroys the region.
  struct Undo {
    std::string name;
    RegionId region{};
    LeaseId lease{};
    uint64_t incarnation = 0;
  };

  // False: the list is full. The region is freed with the lease.
  bool Add(const Destroy& destroy);
  void Add(Undo undo) { undos_.push_back(std::move(undo)); }
  // Whether the list has room for one more undo.
  bool MayUndo() const { return undos_.size() < kUndosMax; }
  bool IsUndoing(const std::string& name) const;

  // Takes some destroys of the life `incarnation` out of the list. The caller carries them out, or adds them again.
  std::vector<Destroy> TakeDestroys(uint64_t incarnation);
  // The undo that is due, or null. It remains in the list until EndUndo.
  const Undo* NextUndo(int64_t now_ns) const;
  // Forgets the undos of former lives of the server. True if there were any.
  bool DropOldUndos(uint64_t incarnation);
  // The first undo ended with `status`. It remains, for another try, if the server did not answer. True if it is over.
  bool EndUndo(const absl::Status& status, int64_t now_ns);
  // When something is due; INT64_MAX: never.
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

#endif  // NRAM_CLIENT_POOL_DEFERRED_DESTROYS_H_
