#include "fsd/file_pages.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t FirstPage(uint64_t offset) { return offset / kPageBytes; }
constexpr uint64_t EndPage(uint64_t end) { return (end + kPageBytes - 1) / kPageBytes; }

}  // namespace

FilePages::~FilePages() {
  store_->quota()->Return(pages_.size());
  if (has_promises_) store_->promises()->Remove(this, 0, PageSet::kNone);
}

uint64_t FilePages::Count() const {
  GateLock lock(&mu_);
  return pages_.size();
}

uint64_t FilePages::Count(uint64_t offset, uint64_t end) const {
  GateLock lock(&mu_);
  return pages_.Count(FirstPage(offset), EndPage(end));
}

BlockFile* FilePages::FindStored(uint64_t offset, uint64_t end) const {
  GateLock lock(&mu_);
  if (pages_.Count(FirstPage(offset), EndPage(end)) == 0) return nullptr;
  CHECK(stored_ != nullptr);
  return stored_.get();
}

Errno FilePages::MakeStoredLocked() {
  if (stored_ != nullptr) return Errno::kOk;
  absl::StatusOr<std::unique_ptr<BlockFile>> made = store_->blocks()->Create();
  if (!made.ok()) {
    LOG_EVERY_N(WARNING, 100) << "a file's first page: " << made.status();
    return ErrnoOf(made.status());
  }
  stored_ = *std::move(made);
  return Errno::kOk;
}

Errno FilePages::MakeStored(BlockFile** stored) {
  GateLock lock(&mu_);
  NRAM_RETURN_IF_ERRNO(MakeStoredLocked());
  *stored = stored_.get();
  return Errno::kOk;
}

Errno FilePages::Take(uint64_t offset, uint64_t end, BlockFile** stored) {
  const uint64_t first_page = FirstPage(offset);
  const uint64_t end_page = EndPage(end);
  GateLock lock(&mu_);
  NRAM_RETURN_IF_ERRNO(MakeStoredLocked());
  const uint64_t missing = end_page - first_page - pages_.Count(first_page, end_page);
  if (missing > 0) {
    if (!store_->MayGrow(missing) || !store_->quota()->TryTake(missing)) return Err(ENOSPC);
    pages_.Add(first_page, end_page);
  }
  *stored = stored_.get();
  return Errno::kOk;
}

void FilePages::NoteUsed(uint64_t offset, uint64_t end) {
  if (!has_promises_.load(std::memory_order_relaxed)) return;
  GateLock lock(&mu_);
  if (has_promises_) has_promises_ = store_->promises()->Remove(this, FirstPage(offset), EndPage(end));
}

void FilePages::Return(uint64_t offset, uint64_t end) {
  const uint64_t first_page = EndPage(offset);
  const uint64_t end_page = FirstPage(end);
  if (first_page >= end_page) return;
  GateLock lock(&mu_);
  store_->quota()->Return(pages_.Remove(first_page, end_page));
}

bool FilePages::NeedsRoom(uint64_t offset, uint64_t end) const {
  if (!has_promises_.load(std::memory_order_relaxed)) return false;
  const uint64_t first_page = FirstPage(offset);
  const uint64_t end_page = EndPage(end);
  GateLock lock(&mu_);
  return pages_.Count(first_page, end_page) < end_page - first_page;
}

Errno FilePages::Reserve(uint64_t offset, uint64_t end) {
  const uint64_t end_page = EndPage(end);
  BlockFile* stored = nullptr;
  NRAM_RETURN_IF_ERRNO(MakeStored(&stored));
  Errno error = Errno::kOk;
  PageSet reserved;
  for (uint64_t page = FirstPage(offset); Ok(error) && page < end_page;) {
    const uint64_t from = NextOut(page);
    if (from >= end_page) break;
    const uint64_t until = std::min(end_page, NextIn(from));
    error = ErrnoOf(stored->Reserve(from * kPageBytes, (until - from) * kPageBytes));
    if (Ok(error)) reserved.Add(from, until);
    page = until;
  }
  if (Ok(error)) error = Promise(reserved);
  if (Ok(error)) return error;
  reserved.ForEachRun(0, PageSet::kNone, [stored](uint64_t from, uint64_t to) {
    stored->Unreserve(from * kPageBytes, (to - from) * kPageBytes);
  });
  return error;
}

