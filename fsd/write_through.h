#ifndef NRAM_FSD_WRITE_THROUGH_H_
#define NRAM_FSD_WRITE_THROUGH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/sync.h"
#include "base/units.h"
#include "fsd/aside_thread.h"

namespace nram {

// When writes are to go through: while there is less room than the kernel may hold back in dirty pages. Pure.
class WriteThroughRule {
 public:
  static constexpr int kCalmLooks = 8;

  explicit WriteThroughRule(uint64_t margin_bytes) : margin_bytes_(margin_bytes) {}

  // `full`: a write has found no room. It ends when several looks in a row have found twice the margin.
  bool Decide(uint64_t room_bytes, bool full) {
    if (room_bytes < margin_bytes_ || full) through_ = true;
    if (room_bytes < 2 * margin_bytes_ || full) {
      calm_ = 0;
    } else if (through_ && ++calm_ >= kCalmLooks) {
      through_ = false;
    }
    return through_;
  }

 private:
  const uint64_t margin_bytes_;
  bool through_ = false;
  int calm_ = 0;
};

// Looks at a mount's room while its pages are written back, and switches the kernel between write-back and writes that
// wait for the pool (adr/0029). A look costs one `room`, for each kLookBytes written back. Thread-safe.
class WriteThrough {
 public:
  static constexpr uint64_t kLookBytes = kMiB;
  // Has the kernel's writes wait for the pool, or not any more; false: the kernel refuses, and is not asked again. It
  // runs on a thread of its own, and may wait until all that is dirty is written back.
  using Switch = std::function<bool(bool through)>;

  // `room`: the bytes that can still be written. It must not block.
  WriteThrough(uint64_t margin_bytes, std::function<uint64_t()> room, Switch switch_to)
      : room_(std::move(room)), switch_to_(std::move(switch_to)), rule_(margin_bytes) {}

  // A page's write-back has ended.
  void NoteWritten(size_t bytes) {
    if (written_.fetch_add(bytes) + bytes >= kLookBytes) Look(false);
  }
  void NoteFull() { Look(true); }
  // Waits for the switch under way; later ones do nothing.
  void Stop() { thread_.Stop(); }

 private:
  void Look(bool full) {
    written_ = 0;
    const uint64_t room_bytes = room_();
    MutexLock lock(&mu_);
    wanted_ = rule_.Decide(room_bytes, full);
    if (wanted_ == is_ || switching_ || refused_) return;
    switching_ = true;
    thread_.Add([this](bool stopping) { SwitchAll(stopping); });
  }
  void SwitchAll(bool stopping) {
    if (stopping) return;
    MutexLock lock(&mu_);
    while (wanted_ != is_ && !refused_) {
      const bool through = wanted_;
      mu_.Unlock();
      const bool done = switch_to_(through);
      mu_.Lock();
      if (done) is_ = through;
      refused_ = !done;
    }
    switching_ = false;
  }

  const std::function<uint64_t()> room_;
  const Switch switch_to_;
  std::atomic<uint64_t> written_{0};  // since the last look
  Mutex mu_;                          // over no wait
  WriteThroughRule rule_ ABSL_GUARDED_BY(mu_);
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool is_ ABSL_GUARDED_BY(mu_) = false;
  bool switching_ ABSL_GUARDED_BY(mu_) = false;
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
  AsideThread thread_{"nram-through"};  // last: it uses all of the above
};

}  // namespace nram

#endif  // NRAM_FSD_WRITE_THROUGH_H_
