#ifndef NRAM_CLIENT_MEMORY_SEGMENT_H_
#define NRAM_CLIENT_MEMORY_SEGMENT_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/event_count.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "client/memory/page_state.h"
#include "client/memory/streams.h"
#include "client/memory/userfault.h"
#include "client/pool/region.h"

namespace nram {

enum class SegmentOwner : uint8_t { kProgram, kHeap };

// A range of addresses whose pages live in a region of the pool: page i of the segment is page i of the region. A page
// here is the unit of faults; it is page_bytes long, a multiple of 4096.
struct Segment : public StreamArea {
  Segment(Mapping space, Mapping words, size_t page_bytes, std::unique_ptr<Region> region)
      : StreamArea(space.size() / page_bytes, page_bytes),
        region_(region.release()),
        space_(std::move(space)),
        words_(std::move(words)) {}
  ~Segment() { delete region_.load(); }
  Segment(const Segment&) = delete;

  std::byte* base() const { return space_.data(); }
  size_t length() const { return space_.size(); }
  uint64_t pages() const { return space_.size() / page_bytes; }
  std::byte* address(uint64_t page) const { return space_.data() + page * page_bytes; }
  uintptr_t key(uint64_t page) const { return reinterpret_cast<uintptr_t>(address(page)); }
  uint64_t PageOf(uintptr_t key) const { return (key - reinterpret_cast<uintptr_t>(base())) / page_bytes; }
  bool Contains(uintptr_t key) const {
    return key >= reinterpret_cast<uintptr_t>(base()) && key - reinterpret_cast<uintptr_t>(base()) < length();
  }
  // No thread may use the addresses any more.
  void Unmap() { space_ = Mapping(); }
  PageWord& word(uint64_t page) const { return reinterpret_cast<PageWord*>(words_.data())[page]; }

  // The first page at `page` or after it whose state is one of [first, last]; pages() if there is none. Looks at eight
  // at a time: others cost a tenth of a nanosecond a page.
  uint64_t Find(uint64_t page, PageState first, PageState last) const {
    static_assert(std::endian::native == std::endian::little);
    constexpr uint64_t kEight = sizeof(uint64_t);
    while (page < pages()) {
      // Whole pages of memory are there.
      const auto* const eight = reinterpret_cast<const uint64_t*>(words_.data()) + page / kEight;
      const uint64_t found = StatesBetween(__atomic_load_n(eight, __ATOMIC_ACQUIRE), first, last) >> page % kEight * 8;
      if (found != 0) return std::min(page + static_cast<uint64_t>(std::countr_zero(found)) / 8, pages());
      page = (page / kEight + 1) * kEight;
    }
    return pages();
  }

  // Changes while the segment is observed (SegmentIndex::Exchange). A thread that has taken a page, or a window, may
  // use the region that it got then until it ends the page.
  Region* region() const { return region_.load(std::memory_order_acquire); }

  SegmentOwner owner = SegmentOwner::kProgram;
  bool read_only = false;
  bool keep = false;                 // the region outlives the segment
  bool abandoned = false;            // pages that are not written back may be lost
  std::atomic<bool> leaving{false};  // it is being unmapped: nothing of it is read ahead any more
  std::atomic<uint64_t> pinned_pages{0};
  // Of publishing; see publish_gate.h. Changed with the gate closed.
  std::atomic<bool> publishing{false};   // from the flip to the seal
  std::atomic<uint64_t> bound_pages{0};  // meanwhile: those of the version that servers do not have yet
  std::atomic<bool> publishable{false};  // has a name, is this handle's to write, and is not being unmapped
  EventCount ended;  // pages have ended being kBusy or kWriting, or a window of them could be given up

