#include "fsd/file_data.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace nram {
namespace {

constexpr uint32_t kDirectWritesMax = 1'000;  // for which the page cache is asked to drop their range

// The one line in the log about an operation that failed, and its errno. A full store is no news.
Errno Logged(const char* what, const absl::Status& status) {
  const Errno error = ErrnoOf(status);
  if (!Ok(error) && error != Err(ENOSPC)) {
    LOG_EVERY_N(WARNING, 100) << what << ": " << status;
  }
  return error;
}

Errno CheckRange(uint64_t offset, uint64_t length) {
  if (offset > kRegionBytesMax || length > kRegionBytesMax - offset) return Err(EFBIG);
  return Errno::kOk;
}

// Frees the range's pages that have failed, which go on to be errors: they count no more, so that room can be reserved
// for them. Those that are promised have it.
Errno FreeFailed(const FailedPages& failed, const FailedPages::Mark& file, uint64_t offset, uint64_t end,
                 FilePages* pages) {
  const uint64_t end_page = RoundUp(end, kPageBytes) / kPageBytes;
  uint64_t page = offset / kPageBytes;
  while ((page = failed.NextIn(file, page)) < end_page) {
    const uint64_t until = std::min(failed.NextOut(file, page), end_page);
    const PageSet promised = pages->Promised(page * kPageBytes, until * kPageBytes);
    while (page < until) {
      const uint64_t from = promised.NextOut(page) * kPageBytes;
      page = std::min(until, promised.NextIn(from / kPageBytes));
      const uint64_t to = page * kPageBytes;
      BlockFile* const stored = from < to ? pages->FindStored(from, to) : nullptr;
      if (stored == nullptr) continue;
      NRAM_RETURN_IF_ERRNO(ErrnoOf(stored->Trim(from, to - from)));
      pages->Return(from, to);
    }
  }
  return Errno::kOk;
}

}  // namespace

static_assert(sizeof(FileData) == 72, "docs/design.md says how much memory a small file takes");

void FileData::GrowTo(uint64_t size) {
  uint64_t seen = size_.load();
  while (seen < size && !size_.compare_exchange_weak(seen, size)) {
  }
}

FileData::ReadPlan FileData::PlanRead(uint64_t offset, size_t size, PaddedBytes buffer) const {
  const uint64_t end = std::min(offset + std::min<uint64_t>(size, kRegionBytesMax), size_.load());
  ReadPlan plan;
  if (offset >= end) return plan;
  plan.from = RoundDown(offset, unit());
  plan.units = {buffer.data, RoundUp(end, unit()) - plan.from};
  CHECK_LE(plan.units.size(), buffer.size + PaddedBytes::kPadBytes);
  plan.wanted = plan.units.subspan(offset - plan.from, end - offset);
  return plan;
}

Errno FileData::Read(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got) {
  SharedGateLock lock(&mu_);
  return ReadNow(offset, size, buffer, got);
}

Errno FileData::ReadAtOnce(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got) {
  GateLock lock(&mu_);
  return ReadNow(offset, size, buffer, got);
}

Errno FileData::ReadNow(uint64_t offset, size_t size, PaddedBytes buffer, absl::Span<const std::byte>* got) {
  *got = {};
  // The size first: a write-back that fails beside this makes the file longer when its pages are errors.
  const ReadPlan plan = PlanRead(offset, size, buffer);
  if (failed_pages()->Any(failed_, offset, offset + size)) return Err(EIO);
  if (plan.units.empty()) return Errno::kOk;
  BlockFile* const stored = pages_.FindStored(plan.from, plan.from + plan.units.size());
  if (stored == nullptr) {
    memset(plan.units.data(), 0, plan.units.size());
  } else {
    NRAM_RETURN_IF_ERRNO(Logged("read", stored->Read(plan.from, plan.units)));
  }
  *got = plan.wanted;
  return Errno::kOk;
}

bool FileData::StartRead(FileIo* io, uint64_t offset, size_t size) {
  if (size > FileIo::kBytesMax - unit() || !mu_.TryLockShared()) return false;
  const ReadPlan plan = PlanRead(offset, size, io->buffer());  // the size first, as in ReadNow
  if (failed_pages()->Any(failed_, offset, offset + size)) {
    mu_.UnlockShared();
    return false;  // Read gives the error
  }
  io->file_ = this;
  io->got_ = plan.wanted;
  BlockFile* const stored = plan.units.empty() ? nullptr : pages_.FindStored(plan.from, plan.from + plan.units.size());
  if (stored == nullptr) {
    std::fill(plan.units.begin(), plan.units.end(), std::byte{0});
    EndIo(io, Errno::kOk);
    return true;
  }
  if (stored->StartRead(io, plan.from, plan.units)) return true;
  mu_.UnlockShared();
  return false;
}

