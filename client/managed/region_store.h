#ifndef NRAM_CLIENT_MANAGED_REGION_STORE_H_
#define NRAM_CLIENT_MANAGED_REGION_STORE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/managed/store.h"
#include "client/pool/pool.h"

namespace nram {

// A region of a pool of its own. The region is collected when the pool's lease ends, and destroyed with the store.
class RegionStore : public ManagedStore {
 public:
  // Blocks as Pool::Open does, with its errors and those of CheckHosts, whose `setting` it passes on.
  static absl::StatusOr<std::unique_ptr<RegionStore>> Open(const PoolOptions& options, int copies,
                                                           absl::string_view setting = "copies");
  ~RegionStore() override;

  uint64_t unit_bytes() const override { return region_->unit_bytes(); }
  absl::Status Reserve(uint64_t offset, uint64_t length) override;
  std::unique_ptr<Op> NewOp() override;
  void StartRead(Op* op, uint64_t offset, absl::Span<std::byte> to, Callback callback, void* context) override;
  void StartWrite(Op* op, uint64_t offset, absl::Span<const std::byte> from, Callback callback, void* context) override;
  void End() override;

 private:
  class RegionOp;

  RegionStore(std::unique_ptr<Pool> pool, std::unique_ptr<Region> region);

  const std::unique_ptr<Pool> pool_;
  const std::unique_ptr<Region> region_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_REGION_STORE_H_
