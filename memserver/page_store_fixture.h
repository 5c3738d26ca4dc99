#ifndef NRAM_MEMSERVER_PAGE_STORE_FIXTURE_H_
#define NRAM_MEMSERVER_PAGE_STORE_FIXTURE_H_

// A page store with one lease, and writes and reads of strings, for tests.

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "gtest/gtest.h"
#include "memserver/landing_frames.h"
#include "memserver/page_store.h"
#include "proto/message.h"

namespace nram {

class PageStoreTest : public ::testing::Test {
 protected:
  static constexpr RegionId kRegion{42};

  explicit PageStoreTest(uint64_t ceiling = 64 * kMiB) : arena_(FrameArena::Create(ceiling, kMiB).value()) {
    lease_ = Grant(1);
  }

  absl::StatusOr<std::shared_ptr<Lease>> TryGrant(uint64_t id, int64_t ttl_ms = 0) {
    return leases_.Grant({.tenant = &tenant_, .id = LeaseId{id}, .client_name = "test", .ttl_ms = ttl_ms});
  }
  std::shared_ptr<Lease> Grant(uint64_t id) { return TryGrant(id).value(); }
  Reason Write(ChunkRange range, const std::string& data, absl::Span<const ChunkMask> masks = {}, uint32_t epoch = 1,
               Lease* lease = nullptr, RegionId region = kRegion) {
    Payment payment = lease != nullptr ? Payment() : Payment(&lease_->reservation, limit_bytes_);
    const Reason reason = WriteAs(lease != nullptr ? lease : lease_.get(), region, range, data, &payment, masks, epoch);
    paid_ += payment.paid_bytes();
    return reason;
  }
  Reason WriteAs(Lease* lease, RegionId region, ChunkRange range, const std::string& data, Payment* payment,
                 absl::Span<const ChunkMask> masks = {}, uint32_t epoch = 1) {
    std::vector<FrameLoc> landed(range.pages());
    EXPECT_TRUE(landing_.Take(landed.size(), landed.data()));
    for (uint64_t i = 0; i < landed.size(); ++i) {
      memset(arena_->Data(landed[i]), 0xEE, kPageBytes);  // left by an earlier write
      const uint64_t page_chunk = (range.first_page() + i) * kChunksPerPage;
      for (uint64_t chunk = 0; chunk < kChunksPerPage; ++chunk) {
        if ((MaskOfPage(range, range.first_page() + i) >> chunk & 1) == 0) continue;
        memcpy(arena_->Data(landed[i]) + chunk * kChunkBytes,
               data.data() + (page_chunk + chunk - range.first) * kChunkBytes, kChunkBytes);
      }
    }
    const Reason reason = store_.Write(lease,
                                       {region, epoch, range, masks, Crcs(range, masks, landed), landed.data(), absent_,
                                        frames_, term_, generation_, seals_},
                                       payment, &stored_pages_);
    landing_.Give(landed.data(), landed.size());
    return reason;
  }

  // The checksums that the sender of the landed chunks computes.
  std::vector<uint32_t> Crcs(ChunkRange range, absl::Span<const ChunkMask> masks, absl::Span<const FrameLoc> landed) {
    std::vector<uint32_t> crcs(range.pages());
    for (uint64_t i = 0; i < crcs.size(); ++i) {
      const ChunkMask mask = masks.empty() ? MaskOfPage(range, range.first_page() + i) : masks[i];
      ForEachRun(mask, [&](size_t offset, size_t bytes) {
        crcs[i] = Crc32c(crcs[i], arena_->Data(landed[i]) + offset, bytes);
      });
    }
    return crcs;
  }
  // Flips a bit of chunk 5 of the region's first page, which has all of its chunks.
  void DamageFirstPage() {
    FrameLoc frame = 0;
    const auto find = [&](const PageStore::Stored& stored) {
      frame = (static_cast<std::byte*>(stored.chunks[0].iov_base) - arena_->Data(0)) / kChunkBytes;
    };
    ASSERT_EQ(store_.ReadInPlace({.region = {kRegion, 0}, .epoch = 1, .range = {0, 8}}, find), Reason::kOk);
    arena_->Data(frame)[5 * kChunkBytes + 77] ^= std::byte{4};
  }

  // "damaged" if a page's checksum is not that of its chunks.
  std::string Read(ChunkRange range) {
    std::vector<ChunkMask> masks(range.pages());
    std::vector<uint32_t> crcs(range.pages());
    std::string packed(range.bytes(), '?');
    size_t bytes = 0;
    if (store_.Read({.region = {kRegion, 0}, .range = range, .generation = generation_, .version = version_},
                    masks.data(), crcs.data(), reinterpret_cast<std::byte*>(packed.data()), &bytes) != Reason::kOk)
      return "";
    size_t next = 0;
    for (size_t i = 0; i < masks.size(); ++i) {
      const size_t page_bytes = std::popcount(masks[i]) * kChunkBytes;
      if (Crc32c(0, &packed[next], page_bytes) != crcs[i]) return "damaged";
      next += page_bytes;
    }
    std::string data(range.bytes(), '\0');
    size_t at = 0;
    for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
      if ((masks[chunk / 8 - range.first_page()] >> chunk % 8 & 1) == 0) continue;
      memcpy(&data[(chunk - range.first) * kChunkBytes], &packed[at], kChunkBytes);
      at += kChunkBytes;
    }
    EXPECT_EQ(at, bytes);
    return data;
  }

  FakeClock clock_;
  std::unique_ptr<FrameArena> arena_;
  Tenant tenant_{0, "local", arena_.get()};
  Tenant other_{1, "other", arena_.get()};
  LeaseTable leases_{arena_.get(), &clock_, 10'000};
  PageStore store_{arena_.get(), &leases_};
  LandingFrames landing_{arena_.get(), 256};
  std::shared_ptr<Lease> lease_;
  std::vector<PageSeal> seals_;  // of the next writes
  VersionNumber version_{};      // of the next reads
  uint64_t paid_ = 0;
  PageStore::Frames frames_ = PageStore::Frames::kFitted;
  uint64_t limit_bytes_ = ~uint64_t{0};
  uint64_t term_ = 0;
  PageStore::IfAbsent absent_ = PageStore::IfAbsent::kCreate;
  SpanGeneration generation_{};
  uint32_t stored_pages_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAGE_STORE_FIXTURE_H_
