#include "fsd/file_data.h"

#include <glog/logging.h>
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr int64_t kAwaitFreedMs = 2'000;
constexpr int64_t kBatchMs = 2;
constexpr uint64_t kTrimAfter = 10'000;  // files
constexpr int64_t kTrimIdleMs = 1'000;
constexpr uint32_t kDirectWritesMax = 1'000;  // for which the page cache is asked to drop their range

}  // namespace

FileData::~FileData() { store_->ReturnPages(pages_.size()); }

uint64_t FileData::blocks() const {
  MutexLock lock(store_->PagesLock(this));
  return pages_.size() * kChunksPerPage;
}

Errno FileData::CheckRange(uint64_t offset, uint64_t length) const {
  if (offset > kRegionBytesMax || length > kRegionBytesMax - offset) return Err(EFBIG);
  return Errno::kOk;
}

uint64_t FileData::CountPages(uint64_t offset, uint64_t end) const {
  MutexLock lock(store_->PagesLock(this));
  return pages_.Count(offset / kPageBytes, RoundUp(end, kPageBytes) / kPageBytes);
}

Errno FileData::TakePages(uint64_t offset, uint64_t end) {
  const uint64_t first = offset / kPageBytes;
  const uint64_t last = RoundUp(end, kPageBytes) / kPageBytes;
  MutexLock lock(store_->PagesLock(this));
  const uint64_t missing = last - first - pages_.Count(first, last);
  if (missing == 0) return Errno::kOk;
  if (!store_->TryTakePages(missing)) return Err(ENOSPC);
  pages_.Add(first, last);
  return Errno::kOk;
}

uint64_t FileData::ReturnPages(uint64_t first, uint64_t end) {
  if (first >= end) return 0;
  MutexLock lock(store_->PagesLock(this));
  const uint64_t removed = pages_.Remove(first, end);
  store_->ReturnPages(removed);
  return removed;
}

BlockFile* FileData::File(absl::Status* status) {
  MutexLock lock(store_->PagesLock(this));
  if (file_ == nullptr) {
    absl::StatusOr<std::unique_ptr<BlockFile>> file = store_->blocks_->Create();
    *status = file.status();
    if (file.ok()) file_ = *std::move(file);
  }
  return file_.get();
}

void FileData::GrowTo(uint64_t size) {
  uint64_t seen = size_.load();
  while (seen < size && !size_.compare_exchange_weak(seen, size)) {
  }
}

Errno FileData::Read(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got) {
  SharedGateLock lock(&mu_);
  const uint64_t file_size = size_.load();
  const uint64_t end = std::min(offset + std::min<uint64_t>(size, kRegionBytesMax), file_size);
  *got = {};
  if (offset >= end) return Errno::kOk;
  const uint64_t from = RoundDown(offset, kChunkBytes);
  const absl::Span<std::byte> chunks(buffer.data, RoundUp(end, kChunkBytes) - from);
  CHECK_LE(chunks.size(), buffer.size + PaddedBytes::kPadBytes);
  if (CountPages(offset, end) == 0) {
    memset(chunks.data(), 0, chunks.size());
  } else {
    absl::Status status;
    BlockFile* const file = File(&status);
    if (status.ok()) status = file->Read(from, chunks);
    if (!status.ok()) {
      LOG_EVERY_N(WARNING, 100) << "read: " << status;
      return ErrnoOf(status);
    }
  }
  *got = chunks.subspan(offset - from, end - offset);
  return Errno::kOk;
}

bool FileData::StartRead(FileIo* io, uint64_t offset, size_t size) {
  if (size > FileIo::kBytesMax - kChunkBytes || !mu_.TryLockShared()) return false;
  const uint64_t end = std::min(offset + size, size_.load());
  const uint64_t from = RoundDown(offset, kChunkBytes);
  io->file_ = this;
  io->bytes_ = {};
  io->wanted_ = {};
  if (offset < end) {
    io->bytes_ = {io->buffer().data, RoundUp(end, kChunkBytes) - from};
    io->wanted_ = io->bytes_.subspan(offset - from, end - offset);
  }
  if (offset >= end || CountPages(offset, end) == 0) {
    std::fill(io->bytes_.begin(), io->bytes_.end(), std::byte{0});  // perhaps none
    OnReadDone(io->block_.get(), absl::OkStatus());
    return true;
  }
  absl::Status status;
  BlockFile* const file = File(&status);
  if (file == nullptr) {
    mu_.UnlockShared();
    return false;  // Read says why
  }
  io->block_->done = &OnReadDone;
  if (file->StartRead(io->block_.get(), from, io->bytes_)) return true;
  mu_.UnlockShared();
  return false;
}

