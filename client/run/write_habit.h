#ifndef NRAM_CLIENT_RUN_WRITE_HABIT_H_
#define NRAM_CLIENT_RUN_WRITE_HABIT_H_

#include <algorithm>
#include <cstdint>

namespace nram {

// Whether a program soon writes to the lone pages that it reads, as one does that counts references. Then they may come
// writable, which saves the fault of the first write, and costs a page that is written back without need if it was
// wrong. Not thread-safe.
class WriteHabit {
 public:
  // Whether a single page that is read is to be placed writable. Now and then one is placed protected all the same, to
  // notice a change of the habit.
  bool ComesWritable() {
    if (protected_ >= kEnough && written_ * 4 >= protected_ && ++trusted_ % kLook != 0) return true;
    if (++protected_ == kMany) {
      protected_ /= 2;
      written_ /= 2;
    }
    return false;
  }
  // A page that had come protected is written to.
  void OnFirstWrite() { written_ = std::min(written_ + 1, protected_); }

 private:
  static constexpr uint32_t kEnough = 32;
  static constexpr uint32_t kMany = 128;
  static constexpr uint32_t kLook = 16;

  uint32_t protected_ = 0;
  uint32_t written_ = 0;  // of those
  uint32_t trusted_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_WRITE_HABIT_H_
