#include "client/run/region_pages.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace nram {

RegionPages::~RegionPages() { (void)region_->Destroy(); }

RegionPages::Ios RegionPages::TakeIos() {
  MutexLock lock(&mu_);
  if (!free_.empty()) {
    Ios ios = std::move(free_.back());
    free_.pop_back();
    return ios;
  }
  Ios ios;
  for (size_t i = 0; i < kUnderWay; ++i) ios.push_back(std::make_unique<Io>(1));
  return ios;
}

absl::Status RegionPages::ReadPages(uint64_t page, absl::Span<std::byte> to) {
  const bool urgent = to.size() <= kPageBytes;
  return region_->Read(page * kPageBytes, to, {.io_class = urgent ? IoClass::kUrgent : IoClass::kBulk});
}

absl::Status RegionPages::WritePages(absl::Span<const Write> writes) {
  Ios ios = TakeIos();
  absl::Status first_error;
  for (size_t i = 0; i < writes.size() + ios.size(); ++i) {
    Io* const io = ios[i % ios.size()].get();
    // The former write of this Io.
    if (i >= ios.size() && i - ios.size() < writes.size()) {
      if (absl::Status status = io->Wait(); !status.ok() && first_error.ok()) first_error = status;
    }
    if (i < writes.size()) region_->StartWrite(io, writes[i].page * kPageBytes, writes[i].data);
  }
  MutexLock lock(&mu_);
  free_.push_back(std::move(ios));
  return first_error;
}

void RegionPages::Forget(uint64_t page, uint64_t count) { (void)region_->Trim(page * kPageBytes, count * kPageBytes); }

}  // namespace nram