Errno FileData::Write(uint64_t offset, PaddedBytes bytes, WriteOrigin origin) {
  if (bytes.size == 0) return Errno::kOk;
  const uint64_t end = offset + bytes.size;
  if (IsWholeUnits(offset, end) && Ok(CheckRange(offset, bytes.size))) {
    SharedGateLock lock(&mu_);
    if ((!tail_unsure_ || end <= size_.load()) && WritesBeside(offset, end) && !pages_.NeedsRoom(offset, end)) {
      const Errno error = WriteUnits(offset, {bytes.data, bytes.size});
      NoteWritten(error, offset, end, origin);
      return error;
    }
  }
  GateLock lock(&mu_);
  bool begun = false;
  const Errno error = WriteAlone(offset, bytes, &begun);
  // A writer's write that was refused before has changed nothing.
  if (begun || origin == WriteOrigin::kPageCache) NoteWritten(error, offset, end, origin);
  return error;
}

Errno FileData::WriteAlone(uint64_t offset, PaddedBytes bytes, bool* begun) {
  const uint64_t end = offset + bytes.size;
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, bytes.size));
  if (end > size_.load()) NRAM_RETURN_IF_ERRNO(CleanTail());
  if (!IsWholeUnits(offset, end)) NRAM_RETURN_IF_ERRNO(RoundOut(&offset, &bytes));
  if (pages_.NeedsRoom(offset, offset + bytes.size)) NRAM_RETURN_IF_ERRNO(Reserve(offset, offset + bytes.size));
  *begun = true;
  return WriteUnits(offset, {bytes.data, bytes.size});
}

bool FileData::StartWrite(FileIo* io, uint64_t offset, size_t size, WriteOrigin origin) {
  const uint64_t end = offset + size;
  if (size == 0 || size > FileIo::kBytesMax || !IsWholeUnits(offset, end)) return false;
  if (!Ok(CheckRange(offset, size)) || !mu_.TryLockShared()) return false;
  const bool tail_first = tail_unsure_ && end > size_.load();
  if (!tail_first && !pages_.NeedsRoom(offset, end) && Ok(pages_.Take(offset, end, &io->stored_))) {
    io->file_ = this;
    io->got_ = {};
    io->tried_again_ = false;
    io->origin_ = origin;
    if (io->stored_->StartWrite(io, offset, {io->buffer().data, size})) return true;
  }
  mu_.UnlockShared();
  return false;
}

Errno FileData::WriteUnits(uint64_t offset, absl::Span<const std::byte> bytes) {
  Reclaimer* const reclaimer = pages_.store()->reclaimer();
  for (bool again = false;; again = true) {
    const uint64_t freed_before = reclaimer->Freed();
    BlockFile* stored = nullptr;
    Errno error = pages_.Take(offset, offset + bytes.size(), &stored);
    if (Ok(error)) error = Logged("write", stored->Write(offset, bytes));
    // The room of files that were deleted a moment ago counts too.
    if (again || error != Err(ENOSPC) || !reclaimer->AwaitFreed(freed_before)) {
      if (stored != nullptr) pages_.NoteUsed(offset, offset + bytes.size());
      return error;
    }
  }
}

void FileData::NoteWritten(Errno error, uint64_t offset, uint64_t end, WriteOrigin origin) {
  if (Ok(error)) {
    GrowTo(end);
    failed_pages()->Renew(&failed_, offset, end, size_);
    return;
  }
  const uint64_t old_size = size_.load();
  if (origin == WriteOrigin::kWriter) {
    if (RoundUp(end, unit()) > old_size) tail_unsure_ = true;
    return;
  }
  // The kernel's file reaches to `end` already. Bytes of an earlier failure may lie between, where the tail is unsure.
  failed_pages()->Add(&failed_, tail_unsure_ ? std::min(offset, old_size) : offset, end,
                      [&] { GrowTo(std::min(end, kRegionBytesMax)); });
}

void FileData::OnBlockEnd(BlockIo* block) {
  auto* const io = static_cast<FileIo*>(block);
  if (io->op() == BlockIo::Op::kWrite) return io->file_->OnWriteEnd(io);
  io->file_->EndIo(io, Logged("read", io->status()));
}

