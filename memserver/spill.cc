#include "memserver/spill.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr int kPageOut = 21;  // MADV_PAGEOUT, which older headers lack

}  // namespace

uint64_t Spill::ResidentBytes(uint32_t extent) const {
  constexpr size_t kPages = FrameArena::extent_size() / kPageBytes;
  std::array<unsigned char, kPages> pages;
  if (mincore(arena_->ExtentData(extent), FrameArena::extent_size(), pages.data()) != 0) return 0;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char in) { return (in & 1) != 0; }) * kPageBytes;
}

absl::StatusOr<uint64_t> Spill::Run(uint64_t want_bytes, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  uint64_t left_bytes = 0;
  int in_vain = 0;
  const uint32_t extents = arena_->extents();
  for (uint32_t i = 0; i < extents && left_bytes < want_bytes && in_vain < kInVainMax; ++i) {
    const uint32_t extent = next_;
    next_ = (next_ + 1) % extents;
    if (!arena_->IsInUse(extent)) continue;
    const uint64_t before = ResidentBytes(extent);
    if (before == 0) continue;
    // If the extent becomes empty meanwhile, it is sent to swap all the same. No content is lost either way.
    if (madvise(arena_->ExtentData(extent), FrameArena::extent_size(), kPageOut) != 0) {
      if (errno == EINVAL) return absl::UnimplementedError("this kernel cannot send memory to swap (before Linux 5.4)");
      return ErrnoStatus(errno, "madvise(MADV_PAGEOUT)");
    }
    const uint64_t after = ResidentBytes(extent);
    in_vain = after < before ? 0 : in_vain + 1;
    left_bytes += before - std::min(before, after);
    if (MonotonicNs() >= deadline_ns) break;
  }
  return left_bytes;
}

}  // namespace nram