void FileData::OnReadDone(BlockIo* block, const absl::Status& status) {
  auto* const io = static_cast<FileIo*>(block->context);
  io->file_->mu_.UnlockShared();
  if (!status.ok()) {
    LOG_EVERY_N(WARNING, 100) << "read: " << status;
  }
  io->done(io, ErrnoOf(status), status.ok() ? io->wanted_ : absl::Span<const std::byte>());
}

bool FileData::StartWrite(FileIo* io, uint64_t offset, size_t size) {
  const uint64_t end = offset + size;
  if (size == 0 || size > FileIo::kBytesMax || offset % kChunkBytes != 0 || end % kChunkBytes != 0) return false;
  if (!Ok(CheckRange(offset, size)) || !mu_.TryLockShared()) return false;
  absl::Status status;
  BlockFile* const file = File(&status);
  if ((tail_unsure_ && end > size_.load()) || file == nullptr || !Ok(TakePages(offset, end))) {
    mu_.UnlockShared();
    return false;
  }
  io->file_ = this;
  io->offset_ = offset;
  io->bytes_ = {io->buffer().data, size};
  io->block_->done = &OnWriteDone;
  if (file->StartWrite(io->block_.get(), offset, io->bytes_)) return true;
  mu_.UnlockShared();
  return false;
}

void FileData::OnWriteDone(BlockIo* block, const absl::Status& status) {
  auto* const io = static_cast<FileIo*>(block->context);
  const Errno error = ErrnoOf(status);
  if (error == Err(ENOSPC) || (!status.ok() && io->file_->file_->RewriteMayHelp(status))) {
    io->failed_ = status;
    return io->file_->store_->RetryWrite(io);
  }
  if (!Ok(error)) {
    LOG_EVERY_N(WARNING, 100) << "write: " << status;
  }
  io->file_->EndWrite(io, error);
}

void FileData::OnRetryDone(BlockIo* block, const absl::Status& status) {
  auto* const io = static_cast<FileIo*>(block->context);
  if (!status.ok() && io->file_->file_->RewriteMayHelp(status)) {
    io->failed_ = status;
    return io->file_->store_->RetryWrite(io);  // as a Rewrite then
  }
  io->file_->EndWrite(io, ErrnoOf(status));
}

FileData::Stale FileData::NoteDirectWrite(uint32_t* token) {
  *token = direct_writes_;
  if (*token == 0) return Stale::kNothing;
  if (*token >= kDirectWritesMax) return Stale::kWholeFile;
  // If that fails, there was another write or a read.
  uint32_t expected = *token;
  direct_writes_.compare_exchange_strong(expected, *token + 1);
  return Stale::kItsRange;
}

void FileData::EndWrite(FileIo* io, Errno error) {
  const uint64_t end = io->offset_ + io->bytes_.size();
  if (Ok(error)) {
    GrowTo(end);
  } else if (end > size_.load()) {
    tail_unsure_ = true;
  }
  mu_.UnlockShared();
  io->done(io, error, {});
}

Errno FileData::WriteAligned(uint64_t offset, absl::Span<const std::byte> bytes) {
  for (bool again = false;; again = true) {
    const uint64_t freed_before = store_->Freed();
    Errno error = TakePages(offset, offset + bytes.size());
    if (Ok(error)) {
      absl::Status status;
      BlockFile* const file = File(&status);
      if (status.ok()) status = file->Write(offset, bytes);
      error = ErrnoOf(status);
      if (!status.ok() && error != Err(ENOSPC)) {
        LOG_EVERY_N(WARNING, 100) << "write: " << status;
      }
    }
    if (Ok(error)) return error;
    if (offset + bytes.size() > size_.load()) tail_unsure_ = true;
    // What was deleted a moment ago is room too.
    if (again || error != Err(ENOSPC) || !store_->AwaitFreed(freed_before)) return error;
  }
}