void FileData::OnWriteEnd(FileIo* io) {
  const absl::Status& status = io->status();
  const bool full = ErrnoOf(status) == Err(ENOSPC) && !io->tried_again_;
  if (full || (!status.ok() && io->stored_->RewriteMayHelp(status))) {
    io->tried_again_ = true;
    pages_.store()->reclaimer()->CallWhenFreed(io);  // WriteAgain follows
    return;
  }
  const Errno error = Logged("write", status);
  pages_.NoteUsed(io->offset(), io->end());
  NoteWritten(error, io->offset(), io->end(), io->origin());
  EndIo(io, error);
}

void FileData::WriteAgain(FileIo* io) {
  const absl::Status failed = io->status();
  // There may be room by now. The next write may be due too, so this one is not waited for.
  if (!io->stored_->RewriteMayHelp(failed) && io->stored_->StartWrite(io, io->offset(), io->from())) return;
  BlockIo again;
  again.set_earlier_failure(failed);
  io->stored_->StartWrite(&again, io->offset(), io->from());
  const Errno error = Logged("write", again.Wait());
  pages_.NoteUsed(io->offset(), io->end());
  NoteWritten(error, io->offset(), io->end(), io->origin());
  EndIo(io, error);
}

void FileData::EndIo(FileIo* io, Errno error) {
  mu_.UnlockShared();
  io->OnEnd(error, Ok(error) ? io->got_ : absl::Span<const std::byte>());
}

FileData::Stale FileData::NoteDirectWrite(uint32_t* token) {
  *token = direct_writes_;
  if (*token == 0) return Stale::kNothing;
  if (*token >= kDirectWritesMax) return Stale::kWholeFile;
  // If the exchange fails, there was another write or a read.
  uint32_t expected = *token;
  direct_writes_.compare_exchange_strong(expected, *token + 1);
  return Stale::kItsRange;
}

Errno FileData::LoadUnit(uint64_t at, absl::Span<std::byte> bytes) {
  const uint64_t file_size = size_.load();
  if (failed_pages()->Any(failed_, at, at + 1)) return Err(EIO);
  BlockFile* const stored = at < file_size ? pages_.FindStored(at, at + 1) : nullptr;
  if (stored == nullptr) {
    memset(bytes.data(), 0, bytes.size());
    return Errno::kOk;
  }
  NRAM_RETURN_IF_ERRNO(ErrnoOf(stored->Read(at, bytes)));
  if (file_size - at < bytes.size()) memset(&bytes[file_size - at], 0, bytes.size() - (file_size - at));
  return Errno::kOk;
}

Errno FileData::RoundOut(uint64_t* offset, PaddedBytes* bytes) {
  const uint64_t end = *offset + bytes->size;
  const uint64_t first = RoundDown(*offset, unit());
  const uint64_t last = RoundDown(end, unit());
  const size_t head = *offset - first;
  const size_t tail = end > last ? last + unit() - end : 0;
  std::byte memory[kPageBytes];
  const absl::Span<std::byte> there(memory, unit());
  if (head > 0) {
    NRAM_RETURN_IF_ERRNO(LoadUnit(first, there));
    memcpy(bytes->data - head, memory, head);
  }
  if (tail > 0) {
    if (end >= size_.load()) {
      memset(memory, 0, sizeof memory);
    } else if (head == 0 || last != first) {  // else the unit is here already
      NRAM_RETURN_IF_ERRNO(LoadUnit(last, there));
    }
    memcpy(bytes->data + bytes->size, memory + unit() - tail, tail);
  }
  bytes->data -= head;
  bytes->size += head + tail;
  *offset = first;
  return Errno::kOk;
}

Errno FileData::CleanTail() {
  if (!tail_unsure_) return Errno::kOk;
  NRAM_RETURN_IF_ERRNO(ZeroUnpromised(size_.load(), kRegionBytesMax));
  tail_unsure_ = false;
  return Errno::kOk;
}

Errno FileData::ZeroUnpromised(uint64_t offset, uint64_t end) {
  const PageSet promised = pages_.Promised(offset, end);
  for (uint64_t page = promised.NextIn(0); page != PageSet::kNone; page = promised.NextIn(page)) {
    NRAM_RETURN_IF_ERRNO(ZeroRange(offset, page * kPageBytes));
    page = promised.NextOut(page);
    offset = std::max(offset, page * kPageBytes);
  }
  return ZeroRange(offset, end);
}

