#ifndef NRAM_TOOLS_BENCH_WORKLOAD_H_
#define NRAM_TOOLS_BENCH_WORKLOAD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/pool.h"

namespace nram {

template <typename T>
T Median(std::vector<T> values) {
  const size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// One region that is full of random bytes, and the workloads on it.
class Workload {
 public:
  static constexpr uint64_t kBytes = 256 * kMiB;

  static absl::StatusOr<std::unique_ptr<Workload>> Create(Pool* pool, Seal seal = Seal::kNo) {
    std::unique_ptr<Workload> workload(new Workload);
    NRAM_ASSIGN_OR_RETURN(workload->region_, pool->CreateRegion({.gc = true, .seal = seal}));
    NRAM_ASSIGN_OR_RETURN(workload->buffer_, Mapping::Anonymous(64 * kMiB));
    std::mt19937_64 random(1);
    for (size_t i = 0; i < workload->buffer_.size(); i += 8) {
      const uint64_t word = random();
      memcpy(workload->buffer_.data() + i, &word, 8);
    }
    for (uint64_t at = 0; at < kBytes; at += workload->buffer_.size()) {
      NRAM_RETURN_IF_ERROR(workload->region_->Write(at, {workload->buffer_.data(), workload->buffer_.size()}));
    }
    return workload;
  }
  ~Workload() {
    if (region_ != nullptr) (void)region_->Destroy();
  }

  // Each operation at a random place, one at a time.
  absl::StatusOr<std::vector<int64_t>> OneAtATime(bool write, uint64_t bytes, int count) {
    std::vector<int64_t> took_ns;
    took_ns.reserve(count);
    for (int i = 0; i < count; ++i) {
      const uint64_t offset = random_() % (kBytes / kPageBytes) * kPageBytes;
      const int64_t began_ns = MonotonicNs();
      const IoOptions options{.io_class = IoClass::kUrgent};
      NRAM_RETURN_IF_ERROR(write ? region_->Write(offset, {buffer_.data(), bytes}, options)
                                 : region_->Read(offset, {buffer_.data(), bytes}, options));
      took_ns.push_back(MonotonicNs() - began_ns);
    }
    return took_ns;
  }

  // Operations in order, `depth` under way.
  absl::StatusOr<int64_t> Stream(bool write, uint64_t bytes, int count, int depth) {
    const int64_t began_ns = MonotonicNs();
    std::vector<Io> ios(depth);
    for (int i = 0; i < count + depth; ++i) {
      Io* io = &ios[i % depth];
      if (i >= depth) NRAM_RETURN_IF_ERROR(io->Wait());
      if (i >= count) continue;
      const uint64_t offset = i * bytes % kBytes;
      std::byte* at = buffer_.data() + i % depth * bytes;
      if (write) {
        region_->StartWrite(io, offset, {at, bytes});
      } else {
        region_->StartRead(io, offset, {at, bytes});
      }
    }
    return MonotonicNs() - began_ns;
  }

 private:
  Workload() = default;
  std::unique_ptr<Region> region_;
  Mapping buffer_;
  std::mt19937_64 random_{2};
};

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_WORKLOAD_H_