Errno FileData::RoundOut(uint64_t* offset, PaddedBytes* bytes) {
  const uint64_t file_size = size_.load();
  const uint64_t end = *offset + bytes->size;
  const uint64_t chunk_first = RoundDown(*offset, kChunkBytes);
  const uint64_t chunk_last = RoundDown(end, kChunkBytes);
  std::byte chunk[kChunkBytes];
  // What the file has there now: nothing behind its end, nothing where no page is.
  const auto load = [&](uint64_t at) {
    if (at >= file_size || CountPages(at, at + 1) == 0) {
      memset(chunk, 0, sizeof chunk);
      return Errno::kOk;
    }
    absl::Status status;
    BlockFile* const file = File(&status);
    if (status.ok()) status = file->Read(at, absl::MakeSpan(chunk));
    if (file_size - at < kChunkBytes) memset(chunk + (file_size - at), 0, kChunkBytes - (file_size - at));
    return ErrnoOf(status);
  };
  const size_t head = *offset - chunk_first;
  const size_t tail = end > chunk_last ? chunk_last + kChunkBytes - end : 0;
  if (head > 0) {
    NRAM_RETURN_IF_ERRNO(load(chunk_first));
    memcpy(bytes->data - head, chunk, head);
  }
  if (tail > 0) {
    // The same chunk need not be read twice.
    if (head == 0 || chunk_last != chunk_first) {
      if (end >= file_size) {
        memset(chunk, 0, sizeof chunk);
      } else {
        NRAM_RETURN_IF_ERRNO(load(chunk_last));
      }
    }
    memcpy(bytes->data + bytes->size, chunk + kChunkBytes - tail, tail);
  }
  bytes->data -= head;
  bytes->size += head + tail;
  *offset = chunk_first;
  return Errno::kOk;
}

Errno FileData::CleanTail() {
  if (!tail_unsure_) return Errno::kOk;
  NRAM_RETURN_IF_ERRNO(ZeroRange(size_.load(), kRegionBytesMax));
  tail_unsure_ = false;
  return Errno::kOk;
}

Errno FileData::Write(uint64_t offset, PaddedBytes bytes) {
  if (bytes.size == 0) return Errno::kOk;
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, bytes.size));
  const uint64_t end = offset + bytes.size;
  const bool aligned = offset % kChunkBytes == 0 && end % kChunkBytes == 0;
  if (aligned) {
    SharedGateLock lock(&mu_);
    if (!tail_unsure_ || end <= size_.load()) {
      NRAM_RETURN_IF_ERRNO(WriteAligned(offset, {bytes.data, bytes.size}));
      GrowTo(end);
      return Errno::kOk;
    }
  }
  GateLock lock(&mu_);
  if (end > size_.load()) NRAM_RETURN_IF_ERRNO(CleanTail());
  if (!aligned) NRAM_RETURN_IF_ERRNO(RoundOut(&offset, &bytes));
  NRAM_RETURN_IF_ERRNO(WriteAligned(offset, {bytes.data, bytes.size}));
  GrowTo(end);
  return Errno::kOk;
}

Errno FileData::ZeroWithinChunk(uint64_t offset, uint64_t end) {
  if (offset == end || CountPages(offset, end) == 0) return Errno::kOk;
  std::byte chunk[kChunkBytes];
  absl::Status status;
  BlockFile* const file = File(&status);
  const uint64_t at = RoundDown(offset, kChunkBytes);
  if (status.ok()) status = file->Read(at, absl::MakeSpan(chunk));
  if (status.ok()) {
    memset(chunk + (offset - at), 0, end - offset);
    status = file->Write(at, chunk);
  }
  return ErrnoOf(status);
}

Errno FileData::ZeroRange(uint64_t offset, uint64_t end) {
  if (offset >= end || CountPages(offset, end) == 0) return Errno::kOk;
  const uint64_t first = RoundUp(offset, kChunkBytes);
  const uint64_t last = RoundDown(end, kChunkBytes);
  if (first > last) return ZeroWithinChunk(offset, end);
  NRAM_RETURN_IF_ERRNO(ZeroWithinChunk(offset, first));
  NRAM_RETURN_IF_ERRNO(ZeroWithinChunk(last, end));
  if (first == last) return Errno::kOk;
  absl::Status status;
  BlockFile* const file = File(&status);
  if (status.ok()) status = file->Trim(first, last - first);
  if (!status.ok()) return ErrnoOf(status);
  const uint64_t returned = ReturnPages(RoundUp(offset, kPageBytes) / kPageBytes, end / kPageBytes);
  // What was reserved there and not written. Of a file that has both, more than that may go.
  if (returned > 0) file->Unreserve(returned * kPageBytes);
  return Errno::kOk;
}

Errno FileData::Truncate(uint64_t size) {
  NRAM_RETURN_IF_ERRNO(CheckRange(size, 0));
  GateLock lock(&mu_);
  if (size == 0) {
    // A fresh start, also after a loss.
    std::unique_ptr<BlockFile> file;
    {
      MutexLock pages_lock(store_->PagesLock(this));
      file = std::move(file_);
      store_->ReturnPages(pages_.Remove(0, PageSet::kNone));
    }
    if (file != nullptr) store_->Free(std::move(file));
    tail_unsure_ = false;
    size_ = 0;
    return Errno::kOk;
  }
  if (size < size_.load()) {
    NRAM_RETURN_IF_ERRNO(ZeroRange(size, kRegionBytesMax));
  } else {
    NRAM_RETURN_IF_ERRNO(CleanTail());
  }
  size_ = size;
  return Errno::kOk;
}