Errno FileData::ZeroWithinUnit(uint64_t offset, uint64_t end) {
  BlockFile* const stored = offset == end ? nullptr : pages_.FindStored(offset, end);
  // The bytes of a promised page are zeros, and a write would take its room.
  if (stored == nullptr || !pages_.Promised(offset, end).empty()) return Errno::kOk;
  std::byte memory[kPageBytes];
  const absl::Span<std::byte> there(memory, unit());
  const uint64_t at = RoundDown(offset, unit());
  NRAM_RETURN_IF_ERRNO(ErrnoOf(stored->Read(at, there)));
  memset(memory + (offset - at), 0, end - offset);
  return ErrnoOf(stored->Write(at, there));
}

Errno FileData::ZeroRange(uint64_t offset, uint64_t end) {
  if (offset >= end) return Errno::kOk;
  const uint64_t first = RoundUp(offset, unit());
  const uint64_t last = RoundDown(end, unit());
  if (BlockFile* const stored = pages_.FindStored(offset, end); stored == nullptr) {
    // A hole.
  } else if (first > last) {
    NRAM_RETURN_IF_ERRNO(ZeroWithinUnit(offset, end));
  } else {
    NRAM_RETURN_IF_ERRNO(ZeroWithinUnit(offset, first));
    NRAM_RETURN_IF_ERRNO(ZeroWithinUnit(last, end));
    if (first < last) {
      pages_.Break(offset, end);
      NRAM_RETURN_IF_ERRNO(ErrnoOf(stored->Trim(first, last - first)));
      pages_.Return(offset, end);
    }
  }
  failed_pages()->Renew(&failed_, offset, end, size_);
  return Errno::kOk;
}

Errno FileData::Truncate(uint64_t size) {
  NRAM_RETURN_IF_ERRNO(CheckRange(size, 0));
  GateLock lock(&mu_);
  if (size == 0) {
    // A fresh start, also after a loss.
    std::unique_ptr<BlockFile> stored = pages_.TakeStored();
    if (stored != nullptr) pages_.store()->reclaimer()->Free(std::move(stored));
    tail_unsure_ = false;
  } else if (size < size_.load()) {
    NRAM_RETURN_IF_ERRNO(ZeroRange(size, kRegionBytesMax));
  } else {
    NRAM_RETURN_IF_ERRNO(CleanTail());
    // What fallocate has kept behind the end. The kernel may have a larger size than this, so it may mean its own.
    NRAM_RETURN_IF_ERRNO(ZeroRange(RoundUp(size, kPageBytes), kRegionBytesMax));
  }
  failed_pages()->CutOff(&failed_, size);
  size_ = size;
  return Errno::kOk;
}

Errno FileData::Reserve(uint64_t offset, uint64_t end) {
  FileStore* const store = pages_.store();
  const uint64_t missing = RoundUp(end, kPageBytes) / kPageBytes - offset / kPageBytes - pages_.Count(offset, end);
  for (bool again = false; missing > 0; again = true) {
    const uint64_t freed_before = store->reclaimer()->Freed();
    const Errno error = store->quota()->left() >= missing ? pages_.Reserve(offset, end) : Err(ENOSPC);
    if (Ok(error)) break;
    if (again || error != Err(ENOSPC) || !store->reclaimer()->AwaitFreed(freed_before)) return error;
  }
  return Errno::kOk;
}

Errno FileData::Allocate(uint64_t offset, uint64_t length, bool keep_size, Contents contents) {
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, length));
  const uint64_t end = offset + length;
  GateLock lock(&mu_);
  NRAM_RETURN_IF_ERRNO(CleanTail());
  NRAM_RETURN_IF_ERRNO(FreeFailed(*failed_pages(), failed_, offset, end, &pages_));
  NRAM_RETURN_IF_ERRNO(Reserve(offset, end));
  if (contents == Contents::kZeros) {
    // Pages of zeros take no room at the servers, so pages that had data are reserved anew. The others have room and
    // are zeros.
    NRAM_RETURN_IF_ERRNO(ZeroUnpromised(offset, end));
    NRAM_RETURN_IF_ERRNO(Reserve(offset, end));
    failed_pages()->Renew(&failed_, offset, end, size_);
  }
  if (!keep_size) GrowTo(end);
  return Errno::kOk;
}

Errno FileData::PunchHole(uint64_t offset, uint64_t length) {
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, length));
  GateLock lock(&mu_);
  return ZeroRange(offset, offset + length);
}

