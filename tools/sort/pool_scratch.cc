#include "base/status.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "tools/sort/scratch.h"

namespace nram {
namespace {

// This is the worked example of the pool's API: open, create a region, start reads and writes, wait, trim.
class PoolScratch : public Scratch {
 public:
  explicit PoolScratch(std::unique_ptr<Pool> pool, std::unique_ptr<Region> region)
      : pool_(std::move(pool)), region_(std::move(region)) {}
  ~PoolScratch() override { (void)region_->Destroy({.timeout_ms = kDestroyTimeoutMs}); }

  absl::Status Reserve(uint64_t bytes) override {
    const absl::Status status = region_->Reserve(0, bytes);
    if (!absl::IsResourceExhausted(status)) return status;
    uint64_t free_bytes = 0;
    for (size_t i = 0; i < pool_->server_count(); ++i) {
      if (pool_->link(i)->up()) free_bytes += pool_->link(i)->capacity().free_bytes;
    }
    return absl::ResourceExhaustedError(absl::StrCat("the pool is too small: the scratch takes ", FormatByteSize(bytes),
                                                     " and ", FormatByteSize(free_bytes), " are free"));
  }

  std::unique_ptr<Transfer> NewTransfer() override { return std::make_unique<PoolTransfer>(region_.get()); }

  absl::Status Discard(uint64_t offset, uint64_t bytes) override { return region_->Trim(offset, bytes); }

 private:
  static constexpr int64_t kDestroyTimeoutMs = 2'000;

  class PoolTransfer : public Transfer {
   public:
    explicit PoolTransfer(Region* region) : region_(region) {}
    ~PoolTransfer() override { (void)Wait(); }
    void StartRead(uint64_t offset, absl::Span<char> to) override {
      started_ = true;
      region_->StartRead(&io_, offset, {reinterpret_cast<std::byte*>(to.data()), to.size()});
    }
    void StartWrite(uint64_t offset, absl::Span<const char> from) override {
      started_ = true;
      region_->StartWrite(&io_, offset, {reinterpret_cast<const std::byte*>(from.data()), from.size()});
    }
    absl::Status Wait() override {
      if (!started_) return absl::OkStatus();
      started_ = false;
      return io_.Wait();
    }

   private:
    static constexpr size_t kParts = 8;
    Region* const region_;
    Io io_{kParts};
    bool started_ = false;
  };

  const std::unique_ptr<Pool> pool_;
  const std::unique_ptr<Region> region_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Scratch>> OpenPoolScratch(PoolOptions options) {
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool, Pool::Open(std::move(options)));
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool->CreateRegion({.gc = true}));
  return std::make_unique<PoolScratch>(std::move(pool), std::move(region));
}

}  // namespace nram
