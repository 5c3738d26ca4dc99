#ifndef NRAM_MEMSERVER_RESIDENT_WATCH_H_
#define NRAM_MEMSERVER_RESIDENT_WATCH_H_

// Holds the whole process to its ceiling (adr/0028). The arena accounts for data and index; gRPC, the C library and
// other memory have a fixed part of the ceiling. If they take more, they give first, and the arena last.

#include <cstdint>
#include <functional>
#include <utility>

namespace nram {

struct ResidentWatchOptions {
  // The resident memory of the process, in bytes; 0: it cannot be read, and nothing is done.
  std::function<uint64_t()> read_resident;
  // Ends control connections, the newest first, until so many bytes may be free. Must not block. May be null.
  std::function<void(uint64_t bytes)> close_control;
  // Makes the heap return its free memory.
  std::function<void()> trim_heap;
};

// Used by one thread.
class ResidentWatch {
 public:
  struct Sample {
    uint64_t ceiling_bytes = 0;
    uint64_t fixed_bytes = 0;  // the part that is not the arena's
    uint64_t held_bytes = 0;   // the arena's, by its account
  };
  // Connections and heap have so many looks, until data is asked back for them.
  static constexpr int kLooksBeforeData = 10;

  explicit ResidentWatch(ResidentWatchOptions options) : options_(std::move(options)) {}
  ResidentWatch(const ResidentWatch&) = delete;

  // Looks once; call it every 100 ms or so. Returns by how many bytes the arena's ceiling must be lower. Free room
  // is lent only as far as the process leaves it; data is asked back only after kLooksBeforeData looks.
  uint64_t Look(const Sample& sample);

 private:
  // The heap is trimmed at every so many looks.
  static constexpr int kTrimLooks = 5;

  const ResidentWatchOptions options_;
  int looks_above_ = 0;  // in a row; many of them count as some more than kLooksBeforeData
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_RESIDENT_WATCH_H_
