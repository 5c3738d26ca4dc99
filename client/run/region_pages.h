#ifndef NRAM_CLIENT_RUN_REGION_PAGES_H_
#define NRAM_CLIENT_RUN_REGION_PAGES_H_

#include <memory>
#include <vector>

#include "base/sync.h"
#include "client/pool/io.h"
#include "client/pool/region.h"
#include "client/run/page_store.h"

namespace nram {

// A program's pages in a region of the pool: page i is page i of the region.
class RegionPages : public PageStore {
 public:
  explicit RegionPages(std::unique_ptr<Region> region) : region_(std::move(region)) {}
  // Destroys the region.
  ~RegionPages() override;

  absl::Status ReadPages(uint64_t page, absl::Span<std::byte> to) override;
  absl::Status WritePages(absl::Span<const Write> writes) override;
  void Forget(uint64_t page, uint64_t count) override;

 private:
  // Writes of one call that are under way at a time.
  static constexpr size_t kUnderWay = 32;
  using Ios = std::vector<std::unique_ptr<Io>>;

  Ios TakeIos();

  const std::unique_ptr<Region> region_;
  Mutex mu_;
  std::vector<Ios> free_ ABSL_GUARDED_BY(mu_);  // a set for each call that there has been at a time
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_REGION_PAGES_H_