Errno FileData::ReserveAndTake(uint64_t offset, uint64_t end) {
  const uint64_t first_page = offset / kPageBytes;
  const uint64_t end_page = RoundUp(end, kPageBytes) / kPageBytes;
  absl::Status status;
  BlockFile* const file = File(&status);
  uint64_t reserved = 0;
  for (uint64_t page = first_page; status.ok() && page < end_page;) {
    uint64_t from = 0;
    uint64_t until = 0;
    {
      MutexLock lock(store_->PagesLock(this));
      from = pages_.NextOut(page);
      until = std::min(end_page, pages_.NextIn(from));
    }
    if (from >= end_page) break;
    status = file->Reserve(from * kPageBytes, (until - from) * kPageBytes);
    if (status.ok()) reserved += until - from;
    page = until;
  }
  Errno error = ErrnoOf(status);
  // Others may have taken meanwhile what the mount's limit had left.
  if (Ok(error)) error = TakePages(offset, end);
  if (!Ok(error) && reserved > 0) file->Unreserve(reserved * kPageBytes);
  return error;
}

Errno FileData::Allocate(uint64_t offset, uint64_t length, bool keep_size) {
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, length));
  GateLock lock(&mu_);
  NRAM_RETURN_IF_ERRNO(CleanTail());
  const uint64_t end = offset + length;
  const uint64_t first_page = offset / kPageBytes;
  const uint64_t end_page = RoundUp(end, kPageBytes) / kPageBytes;
  const uint64_t missing = end_page - first_page - CountPages(offset, end);
  for (bool again = false; missing > 0; again = true) {
    const uint64_t freed_before = store_->Freed();
    const Errno error = store_->HasPages(missing) ? ReserveAndTake(offset, end) : Err(ENOSPC);
    if (Ok(error)) break;
    if (again || error != Err(ENOSPC) || !store_->AwaitFreed(freed_before)) return error;
  }
  if (!keep_size) GrowTo(end);
  return Errno::kOk;
}

Errno FileData::PunchHole(uint64_t offset, uint64_t length) {
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, length));
  GateLock lock(&mu_);
  return ZeroRange(offset, offset + length);
}

Errno FileData::SeekData(uint64_t offset, uint64_t* found) const {
  SharedGateLock lock(&mu_);
  if (offset >= size_.load()) return Err(ENXIO);
  MutexLock pages_lock(store_->PagesLock(this));
  const uint64_t page = pages_.NextIn(offset / kPageBytes);
  if (page == PageSet::kNone || page * kPageBytes >= size_.load()) return Err(ENXIO);
  *found = std::max(offset, page * kPageBytes);
  return Errno::kOk;
}

Errno FileData::SeekHole(uint64_t offset, uint64_t* found) const {
  SharedGateLock lock(&mu_);
  if (offset >= size_.load()) return Err(ENXIO);
  MutexLock pages_lock(store_->PagesLock(this));
  *found = std::min(std::max(offset, pages_.NextOut(offset / kPageBytes) * kPageBytes), size_.load());
  return Errno::kOk;
}

FileIo::FileIo(FileStore* store)
    : block_(store->blocks_->NewIo()), memory_(new std::byte[kBytesMax + 2 * PaddedBytes::kPadBytes]) {
  block_->context = this;
}

FileStore::FileStore(BlockStore* blocks, uint64_t bytes_max)
    : blocks_(blocks),
      pages_max_(std::min<uint64_t>(bytes_max / kPageBytes, INT64_MAX)),
      pages_left_(static_cast<int64_t>(pages_max_)),
      thread_([this] { RunFreeing(); }),
      retry_thread_([this] { RunRetries(); }) {
  pthread_setname_np(thread_.native_handle(), "nram-free");
  pthread_setname_np(retry_thread_.native_handle(), "nram-retry");
}

FileStore::~FileStore() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    work_.SignalAll();
    retry_.SignalAll();
  }
  thread_.join();
  retry_thread_.join();
}

bool FileStore::TryTakePages(uint64_t pages) {
  int64_t left = pages_left_.load();
  do {
    if (left < 0 || static_cast<uint64_t>(left) < pages) return false;
  } while (!pages_left_.compare_exchange_weak(left, left - static_cast<int64_t>(pages)));
  return true;
}

void FileStore::Bury(std::unique_ptr<FileBody> body) {
  auto* const file = static_cast<FileData*>(body.get());
  if (file->file_ != nullptr) Free(std::move(file->file_));
}

