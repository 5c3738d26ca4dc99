#include "client/memory/budget.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr uint64_t kWindowBytesMax = kMiB;
constexpr uint64_t kWindowBytesMin = 16 * kKiB;
constexpr uint64_t kWindowShare = 128;  // of the budget

// Sums for twice as many pages as may be here are too many, and for fewer than three in four too few. In between they
// do not change, because a change forgets all.
constexpr uint64_t kSumsMost = 2;
bool AreTooFew(uint64_t sums_pages, uint64_t limit_pages) { return sums_pages < limit_pages / 4 * 3; }

}  // namespace

uint64_t BudgetShape::LeastBytes() const {
  return std::max(kBytesMin, kBuffers * std::max(page_bytes, kWindowBytesMin) + handlers * page_bytes +
                                 kPagesMin * (page_bytes + ChunkSums::BytesPerPage(page_bytes)));
}

uint64_t BudgetShape::BytesFor(uint64_t pages) const {
  const uint64_t in_place = pages * (page_bytes + kSumsMost * ChunkSums::BytesPerPage(page_bytes));
  // All windows together take an eighth at most, or one page each.
  const uint64_t rest = (kBuffers + handlers) * std::max(page_bytes, kWindowBytesMin);
  return std::max(LeastBytes(), (in_place + rest) / 7 * 8);
}

uint64_t BudgetShape::WindowPages(uint64_t budget_bytes) const {
  const uint64_t bytes = std::clamp(std::bit_floor(budget_bytes / kWindowShare), kWindowBytesMin, kWindowBytesMax);
  return std::max<uint64_t>(1, bytes / page_bytes);
}

uint64_t BudgetShape::ForPagesAndSums(uint64_t budget_bytes) const {
  return budget_bytes - kBuffers * WindowPages(budget_bytes) * page_bytes - handlers * page_bytes;
}

uint64_t BudgetShape::LimitPages(uint64_t budget_bytes) const {
  return ForPagesAndSums(budget_bytes) / (page_bytes + ChunkSums::BytesPerPage(page_bytes));
}

uint64_t BudgetShape::LimitPages(uint64_t budget_bytes, uint64_t sums_pages) const {
  return (ForPagesAndSums(budget_bytes) - sums_pages * ChunkSums::BytesPerPage(page_bytes)) / page_bytes;
}

absl::Status Budget::Change(uint64_t bytes, bool at_least_pins) {
  MutexLock lock(&mu_);
  if (at_least_pins) bytes = std::max(bytes, std::min(most_bytes_, shape_.BytesFor(2 * advice_->PinnedPages() + 2)));
  const uint64_t least = shape_.LeastBytes();
  if (bytes < least || bytes > most_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("budget of ", FormatByteSize(bytes), ": expected ",
                                                   FormatByteSize(least), " to ", FormatByteSize(most_bytes_)));
  }
  const uint64_t before = bytes_.load();
  if (bytes == before) return absl::OkStatus();
  const uint64_t window = shape_.WindowPages(bytes);
  const uint64_t pages = shape_.LimitPages(bytes);
  // Sums that have become too many are given back when the pages have left: until then they still save writing.
  const uint64_t sums = std::min(sums_->pages(), kSumsMost * pages);
  NRAM_RETURN_IF_ERROR(Annotate(advice_->SetLimit(shape_.LimitPages(bytes, sums), window),
                                absl::StrCat("budget of ", FormatByteSize(bytes))));
  page_in_->SetWindow(window);
  bytes_.store(bytes);
  ++(bytes < before ? shrank_ : grew_);
  trim_.store(true);
  if (AreTooFew(sums_->pages(), pages) && sums_->Resize(pages).ok()) {
    (void)advice_->SetLimit(shape_.LimitPages(bytes, sums_->pages()), window);
  }
  if (on_change_ != nullptr) on_change_(before, bytes);
  return absl::OkStatus();
}

void Budget::AtRest() {
  // A thread that changes the budget may be waiting for the thread that calls this.
  if (!trim_.load(std::memory_order_relaxed)) return;
  if (!mu_.TryLock()) return;
  const uint64_t bytes = bytes_.load();
  const uint64_t pages = shape_.LimitPages(bytes);
  if (sums_->pages() > kSumsMost * pages && sums_->Resize(pages).ok()) {
    (void)advice_->SetLimit(shape_.LimitPages(bytes, sums_->pages()), shape_.WindowPages(bytes));
  }
  residency_->Trim();
  page_in_->ahead()->Trim();
  // Buffers that are in use now are trimmed the next time.
  trim_.store(page_in_->buffer_bytes() > BudgetShape::kBuffers * shape_.WindowPages(bytes) * shape_.page_bytes);
  mu_.Unlock();
}

}  // namespace nram