Errno FilePages::Promise(const PageSet& pages) {
  GateLock lock(&mu_);
  NRAM_RETURN_IF_ERRNO(TakeAllLocked(pages));
  if (pages.empty() || store_->keeps_room()) return Errno::kOk;
  store_->promises()->Add(this, pages);
  has_promises_ = has_room_ = true;
  return Errno::kOk;
}

PageSet FilePages::Promised(uint64_t offset, uint64_t end) const {
  if (!has_promises_.load(std::memory_order_relaxed)) return {};
  return store_->promises()->Find(this, FirstPage(offset), EndPage(end));
}

void FilePages::BreakLocked(uint64_t first_page, uint64_t end_page) {
  if (!has_room_ || first_page >= end_page) return;
  BlockFile* const stored = stored_.get();
  if (has_promises_) {
    const PageSet promised = store_->promises()->Find(this, first_page, end_page);
    promised.ForEachRun(0, PageSet::kNone, [stored](uint64_t from, uint64_t to) {
      stored->Unreserve(from * kPageBytes, (to - from) * kPageBytes);
    });
    has_promises_ = store_->promises()->Remove(this, first_page, end_page);
  }
  if (has_promises_) return;
  stored->UnreserveAll();
  has_room_ = false;
}

void FilePages::Break(uint64_t offset, uint64_t end) {
  GateLock lock(&mu_);
  BreakLocked(EndPage(offset), FirstPage(end));
}

BlockFile* FilePages::stored() const {
  GateLock lock(&mu_);
  return stored_.get();
}

CloneFile* FilePages::MakeClone() {
  GateLock lock(&mu_);
  if (stored_ == nullptr || stored_->AsClone() == nullptr) {
    stored_ =
        std::make_unique<CloneFile>(store_->blocks(), store_->reclaimer(), std::move(stored_), pages_, has_promises_);
  }
  return stored_->AsClone();
}

Errno FilePages::TakeAll(const PageSet& pages) {
  GateLock lock(&mu_);
  return TakeAllLocked(pages);
}

Errno FilePages::TakeAllLocked(const PageSet& pages) {
  PageSet missing;
  missing.AddAll(pages);
  missing.RemoveAll(pages_);
  if (missing.empty()) return Errno::kOk;
  if (!store_->MayGrow(missing.size()) || !store_->quota()->TryTake(missing.size())) return Err(ENOSPC);
  pages_.AddAll(missing);
  return Errno::kOk;
}

void FilePages::ReturnAllBut(const PageSet& kept, uint64_t offset, uint64_t end) {
  const uint64_t end_page = FirstPage(end);
  GateLock lock(&mu_);
  uint64_t returned = 0;
  for (uint64_t page = EndPage(offset); page < end_page;) {
    const uint64_t from = kept.NextOut(page);
    const uint64_t to = std::min(end_page, kept.NextIn(from));
    if (from >= to) break;
    returned += pages_.Remove(from, to);
    page = to;
  }
  store_->quota()->Return(returned);
}

std::unique_ptr<BlockFile> FilePages::TakeStored() {
  GateLock lock(&mu_);
  if (has_promises_) {
    // Other files may see pages of a clone's bases, which live on.
    if (stored_->AsClone() != nullptr) BreakLocked(0, PageSet::kNone);
    has_promises_ = false;
    store_->promises()->Remove(this, 0, PageSet::kNone);
  }
  has_room_ = false;  // it goes with the stored file
  store_->quota()->Return(pages_.Remove(0, PageSet::kNone));
  return std::move(stored_);
}

uint64_t FilePages::NextIn(uint64_t page) const {
  GateLock lock(&mu_);
  return pages_.NextIn(page);
}

uint64_t FilePages::NextOut(uint64_t page) const {
  GateLock lock(&mu_);
  return pages_.NextOut(page);
}

}  // namespace nram
