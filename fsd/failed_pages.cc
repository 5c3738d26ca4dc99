#include "fsd/failed_pages.h"

#include <algorithm>
#include <iterator>

namespace nram {
namespace {

constexpr uint64_t FirstPage(uint64_t offset) { return offset / kPageBytes; }
constexpr uint64_t EndPage(uint64_t end) { return end / kPageBytes + (end % kPageBytes != 0); }

}  // namespace

void FailedPages::Add(Mark* file, uint64_t offset, uint64_t end_byte, absl::FunctionRef<void()> grow) {
  uint64_t first = FirstPage(offset);
  uint64_t end = EndPage(end_byte);
  if (offset >= end_byte) return;
  MutexLock lock(&mu_);
  Runs& runs = files_[file];
  // What touches the new run becomes a part of it.
  auto next = runs.upper_bound(first);
  if (next != runs.begin() && std::prev(next)->second >= first) --next;
  while (next != runs.end() && next->first <= end) {
    first = std::min(first, next->first);
    end = std::max(end, next->second);
    next = runs.erase(next);
    --all_runs_;
  }
  if (!runs.empty() && (runs.size() >= kRunsMax || all_runs_ >= kAllRunsMax)) {
    if (next != runs.begin()) {
      --next;
      first = next->first;
    } else {
      end = next->second;
    }
    runs.erase(next);
    --all_runs_;
  }
  runs.emplace(first, end);
  ++all_runs_;
  file->any_.store(true, std::memory_order_release);
  grow();
}

void FailedPages::RemoveLocked(Mark* file, uint64_t first, uint64_t end) {
  const auto found = files_.find(file);
  if (first >= end || found == files_.end()) return;
  Runs& runs = found->second;
  auto next = runs.upper_bound(first);
  if (next != runs.begin() && std::prev(next)->second > first) --next;
  while (next != runs.end() && next->first < end) {
    const uint64_t run_first = next->first;
    const uint64_t run_end = next->second;
    // It would become two.
    if (run_first < first && run_end > end && all_runs_ >= kAllRunsMax) return;
    next = runs.erase(next);
    --all_runs_;
    if (run_first < first) {
      runs.emplace(run_first, first);
      ++all_runs_;
    }
    if (run_end > end) {
      runs.emplace(end, run_end);
      ++all_runs_;
    }
    next = runs.lower_bound(std::min(run_end, end));
  }
  if (!runs.empty()) return;
  files_.erase(found);
  file->any_.store(false, std::memory_order_release);
}

void FailedPages::Renew(Mark* file, uint64_t offset, uint64_t end, const std::atomic<uint64_t>& file_end) {
  if (!file->any()) return;
  MutexLock lock(&mu_);
  RemoveLocked(file, EndPage(offset), end >= file_end ? EndPage(end) : FirstPage(end));
}

void FailedPages::CutOff(Mark* file, uint64_t offset) {
  if (!file->any()) return;
  MutexLock lock(&mu_);
  RemoveLocked(file, EndPage(offset), kNone);
}

bool FailedPages::Any(const Mark& file, uint64_t offset, uint64_t end) const {
  return file.any() && offset < end && NextIn(file, FirstPage(offset)) < EndPage(end);
}

uint64_t FailedPages::NextIn(const Mark& file, uint64_t page) const {
  if (!file.any()) return kNone;
  MutexLock lock(&mu_);
  const auto found = files_.find(&file);
  if (found == files_.end()) return kNone;
  const auto next = found->second.upper_bound(page);
  if (next != found->second.begin() && std::prev(next)->second > page) return page;
  return next == found->second.end() ? kNone : next->first;
}

uint64_t FailedPages::NextOut(const Mark& file, uint64_t page) const {
  if (!file.any()) return page;
  MutexLock lock(&mu_);
  const auto found = files_.find(&file);
  if (found == files_.end()) return page;
  const auto next = found->second.upper_bound(page);
  if (next == found->second.begin()) return page;
  return std::max(page, std::prev(next)->second);
}

size_t FailedPages::runs() const {
  MutexLock lock(&mu_);
  return all_runs_;
}

}  // namespace nram
