#ifndef NRAM_MEMSERVER_PAGE_SIZE_POLICY_H_
#define NRAM_MEMSERVER_PAGE_SIZE_POLICY_H_

#include <cstdint>

namespace nram {

// Whether memory is best taken from the host in huge pages. As a rule it is, by far. Not in a virtual machine whose
// host takes free memory back (free page reporting): what it takes is huge pages, and finding them again is slower than
// clearing small ones, which it has left. So both are tried and timed: in turn at first, and the slower one now and
// then, because that changes. Pure; not thread-safe.
class PageSizePolicy {
 public:
  // For the extent that is taken next.
  bool NextIsHuge() {
    const uint32_t number = taken_++;
    if (number < kFirstTries) return number % 2 == 0;
    return prefers_huge() != (number % kTryEvery == 0);
  }
  void Report(bool huge, int64_t took_ns) {
    int64_t& typical_ns = huge ? huge_ns_ : small_ns_;
    typical_ns = typical_ns == 0 ? took_ns : typical_ns + (took_ns - typical_ns) / 4;
  }
  // They are worth something afterwards too, so small ones must be clearly faster.
  bool prefers_huge() const { return small_ns_ == 0 || huge_ns_ <= small_ns_ + small_ns_ / 2; }

 private:
  static constexpr uint32_t kFirstTries = 8;
  // Each try splits the address range for the kernel, which has a limit: 1 TiB is then 16,000 of 65,530.
  static constexpr uint32_t kTryEvery = 64;

  uint32_t taken_ = 0;
  int64_t huge_ns_ = 0;
  int64_t small_ns_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAGE_SIZE_POLICY_H_