Errno FileData::PutHole(uint64_t offset, uint64_t length) {
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, length));
  const uint64_t end = offset + length;
  GateLock lock(&mu_);
  if (end > size_.load()) NRAM_RETURN_IF_ERRNO(CleanTail());
  NRAM_RETURN_IF_ERRNO(ZeroRange(offset, end));
  GrowTo(end);
  return Errno::kOk;
}

void FileData::Share(uint64_t offset, uint64_t end, SharedBytes* shared) {
  shared->end = offset;
  GateLock lock(&mu_);
  end = std::min(end, size_.load());
  // The copy of bytes meets the error.
  if (failed_pages()->Any(failed_, offset, end)) {
    end = failed_pages()->NextIn(failed_, offset / kPageBytes) * kPageBytes;
  }
  if (offset % kPageBytes != 0 || offset >= end) return;
  if (pages_.FindStored(offset, end) != nullptr) {
    std::optional<SharedPages> pages = pages_.MakeClone()->Share(
        offset / kPageBytes, RoundUp(end, kPageBytes) / kPageBytes, pages_.Promised(0, kRegionBytesMax));
    if (!pages.has_value()) return;
    shared->pages = *std::move(pages);
  }
  shared->end = end;
  shared->followed = end % kPageBytes != 0 && (end < size_.load() || tail_unsure_);
}

Errno FileData::Adopt(uint64_t offset, SharedBytes shared, uint64_t* adopted_end) {
  *adopted_end = offset;
  uint64_t end = shared.end;
  NRAM_RETURN_IF_ERRNO(CheckRange(offset, end - offset));
  GateLock lock(&mu_);
  if (end > size_.load()) NRAM_RETURN_IF_ERRNO(CleanTail());
  if (end < size_.load()) end = RoundDown(end, kPageBytes);
  if (offset >= end) return Errno::kOk;
  const uint64_t first_page = offset / kPageBytes;
  const uint64_t end_page = RoundUp(end, kPageBytes) / kPageBytes;
  PageSet all;
  for (const auto& sight : shared.pages) {
    sight->Drop(end_page, PageSet::kNone);
    all.AddAll(sight->pages());
  }
  if (all.empty()) {
    // It need not become a clone for a hole.
    NRAM_RETURN_IF_ERRNO(ZeroRange(offset, end_page * kPageBytes));
  } else {
    // A write to a shared page needs other room than the page's.
    if (!pages_.Promised(offset, end).empty()) return Err(EOPNOTSUPP);
    NRAM_RETURN_IF_ERRNO(pages_.TakeAll(all));
    CloneFile* const clone = pages_.MakeClone();
    const absl::Status adopted = clone->Adopt(std::move(shared.pages), first_page, end_page);
    // They count on, as those of a write that failed.
    if (absl::IsUnimplemented(adopted)) return Err(EOPNOTSUPP);
    NRAM_RETURN_IF_ERRNO(Logged("share", adopted));
    pages_.ReturnAllBut(all, offset, end_page * kPageBytes);
  }
  failed_pages()->Renew(&failed_, offset, end_page * kPageBytes, size_);
  if (shared.followed && end == shared.end) tail_unsure_ = true;
  GrowTo(end);
  *adopted_end = end;
  return Errno::kOk;
}

Errno FileData::SeekData(uint64_t offset, uint64_t* found) const {
  SharedGateLock lock(&mu_);
  // The size first: writes beside this make the file longer when their pages are there.
  const uint64_t size = size_.load();
  const uint64_t page =
      std::min(pages_.NextIn(offset / kPageBytes), failed_pages()->NextIn(failed_, offset / kPageBytes));
  const uint64_t data = page == PageSet::kNone ? size : std::min(size, page * kPageBytes);
  *found = std::max(offset, data);
  return *found < size ? Errno::kOk : Err(ENXIO);
}

Errno FileData::SeekHole(uint64_t offset, uint64_t* found) const {
  SharedGateLock lock(&mu_);
  const uint64_t size = size_.load();  // first, as in SeekData
  if (offset >= size) return Err(ENXIO);
  uint64_t page = pages_.NextOut(offset / kPageBytes);
  for (uint64_t failed_end; (failed_end = failed_pages()->NextOut(failed_, page)) != page;) {
    page = pages_.NextOut(failed_end);
  }
  *found = std::min(std::max(offset, page * kPageBytes), size);
  return Errno::kOk;
}

}  // namespace nram