void FileStore::Free(std::unique_ptr<BlockFile> file) {
  if (!frees_) return;
  MutexLock lock(&mu_);
  to_free_.push_back(std::move(file));
  ++given_;
  if (to_free_.size() == 1) work_.Signal();
}

void FileStore::RetryWrite(FileIo* io) {
  MutexLock lock(&mu_);
  io->retry_when_freed_ = given_;
  io->retry_at_ns_ = DeadlineAfterMs(kAwaitFreedMs);
  retries_.push_back(io);
  work_.Signal();
  retry_.Signal();
}

void FileStore::Retry(FileIo* io) {
  absl::Status status;
  BlockFile* const file = io->file_->File(&status);
  if (status.ok() && !file->RewriteMayHelp(io->failed_)) {
    // Without waiting: the next may be due too.
    io->block_->done = &FileData::OnRetryDone;
    if (file->StartWrite(io->block_.get(), io->offset_, io->bytes_)) return;
  }
  if (status.ok()) status = file->Rewrite(io->offset_, io->bytes_, io->failed_);
  io->file_->EndWrite(io, ErrnoOf(status));
}

void FileStore::RunRetries() {
  MutexLock lock(&mu_);
  while (!stopping_ || !retries_.empty()) {
    int64_t next_ns = DeadlineAfterMs(60'000);
    for (const FileIo* io : retries_) next_ns = std::min(next_ns, io->retry_at_ns_);
    const auto is_due = [this](const FileIo* io) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return done_ >= io->retry_when_freed_ || MonotonicNs() >= io->retry_at_ns_;
    };
    const auto due = std::partition(retries_.begin(), retries_.end(), [&](const FileIo* io) { return !is_due(io); });
    if (due == retries_.end()) {
      retry_.WaitUntil(&mu_, next_ns);
      continue;
    }
    const std::vector<FileIo*> now(due, retries_.end());
    retries_.erase(due, retries_.end());
    mu_.Unlock();
    for (FileIo* io : now) Retry(io);
    mu_.Lock();
  }
}

uint64_t FileStore::Freed() {
  MutexLock lock(&mu_);
  return done_;
}

bool FileStore::AwaitFreed(uint64_t freed_before) {
  const int64_t deadline_ns = DeadlineAfterMs(kAwaitFreedMs);
  MutexLock lock(&mu_);
  const uint64_t until = given_;
  if (done_ >= until) return done_ > freed_before;
  hurry_ = true;
  work_.Signal();
  while (done_ < until && freed_.WaitUntil(&mu_, deadline_ns)) {
  }
  hurry_ = false;
  return true;
}

void FileStore::RunFreeing() {
  MutexLock lock(&mu_);
  while (true) {
    if (to_free_.empty()) {
      if (stopping_) return;
      const bool much = done_ - trimmed_at_ >= kTrimAfter;
      if (!work_.WaitUntil(&mu_, DeadlineAfterMs(much ? kTrimIdleMs : 60'000)) && much) {
        // What the names of so many took goes back to this machine, when nothing else is going on. Never with swap,
        // whose heap is to stay: it has one file.
        trimmed_at_ = done_;
        mu_.Unlock();
        malloc_trim(0);
        mu_.Lock();
      }
      continue;
    }
    // A moment for more to come: a batch is freed in the time of one.
    const int64_t batch_deadline_ns = DeadlineAfterMs(kBatchMs);
    while (to_free_.size() < kFreeAtOnce && !hurry_ && !stopping_ && retries_.empty() &&
           work_.WaitUntil(&mu_, batch_deadline_ns)) {
    }
    std::vector<std::unique_ptr<BlockFile>> batch;
    const size_t count = std::min(to_free_.size(), kFreeAtOnce);
    const auto end = to_free_.begin() + static_cast<ptrdiff_t>(count);
    batch.assign(std::make_move_iterator(to_free_.begin()), std::make_move_iterator(end));
    to_free_.erase(to_free_.begin(), end);
    mu_.Unlock();
    blocks_->Destroy(std::move(batch));
    mu_.Lock();
    done_ += count;
    freed_.SignalAll();
    retry_.Signal();
  }
}

StoreCapacity FileStore::Capacity() const {
  const StoreCapacity store = blocks_->Capacity();
  const uint64_t limit = pages_max_ * kPageBytes;
  const uint64_t left = static_cast<uint64_t>(std::max<int64_t>(pages_left_.load(), 0)) * kPageBytes;
  return {std::min(limit, store.total_bytes), std::min(left, store.free_bytes)};
}

}  // namespace nram
