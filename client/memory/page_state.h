#ifndef NRAM_CLIENT_MEMORY_PAGE_STATE_H_
#define NRAM_CLIENT_MEMORY_PAGE_STATE_H_

#include <atomic>
#include <cstdint>

namespace nram {

// The state of a page of nram memory: a byte for each page, by which threads agree on their rights:
//
//            fault             fault, read-ahead
//   kEmpty --------> kBusy <--------------------- kRemote      kBusy belongs to the one thread (or buffer) that
//      ^              |  \                          ^          made it so, until it makes it something else.
//      |              v   `---> kLost               |
//      |   kCleanEmpty, kClean ---------------------+ dropped, by way of kBusy
//      |              | first write, by way of kBusy
//      |              v
//      +---- kDirtyEmpty, kDirty, kDirtyNoted ---> kWriting ---> kClean, or dropped
//               |                                     ^
//               v a publication's flip                |
//            kBoundEmpty, kBound, kBoundNoted --------+
//               | first write, by way of kBusy
//               v
//            kDirtyCopied ---> kDirty
//
// A bound page is of a version that is being published (publisher.h): it is sent to servers before anything that was
// written later. Dirty pages of its segment meanwhile were written after the flip, and are not sent before the seal.
//
// A thread of the program that needs a kBusy page, or writes to a kWriting or a bound one, sleeps in the kernel.
// kWaiter says that there may be such a thread: the thread that ends the state wakes it, and it looks again (EndPage in
// segment.h).
enum class PageState : uint8_t {
  kEmpty = 0,       // zeros; nowhere
  kRemote = 1,      // on servers
  kBusy = 2,        // on its way in, out, or between two other states
  kCleanEmpty = 3,  // here, protected, zeros that no server has
  kClean = 4,       // here, protected, as on servers
  kDirtyEmpty = 5,  // here, writable; no server has it
  kDirty = 6,       // here, writable; servers have its former content
  kDirtyNoted = 7,  // the same, and ChunkSums may have the sums of that content
  kWriting = 8,     // here, protected; on its way to servers
  kLost = 9,        // cannot be had; touching it is SIGBUS
  // Here, protected, with its content of the flip. Its state then was the dirty one of the same name.
  kBoundEmpty = 10,
  kBound = 11,
  kBoundNoted = 12,
  kDirtyCopied = 13,  // here, writable; a copy of its content of the flip is on its way to servers, and is sent first
};

// A state and its flags.
class PageWord {
 public:
  static constexpr uint8_t kWaiter = 0x10;
  static constexpr uint8_t kReferenced = 0x20;  // deserves another round before it is evicted
  static constexpr uint8_t kQueued = 0x40;      // has an entry in the eviction queue
  static constexpr uint8_t kPinned = 0x80;

  // In one order with End, so that a thread that waits by Segment::ended misses none.
  PageState state() const { return StateOf(word_.load()); }
  bool Has(uint8_t flag) const { return (word_.load(std::memory_order_acquire) & flag) != 0; }
  // True if it was set before.
  bool Set(uint8_t flag) { return (word_.fetch_or(flag, std::memory_order_acq_rel) & flag) != 0; }
  // True if it was set.
  bool Clear(uint8_t flag) { return (word_.fetch_and(~flag, std::memory_order_acq_rel) & flag) != 0; }

  // Changes the state from *from to `to` and keeps the flags. False: the state is another one, which is now in *from.
  bool Change(PageState* from, PageState to) {
    uint8_t seen = word_.load(std::memory_order_acquire);
    while (StateOf(seen) == *from) {
      if (word_.compare_exchange_weak(seen, (seen & ~kStateMask) | static_cast<uint8_t>(to),
                                      std::memory_order_acq_rel)) {
        return true;
      }
    }
    *from = StateOf(seen);
    return false;
  }
  bool Change(PageState from, PageState to) { return Change(&from, to); }

  // Notes that a thread waits for the end of `state`. False: it is over.
  bool WaitFor(PageState state) {
    uint8_t seen = word_.load(std::memory_order_acquire);
    while (StateOf(seen) == state) {
      if (word_.compare_exchange_weak(seen, seen | kWaiter, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  // Ends kBusy or kWriting. Only the thread that entered the state calls it. True: a waiter is to be woken.
  bool End(PageState to) {
    uint8_t seen = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(seen, (seen & ~(kStateMask | kWaiter)) | static_cast<uint8_t>(to))) {
    }
    return (seen & kWaiter) != 0;
  }

 private:
  static constexpr uint8_t kStateMask = 0x0F;
  static PageState StateOf(uint8_t word) { return static_cast<PageState>(word & kStateMask); }

  // All zero in fresh memory: kEmpty, no flags.
  std::atomic<uint8_t> word_;
};
static_assert(sizeof(PageWord) == 1);

// `eight` has eight PageWords. The result has 0x10 in each byte whose state is one of [first, last].
inline constexpr uint64_t StatesBetween(uint64_t eight, PageState first, PageState last) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  const uint64_t states = eight & 0x0F * kOnes;
  // A state and 16 - x have their fifth bit set if the state is x or more.
  const uint64_t from_first = states + (0x10 - static_cast<uint64_t>(first)) * kOnes;
  const uint64_t beyond_last = states + (0x0F - static_cast<uint64_t>(last)) * kOnes;
  return from_first & ~beyond_last & 0x10 * kOnes;
}

inline bool IsBound(PageState state) { return state >= PageState::kBoundEmpty && state <= PageState::kBoundNoted; }
inline bool IsResident(PageState state) {
  return (state >= PageState::kCleanEmpty && state <= PageState::kWriting) || state >= PageState::kBoundEmpty;
}
inline bool IsClean(PageState state) { return state == PageState::kClean || state == PageState::kCleanEmpty; }
inline bool IsDirty(PageState state) { return state >= PageState::kDirtyEmpty && state <= PageState::kDirtyNoted; }

// A dirty state's bound one, and back. Others do not change.
inline constexpr int kBoundLessDirty = static_cast<int>(PageState::kBound) - static_cast<int>(PageState::kDirty);
inline PageState BoundOf(PageState state) {
  return IsDirty(state) ? static_cast<PageState>(static_cast<int>(state) + kBoundLessDirty) : state;
}
inline PageState UnboundOf(PageState state) {
  return IsBound(state) ? static_cast<PageState>(static_cast<int>(state) - kBoundLessDirty) : state;
}
static_assert(static_cast<int>(PageState::kBoundEmpty) - static_cast<int>(PageState::kDirtyEmpty) == kBoundLessDirty);
static_assert(static_cast<int>(PageState::kBoundNoted) - static_cast<int>(PageState::kDirtyNoted) == kBoundLessDirty);

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PAGE_STATE_H_
