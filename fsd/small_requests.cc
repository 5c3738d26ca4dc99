#include "fsd/small_requests.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/clock.h"
#include "base/sync.h"

namespace nram {

SmallRequests::Handle* SmallRequests::Take() {
  for (size_t word = 0; word < taken_.size(); ++word) {
    uint64_t seen = taken_[word].load(std::memory_order_relaxed);
    while (seen != ~uint64_t{0}) {
      const int bit = std::countr_one(seen);
      if (!taken_[word].compare_exchange_weak(seen, seen | uint64_t{1} << bit, std::memory_order_acquire)) continue;
      under_way_.fetch_add(1, std::memory_order_relaxed);
      const size_t place = word * 64 + static_cast<size_t>(bit);
      absl::Cleanup no_memory = [&] { GivePlace(place); };
      if (handles_[place] == nullptr) handles_[place] = std::make_unique<Handle>(this, place);
      std::move(no_memory).Cancel();
      return handles_[place].get();
    }
  }
  return nullptr;
}

void SmallRequests::GivePlace(size_t place) {
  taken_[place / 64].fetch_and(~(uint64_t{1} << place % 64), std::memory_order_release);
  // The last access: AwaitAll may return now.
  if ((under_way_.fetch_sub(1, std::memory_order_acq_rel) & kAwaited) != 0) FutexWakeAll(&under_way_);
}

void SmallRequests::AwaitAll() {
  constexpr int64_t kLookAgainMs = 1'000;
  uint32_t seen = under_way_.fetch_or(kAwaited, std::memory_order_acq_rel) | kAwaited;
  while (seen != kAwaited) {
    FutexWaitUntil(&under_way_, seen, DeadlineAfterMs(kLookAgainMs));
    seen = under_way_.load(std::memory_order_acquire);
  }
  under_way_.fetch_and(~kAwaited, std::memory_order_relaxed);
}

bool SmallRequests::StartRead(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes) {
  Handle* const handle = size < FileIo::kBytesMax ? Take() : nullptr;
  if (handle == nullptr) return false;
  handle->req = req;
  handle->inode = inode;
  handle->reads = true;
  handle->touch = notes.touch;
  // Once it is begun, all of it may be over at any moment.
  if (filesystem_->StartRead(inode, offset, size, notes, handle)) return true;
  Give(handle);
  return false;
}

bool SmallRequests::StartWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, absl::Span<const std::byte> bytes,
                               WriteNotes notes, bool direct) {
  Handle* const handle = bytes.size() <= FileIo::kBytesMax ? Take() : nullptr;
  if (handle == nullptr) return false;
  handle->req = req;
  handle->inode = inode;
  handle->offset = offset;
  handle->bytes = bytes.size();
  handle->reads = false;
  handle->touch = notes.touch;
  handle->direct = direct;
  memcpy(handle->buffer().data, bytes.data(), bytes.size());
  if (filesystem_->StartWrite(inode, offset, bytes.size(), notes, handle)) return true;
  Give(handle);
  return false;
}

void SmallRequests::Reply(Handle* handle, Errno error, absl::Span<const std::byte> got) {
  const fuse_req_t req = handle->req;
  if (Ok(error) && handle->touch) {
    handle->reads ? filesystem_->ReadEnded(handle->inode) : filesystem_->WriteEnded(handle->inode);
  }
  if (!handle->reads && handle->origin() == WriteOrigin::kPageCache) {
    cache_->NoteWriteBack(handle->inode, handle->bytes, error);
  }
  if (!Ok(error)) {
    fuse_reply_err(req, Raw(error));
  } else if (handle->reads) {
    fuse_reply_buf(req, reinterpret_cast<const char*>(got.data()), got.size());
  } else if (handle->direct && handle->MayBeCached()) {
    cache_->ReplyDirectWrite(req, handle->inode, handle->offset, handle->bytes);
  } else {
    fuse_reply_write(req, handle->bytes);
  }
  Give(handle);
}

}  // namespace nram
