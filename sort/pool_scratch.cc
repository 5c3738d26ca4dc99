#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "sort/scratch.h"

namespace nram {
namespace {

// This is the worked example of the pool's API: open, create a region, start reads and writes, wait, trim.
class PoolScratch : public Scratch {
 public:
  PoolScratch(std::unique_ptr<Pool> pool, std::unique_ptr<Region> region, int copies)
      : copies_(static_cast<uint64_t>(copies)), pool_(std::move(pool)), region_(std::move(region)) {}
  ~PoolScratch() override { (void)region_->Destroy({.timeout_ms = kDestroyTimeoutMs}); }

  absl::Status Reserve(uint64_t bytes) override {
    const uint64_t free_bytes = FreeBytes();  // before: a reservation that fails has asked for all of it
    const int64_t timeout_ms = kTimeoutMs + static_cast<int64_t>(bytes * copies_ / kReservedBytesPerMs);
    const absl::Status status = region_->Reserve(0, bytes, {.timeout_ms = timeout_ms});
    if (!absl::IsResourceExhausted(status)) return status;
    if (copies_ == 1) {
      return absl::ResourceExhaustedError(absl::StrCat("the pool is too small: the scratch takes ",
                                                       FormatByteSize(bytes), " and ", FormatByteSize(free_bytes),
                                                       " are free"));
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for the scratch: it takes ", FormatByteSize(bytes), " in each of ", copies_,
                     " copies, together ", FormatByteSize(bytes * copies_), ", and ", FormatByteSize(free_bytes),
                     " are free on all hosts (", status.message(), ")"));
  }

  std::unique_ptr<Transfer> NewTransfer() override { return std::make_unique<PoolTransfer>(this); }

  absl::Status Discard(uint64_t offset, uint64_t bytes, Room room) override {
    if (room == Room::kFree) return region_->Trim(offset, bytes, Timeout());
    NRAM_RETURN_IF_ERROR(region_->Trim(offset, bytes, Timeout(), Region::TrimRoom::kKeep));
    // The region's own room is for spans that it has. Later writes make new spans, out of the client's room.
    region_->Unreserve(offset, bytes);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kTimeoutMs = 10'000;
  static constexpr uint64_t kReservedBytesPerMs = kMiB;
  static constexpr uint64_t kSlowBytesPerMs = 10 * kMiB / 1'000;  // of a network that still is good enough
  static constexpr int64_t kDestroyTimeoutMs = 2'000;

  class PoolTransfer : public Transfer {
   public:
    explicit PoolTransfer(PoolScratch* scratch) : scratch_(scratch) {}
    ~PoolTransfer() override { (void)Wait(); }
    void StartRead(uint64_t offset, absl::Span<char> to) override {
      Begin(to.size());
      scratch_->region_->StartRead(&io_, offset, {reinterpret_cast<std::byte*>(to.data()), to.size()},
                                   scratch_->Timeout());
    }
    void StartWrite(uint64_t offset, absl::Span<const char> from) override {
      Begin(from.size());
      scratch_->region_->StartWrite(&io_, offset, {reinterpret_cast<const std::byte*>(from.data()), from.size()},
                                    scratch_->Timeout());
    }
    absl::Status Wait() override {
      if (bytes_ == 0) return absl::OkStatus();
      const absl::Status status = io_.Wait();
      scratch_->under_way_bytes_ -= std::exchange(bytes_, 0);
      return status;
    }

   private:
    static constexpr size_t kParts = 8;

    void Begin(uint64_t bytes) {
      bytes_ = bytes;
      scratch_->under_way_bytes_ += bytes;
    }

    PoolScratch* const scratch_;
    Io io_{kParts};
    uint64_t bytes_ = 0;  // under way
  };

  // A merge asks for the first blocks of all runs at once: all transfers under way may have to go first. A write is
  // sent once for each copy.
  IoOptions Timeout() const {
    return {.timeout_ms = kTimeoutMs + static_cast<int64_t>(under_way_bytes_ * copies_ / kSlowBytesPerMs)};
  }
  // Free bytes for pages in all copies, without the cost of a page beside its bytes.
  uint64_t FreeBytes() const { return pool_->Capacity().free_bytes / nram::Room::kBytesPerPage * kPageBytes; }

  const uint64_t copies_;
  std::atomic<uint64_t> under_way_bytes_{0};  // or done, and not yet awaited
  const std::unique_ptr<Pool> pool_;
  const std::unique_ptr<Region> region_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Scratch>> OpenPoolScratch(PoolOptions options, int copies) {
  if (copies > 1) options.ExpectCopies();
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool, Pool::Open(std::move(options)));
  // Without hosts for them, the first write would fail, after the input has been read from a pipe.
  NRAM_RETURN_IF_ERROR(CheckHosts(*pool, copies, "--copies"));
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool->CreateRegion({.gc = true, .copies = copies}));
  return std::make_unique<PoolScratch>(std::move(pool), std::move(region), copies);
}

}  // namespace nram
