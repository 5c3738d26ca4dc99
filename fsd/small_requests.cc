#include "fsd/small_requests.h"

#include <cstring>

#include "base/clock.h"

namespace nram {

SmallRequests::Handle* SmallRequests::Take() {
  MutexLock lock(&mu_);
  if (free_.empty()) {
    if (handles_.size() == kHandlesMax) return nullptr;
    free_.reserve(kHandlesMax);  // so that Give allocates nothing
    return handles_.emplace_back(std::make_unique<Handle>(this)).get();
  }
  Handle* const handle = free_.back();
  free_.pop_back();
  return handle;
}

void SmallRequests::Give(Handle* handle) {
  MutexLock lock(&mu_);
  free_.push_back(handle);
  if (free_.size() == handles_.size()) all_free_.SignalAll();
}

void SmallRequests::AwaitAll() {
  constexpr int64_t kLookAgainMs = 1'000;
  MutexLock lock(&mu_);
  while (free_.size() < handles_.size()) all_free_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
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
