#ifndef NRAM_TESTS_UTIL_PLAIN_MODEL_H_
#define NRAM_TESTS_UTIL_PLAIN_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "base/units.h"
#include "client/pool/region.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"

namespace nram {

// A part of a region that only one thread uses, and a plain string that should be equal. Random operations, by the
// test's seed.
class PlainModel {
 public:
  PlainModel(Region* region, int thread)
      : region_(region),
        unit_(region->unit_bytes() / kChunkBytes),
        base_(thread * kChunks * kChunkBytes),
        random_(TestSeed() + 100 + thread) {}

  // From now on reads may fail with DATA_LOSS, because servers lie.
  void ExpectLies() { lies_ = true; }
  int losses() const { return losses_; }

  // A random operation; a fatal failure of the test if it fails, or reads other data than the model's.
  void Step() {
    const uint64_t first = random_() % kChunks / unit_ * unit_;
    const uint64_t wanted = 1 + random_() % (random_() % 8 == 0 ? 3000 : 40);
    const uint64_t count = std::min<uint64_t>((wanted + unit_ - 1) / unit_ * unit_, kChunks - first);
    const std::string data = Pattern(count * kChunkBytes, random_());
    const IoOptions how{.io_class = random_() % 2 == 0 ? IoClass::kUrgent : IoClass::kBulk};
    absl::Status status;
    switch (random_() % 5) {
      case 0:
        status = region_->Trim(base_ + first * kChunkBytes, count * kChunkBytes);
        memset(&model_[first * kChunkBytes], 0, count * kChunkBytes);
        break;
      case 1:
        status = Write(first, data, how);
        break;
      case 2:
        status = WriteSomeChunks(first, data, how);
        break;
      default: {
        std::string back(count * kChunkBytes, '?');
        status = Read(first, &back, how);
        if (lies_ && absl::IsDataLoss(status)) {
          ++losses_;
          return;
        }
        if (status.ok()) {
          ASSERT_TRUE(back == model_.substr(first * kChunkBytes, back.size()));
        }
      }
    }
    // Retries repair every failure; only the model's own operations may change the region.
    ASSERT_TRUE(status.ok()) << status;
  }

 private:
  static constexpr uint64_t kChunks = 6 * kChunksPerSpan;

  absl::Status Write(uint64_t first, const std::string& data, const IoOptions& how) {
    const uint64_t offset = base_ + first * kChunkBytes;
    absl::Status status;
    if (random_() % 2 == 0) {
      region_->StartWrite(&io_, offset, Bytes(data), how);
      status = io_.Wait();
    } else {
      status = region_->Write(offset, Bytes(data), how);
    }
    model_.replace(first * kChunkBytes, data.size(), data);
    return status;
  }

  absl::Status WriteSomeChunks(uint64_t first, const std::string& data, const IoOptions& how) {
    const uint64_t offset = base_ + first * kChunkBytes;
    const ChunkRange range{offset / kChunkBytes, data.size() / kChunkBytes};
    std::vector<ChunkMask> masks;
    for (uint64_t page = 0; page < range.pages(); ++page) {
      masks.push_back(MaskOfPage(range, range.first_page() + page) & random_());
      if (unit_ > 1) masks.back() = (masks.back() & 1) != 0 ? kAllChunks : ChunkMask{0};
    }
    const absl::Status status = region_->WriteChunks(offset, Bytes(data), masks, how);
    for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
      if ((masks[chunk / 8 - range.first_page()] >> chunk % 8 & 1) == 0) continue;
      model_.replace((chunk - range.first + first) * kChunkBytes, kChunkBytes, data,
                     (chunk - range.first) * kChunkBytes, kChunkBytes);
    }
    return status;
  }

  absl::Status Read(uint64_t first, std::string* back, const IoOptions& how) {
    const uint64_t offset = base_ + first * kChunkBytes;
    if (random_() % 2 != 0) return region_->Read(offset, Into(back), how);
    region_->StartRead(&io_, offset, Into(back), how);
    return io_.Wait();
  }

  Region* const region_;
  const uint64_t unit_;  // chunks
  const uint64_t base_;  // where the part begins
  std::mt19937_64 random_;
  std::string model_ = std::string(kChunks * kChunkBytes, '\0');
  Io io_;
  bool lies_ = false;
  int losses_ = 0;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_PLAIN_MODEL_H_
