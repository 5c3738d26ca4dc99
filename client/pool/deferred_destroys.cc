#include "client/pool/deferred_destroys.h"

#include <algorithm>
#include <iterator>

#include "base/clock.h"

namespace nram {

bool DeferredDestroys::Add(const Destroy& destroy) {
  if (destroys_.size() >= kDestroysMax) return false;
  destroys_.push_back(destroy);
  return true;
}

bool DeferredDestroys::IsUndoing(const std::string& name) const {
  return std::any_of(undos_.begin(), undos_.end(), [&](const Undo& undo) { return undo.name == name; });
}

std::vector<DeferredDestroys::Destroy> DeferredDestroys::TakeDestroys(uint64_t incarnation) {
  std::vector<Destroy> taken;
  while (!destroys_.empty() && taken.size() < kDestroysAtOnce) {
    if (destroys_.back().incarnation == incarnation) taken.push_back(destroys_.back());
    destroys_.pop_back();
  }
  return taken;
}

const DeferredDestroys::Undo* DeferredDestroys::NextUndo(int64_t now_ns) const {
  return undos_.empty() || now_ns < undo_ns_ ? nullptr : &undos_.front();
}

bool DeferredDestroys::DropOldUndos(uint64_t incarnation) {
  return std::erase_if(undos_, [&](const Undo& undo) { return undo.incarnation != incarnation; }) > 0;
}

bool DeferredDestroys::EndUndo(const absl::Status& status, int64_t now_ns) {
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    undo_ns_ = now_ns + kUndoAgainMs * kNsPerMs;
    return false;
  }
  undos_.erase(undos_.begin());
  return true;
}

int64_t DeferredDestroys::DueNs() const {
  if (!destroys_.empty()) return 0;
  return undos_.empty() ? INT64_MAX : undo_ns_;
}

}  // namespace nram