  // Operations under way, each of which holds a SegmentRef.
  void Use() { users_.fetch_add(1, std::memory_order_acq_rel); }
  void Unuse() {
    // From here on the segment may be gone; the kernel looks at the address alone.
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == (kAwaited | 1)) FutexWakeAll(&users_);
  }
  // Blocks until there are none, at most until their deadlines. The segment must not be in the index any more.
  void AwaitUnused() {
    users_.fetch_or(kAwaited, std::memory_order_acq_rel);
    uint32_t seen;
    while ((seen = users_.load(std::memory_order_acquire)) != kAwaited) {
      FutexWaitUntil(&users_, seen, DeadlineAfterMs(1'000));
    }
  }

 private:
  friend class SegmentIndex;
  static constexpr uint32_t kAwaited = 1u << 31;

  std::atomic<Region*> region_;  // owned
  std::atomic<uint32_t> users_{0};
  Mapping space_;
  const Mapping words_;  // a PageWord a page; whole 4 KiB
};

// Keeps a segment from being unmapped.
class SegmentRef {
 public:
  SegmentRef() = default;
  explicit SegmentRef(Segment* segment) : segment_(segment) {
    if (segment_ != nullptr) segment_->Use();
  }
  SegmentRef(SegmentRef&& other) noexcept : segment_(std::exchange(other.segment_, nullptr)) {}
  SegmentRef& operator=(SegmentRef&& other) noexcept {
    if (this != &other) {
      Reset();
      segment_ = std::exchange(other.segment_, nullptr);
    }
    return *this;
  }
  ~SegmentRef() { Reset(); }

  void Reset() {
    if (segment_ != nullptr) segment_->Unuse();
    segment_ = nullptr;
  }
  SegmentRef Share() const { return SegmentRef(segment_); }
  Segment* get() const { return segment_; }
  Segment* operator->() const { return segment_; }
  explicit operator bool() const { return segment_ != nullptr; }

 private:
  Segment* segment_ = nullptr;
};

// Ends kBusy or kWriting. Only the thread that entered the state may call this. The page becomes `to`, and all waiters
// look again: threads of the program, which sleep in the kernel, and calls, which wait for Segment::ended.
inline void EndPage(Segment* segment, uint64_t page, PageState to, Userfault* userfault) {
  if (segment->word(page).End(to)) userfault->Wake(segment->address(page), segment->page_bytes);
  segment->ended.Notify();
}

// The segments by address. Thread-safe.
class SegmentIndex {
 public:
  SegmentRef Find(uintptr_t address) const {
    ReaderLock lock(&mu_);
    const size_t count = CountUpTo(address);
    if (count == 0 || !segments_[count - 1]->Contains(address)) return SegmentRef();
    return SegmentRef(segments_[count - 1].get());
  }
  void Add(std::unique_ptr<Segment> segment) {
    WriterLock lock(&mu_);
    const size_t count = CountUpTo(reinterpret_cast<uintptr_t>(segment->base()));
    segments_.insert(segments_.begin() + static_cast<ptrdiff_t>(count), std::move(segment));
  }
  // From now on no thread finds the segment; operations that have it may still use it. Null if none begins there.
  std::unique_ptr<Segment> Remove(const void* base) {
    WriterLock lock(&mu_);
    const size_t count = CountUpTo(reinterpret_cast<uintptr_t>(base));
    if (count == 0 || segments_[count - 1]->base() != base) return nullptr;
    std::unique_ptr<Segment> segment = std::move(segments_[count - 1]);
    segments_.erase(segments_.begin() + static_cast<ptrdiff_t>(count - 1));
    return segment;
  }
  // Returns the segment's former region. No ForEach sees that any more; a thread that has taken pages may still use it.
  std::unique_ptr<Region> Exchange(Segment* segment, std::unique_ptr<Region> region) {
    WriterLock lock(&mu_);
    return std::unique_ptr<Region>(segment->region_.exchange(region.release()));
  }
  // Any one; null if there is none.
  std::byte* First() const {
    ReaderLock lock(&mu_);
    return segments_.empty() ? nullptr : segments_.front()->base();
  }
  template <typename Function>
  void ForEach(Function function) const {
    ReaderLock lock(&mu_);
    for (const auto& segment : segments_) function(*segment);
  }

 private:
  // How many begin at or before it.
  size_t CountUpTo(uintptr_t address) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto after = std::upper_bound(
        segments_.begin(), segments_.end(), address,
        [](uintptr_t at, const auto& segment) { return at < reinterpret_cast<uintptr_t>(segment->base()); });
    return static_cast<size_t>(after - segments_.begin());
  }

  mutable SharedMutex mu_;
  std::vector<std::unique_ptr<Segment>> segments_ ABSL_GUARDED_BY(mu_);  // by address
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_SEGMENT_H_
