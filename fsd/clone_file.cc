#include "fsd/clone_file.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t kTrimAtOnce = kPagesPerSpan;             // pages that no file sees, before they are freed
constexpr uint64_t kFoldPagesMax = 16 * kMiB / kPageBytes;  // the file's users wait for them
constexpr size_t kManyRuns = 3;                             // of one file: it is cheaper to read the gaps too

uint64_t EndPage(uint64_t end) { return RoundUp(end, kPageBytes) / kPageBytes; }

}  // namespace

bool CloneBase::sole() const {
  MutexLock lock(&mu_);
  return sights_.size() == 1;
}

void CloneBase::TrimUnseen() {
  PageSet unseen;
  {
    MutexLock lock(&mu_);
    if (unseen_.size() < kTrimAtOnce) return;
    std::swap(unseen, unseen_);
  }
  // No file can see them again.
  unseen.ForEachRun(0, PageSet::kNone, [&](uint64_t first, uint64_t end) {
    const absl::Status trimmed = file_->Trim(first * kPageBytes, (end - first) * kPageBytes);
    if (!trimmed.ok()) {
      // They are freed with the file.
      LOG_EVERY_N(WARNING, 100) << "freeing pages that no clone sees: " << trimmed;
    }
  });
}

Sight::Sight(std::shared_ptr<CloneBase> base, const PageSet& pages, uint64_t first, uint64_t end)
    : base_(std::move(base)) {
  MutexLock lock(&base_->mu_);
  pages_.AddAll(pages, first, end);
  base_->sights_.push_back(this);
}

Sight::~Sight() {
  if (left_) return;
  if (base_->reclaimer_->frees() && !base_->sole()) {
    Drop(0, PageSet::kNone);
    base_->TrimUnseen();
  }
  std::unique_ptr<BlockFile> file = Leave();
  if (file != nullptr) base_->reclaimer_->Free(std::move(file));
}

std::unique_ptr<BlockFile> Sight::Leave() {
  MutexLock lock(&base_->mu_);
  DropLocked(0, PageSet::kNone);
  std::erase(base_->sights_, this);
  left_ = true;
  // Sights are made of sights, so there will be no others.
  return base_->sights_.empty() ? std::move(base_->file_) : nullptr;
}

void Sight::Drop(uint64_t first, uint64_t end) {
  MutexLock lock(&base_->mu_);
  DropLocked(first, end);
}

void Sight::DropFreed(uint64_t first, uint64_t end) {
  MutexLock lock(&base_->mu_);
  pages_.Remove(first, end);
}

void Sight::DropLocked(uint64_t first, uint64_t end) {
  PageSet dropped;
  dropped.AddAll(pages_, first, end);
  pages_.Remove(first, end);
  for (const Sight* other : base_->sights_) {
    if (dropped.empty()) return;
    if (other != this) dropped.RemoveAll(other->pages_, first, end);
  }
  base_->unseen_.AddAll(dropped);
}

void Sight::Add(const Sight& other) {
  MutexLock lock(&base_->mu_);
  pages_.AddAll(other.pages_);
}

CloneFile::CloneFile(BlockStore* store, Reclaimer* reclaimer, std::unique_ptr<BlockFile> file, const PageSet& pages,
                     bool reserved)
    : store_(store), reclaimer_(reclaimer), own_(std::move(file)), own_reserved_(reserved) {
  if (own_ != nullptr) own_pages_.AddAll(pages);
}

CloneFile::Place CloneFile::PlaceOf(uint64_t page, uint64_t end) const {
  const auto in = [&](const PageSet& pages, uint64_t* next) {
    *next = pages.NextIn(page);
    return *next == page;
  };
  uint64_t next = 0;
  if (in(own_pages_, &next)) return {own_.get(), true, std::min(end, own_pages_.NextOut(page))};
  uint64_t hole_end = std::min(end, next);
  for (const auto& sight : sights_) {
    if (in(sight->pages(), &next)) {
      BlockFile* const file = sight->base()->file();
      end = std::min(end, sight->pages().NextOut(page));
      if (alone_.empty() || sight->base()->sole()) return {file, sight->base()->sole(), end};
      const bool alone = in(alone_, &next);
      return {file, alone, std::min(end, alone ? alone_.NextOut(page) : next)};
    }
    hole_end = std::min(hole_end, next);
  }
  return {nullptr, false, hole_end};
}

bool CloneFile::Start(BlockIo* io) {
  const bool reads = io->op() == BlockIo::Op::kRead;
  if (io->waited_for()) {
    io->End(reads ? ReadAll(io->offset(), io->to()) : WriteAll(io->offset(), io->from()));
    return true;
  }
  // An operation in one file needs no wait: it becomes that file's own operation.
  const uint64_t end = EndPage(io->end());
  const Place place = PlaceOf(io->offset() / kPageBytes, end);
  return place.file != nullptr && place.end == end && (reads || place.in_place) && place.file->Start(io);
}

absl::Status CloneFile::ReadAll(uint64_t offset, absl::Span<std::byte> to) const {
  std::vector<Run> runs;
  const uint64_t end = offset + to.size();
  for (uint64_t at = offset; at < end;) {
    const Place place = PlaceOf(at / kPageBytes, EndPage(end));
    const uint64_t run_end = std::min(end, place.end * kPageBytes);
    const absl::Span<std::byte> part = to.subspan(at - offset, run_end - at);
    if (place.file == nullptr) {
      memset(part.data(), 0, part.size());
    } else {
      runs.push_back({place.file, at, part});
    }
    at = run_end;
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.file < b.file; });
  for (size_t i = 0; i < runs.size();) {
    size_t next = i;
    while (next < runs.size() && runs[next].file == runs[i].file) ++next;
    NRAM_RETURN_IF_ERROR(ReadRuns(absl::MakeConstSpan(runs).subspan(i, next - i)));
    i = next;
  }
  return absl::OkStatus();
}

absl::Status CloneFile::ReadRuns(absl::Span<const Run> runs) {
  if (runs.size() >= kManyRuns) {
    const uint64_t first = runs.front().offset;
    const uint64_t end = runs.back().offset + runs.back().to.size();
    const std::unique_ptr<std::byte[]> all(new std::byte[end - first]);
    if (runs[0].file->Read(first, {all.get(), end - first}).ok()) {
      for (const Run& run : runs) memcpy(run.to.data(), &all[run.offset - first], run.to.size());
      return absl::OkStatus();
    }
    // Perhaps only an unwanted page is damaged.
  }
  for (const Run& run : runs) NRAM_RETURN_IF_ERROR(run.file->Read(run.offset, run.to));
  return absl::OkStatus();
}

bool CloneFile::WritesBeside(uint64_t offset, uint64_t length) const {
  const uint64_t end = EndPage(offset + length);
  for (uint64_t page = offset / kPageBytes; page < end;) {
    const Place place = PlaceOf(page, end);
    if (!place.in_place) return false;
    page = place.end;
  }
  return true;
}

absl::Status CloneFile::WriteAll(uint64_t offset, absl::Span<const std::byte> from) {
  const uint64_t end = offset + from.size();
  for (uint64_t at = offset; at < end;) {
    Place place = PlaceOf(at / kPageBytes, EndPage(end));
    const bool in_place = place.in_place;
    BlockFile* const file = place.file;
    uint64_t end_page = place.end;
    // Pages that become its own do so together, wherever they are now.
    while (!in_place && end_page * kPageBytes < end) {
      place = PlaceOf(end_page, EndPage(end));
      if (place.in_place) break;
      end_page = place.end;
    }
    const uint64_t run_end = std::min(end, end_page * kPageBytes);
    const absl::Span<const std::byte> part = from.subspan(at - offset, run_end - at);
    NRAM_RETURN_IF_ERROR(in_place ? file->Write(at, part) : WriteOwn(at, part));
    at = run_end;
  }
  return absl::OkStatus();
}

absl::Status CloneFile::WriteOwn(uint64_t offset, absl::Span<const std::byte> from) {
  const uint64_t end = offset + from.size();
  const uint64_t first_whole = RoundUp(offset, kPageBytes);
  const uint64_t last_whole = RoundDown(end, kPageBytes);
  if (first_whole > last_whole) return WriteOwnPart(offset, from);
  const size_t head = first_whole - offset;
  const size_t tail = end - last_whole;
  if (head > 0) NRAM_RETURN_IF_ERROR(WriteOwnPart(offset, from.subspan(0, head)));
  if (last_whole > first_whole) {
    NRAM_RETURN_IF_ERROR(WriteOwnPages(first_whole, from.subspan(head, last_whole - first_whole)));
  }
  return tail > 0 ? WriteOwnPart(last_whole, from.subspan(from.size() - tail)) : absl::OkStatus();
}

absl::Status CloneFile::WriteOwnPart(uint64_t offset, absl::Span<const std::byte> from) {
  std::byte memory[kPageBytes];
  const uint64_t page_at = RoundDown(offset, kPageBytes);
  NRAM_RETURN_IF_ERROR(ReadAll(page_at, absl::MakeSpan(memory)));
  memcpy(memory + (offset - page_at), from.data(), from.size());
  return WriteOwnPages(page_at, memory);
}

absl::Status CloneFile::WriteOwnPages(uint64_t offset, absl::Span<const std::byte> from) {
  NRAM_RETURN_IF_ERROR(MakeOwn());
  NRAM_RETURN_IF_ERROR(ReserveOwn(offset, from.size()));
  NRAM_RETURN_IF_ERROR(own_->Write(offset, from));
  const uint64_t first = offset / kPageBytes;
  const uint64_t end = first + from.size() / kPageBytes;
  DropSights(first, end);
  own_pages_.Add(first, end);
  return absl::OkStatus();
}

absl::Status CloneFile::ReserveOwn(uint64_t offset, uint64_t length) {
  return own_reserved_ ? own_->Reserve(offset, length) : absl::OkStatus();
}

absl::Status CloneFile::MakeOwn() {
  if (own_ == nullptr) {
    NRAM_ASSIGN_OR_RETURN(own_, store_->Create());
  }
  return absl::OkStatus();
}

bool CloneFile::Fold() {
  const auto fewest = std::min_element(sights_.begin(), sights_.end(), [](const auto& a, const auto& b) {
    return a->pages().size() < b->pages().size();
  });
  const PageSet& pages = (*fewest)->pages();
  if (pages.size() > kFoldPagesMax || !MakeOwn().ok()) return false;
  PageSet others;
  others.AddAll(pages);
  others.RemoveAll(alone_);
  if (others.size() < pages.size()) return false;  // some are promised their room there
  const std::unique_ptr<std::byte[]> memory(new std::byte[kPagesPerSpan * kPageBytes]);
  for (uint64_t page = pages.NextIn(0); page != PageSet::kNone;) {
    const uint64_t first = RoundDown(page, kPagesPerSpan);
    std::vector<Run> runs;
    pages.ForEachRun(page, first + kPagesPerSpan, [&](uint64_t from, uint64_t to) {
      std::byte* const at = &memory[(from - first) * kPageBytes];
      runs.push_back({(*fewest)->base()->file(), from * kPageBytes, {at, (to - from) * kPageBytes}});
    });
    if (!ReadRuns(runs).ok()) return false;
    for (const Run& run : runs) {
      if (!ReserveOwn(run.offset, run.to.size()).ok() || !own_->Write(run.offset, run.to).ok()) return false;
    }
    page = pages.NextIn(first + kPagesPerSpan);
  }
  own_pages_.AddAll(pages);
  (*fewest)->Drop(0, PageSet::kNone);
  (*fewest)->base()->TrimUnseen();
  sights_.erase(fewest);
  return true;
}

void CloneFile::DropSights(uint64_t first, uint64_t end) {
  for (auto& sight : sights_) {
    if (sight->pages().NextIn(first) >= end) continue;
    sight->Drop(first, end);
    if (!sight->pages().empty()) sight->base()->TrimUnseen();
  }
  std::erase_if(sights_, [](const auto& sight) { return sight->pages().empty(); });
}

absl::Status CloneFile::TrimPart(uint64_t offset, uint64_t end) {
  if (offset == end) return absl::OkStatus();
  const uint64_t page = offset / kPageBytes;
  const Place place = PlaceOf(page, page + 1);
  if (place.file == nullptr) return absl::OkStatus();
  if (place.in_place) return place.file->Trim(offset, end - offset);
  const std::byte zeros[kPageBytes] = {};
  return WriteOwnPart(offset, absl::MakeConstSpan(zeros).subspan(0, end - offset));
}

absl::Status CloneFile::Trim(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  const uint64_t first_whole = RoundUp(offset, kPageBytes);
  const uint64_t last_whole = RoundDown(end, kPageBytes);
  if (first_whole > last_whole) return TrimPart(offset, end);
  NRAM_RETURN_IF_ERROR(TrimPart(offset, first_whole));
  NRAM_RETURN_IF_ERROR(TrimPart(last_whole, end));
  if (first_whole == last_whole) return absl::OkStatus();
  // Trims all whole pages of its own file, because failed writes may have left bytes.
  if (own_ != nullptr) NRAM_RETURN_IF_ERROR(own_->Trim(first_whole, last_whole - first_whole));
  for (const auto& sight : sights_) {
    if (sight->pages().NextIn(first_whole / kPageBytes) >= last_whole / kPageBytes || !sight->base()->sole()) continue;
    BlockFile* const base = sight->base()->file();
    NRAM_RETURN_IF_ERROR(base->Trim(first_whole, last_whole - first_whole));
    sight->DropFreed(first_whole / kPageBytes, last_whole / kPageBytes);
  }
  own_pages_.Remove(first_whole / kPageBytes, last_whole / kPageBytes);
  alone_.Remove(first_whole / kPageBytes, last_whole / kPageBytes);
  DropSights(first_whole / kPageBytes, last_whole / kPageBytes);
  return absl::OkStatus();
}

absl::Status CloneFile::Reserve(uint64_t offset, uint64_t length) {
  NRAM_RETURN_IF_ERROR(MakeOwn());
  // They become its own, unwritten: a failed write may have left bytes.
  NRAM_RETURN_IF_ERROR(own_->Trim(offset, length));
  NRAM_RETURN_IF_ERROR(own_->Reserve(offset, length));
  own_reserved_ = true;
  own_pages_.Add(offset / kPageBytes, EndPage(offset + length));
  return absl::OkStatus();
}

void CloneFile::Unreserve(uint64_t offset, uint64_t length) {
  const uint64_t end = EndPage(offset + length);
  for (uint64_t page = offset / kPageBytes; page < end;) {
    const Place place = PlaceOf(page, end);
    if (place.in_place) place.file->Unreserve(page * kPageBytes, (place.end - page) * kPageBytes);
    page = place.end;
  }
  own_pages_.Remove(offset / kPageBytes, end);
}

void CloneFile::UnreserveAll() {
  if (own_ != nullptr) own_->UnreserveAll();
  own_reserved_ = false;
}

std::optional<SharedPages> CloneFile::Share(uint64_t first, uint64_t end, const PageSet& promised) {
  // Those that were written since are as all others.
  PageSet written;
  written.AddAll(alone_);
  written.RemoveAll(promised);
  alone_.RemoveAll(written);
  if (own_pages_.NextIn(first) < end) {
    if (sights_.size() >= kSightsMax && !Fold()) return std::nullopt;
    own_pages_.ForEachRun(0, PageSet::kNone, [&](uint64_t from, uint64_t to) { alone_.AddAll(promised, from, to); });
    auto base = std::make_shared<CloneBase>(std::move(own_), reclaimer_);
    sights_.push_back(std::make_unique<Sight>(std::move(base), own_pages_, 0, PageSet::kNone));
    own_pages_.Remove(0, PageSet::kNone);
    own_reserved_ = false;
  }
  SharedPages shared;
  for (const auto& sight : sights_) {
    PageSet pages;
    pages.AddAll(sight->pages(), first, end);
    pages.RemoveAll(alone_, first, end);
    if (!pages.empty()) shared.push_back(std::make_unique<Sight>(sight->ShareBase(), pages, first, end));
  }
  return shared;
}

absl::Status CloneFile::Adopt(SharedPages pages, uint64_t first, uint64_t end) {
  const auto of_same_base = [&](const Sight& sight) {
    return std::find_if(sights_.begin(), sights_.end(), [&](const auto& mine) { return mine->base() == sight.base(); });
  };
  size_t sights = sights_.size();
  for (const auto& sight : pages) sights += of_same_base(*sight) == sights_.end();
  if (sights > kSightsMax) return absl::UnimplementedError("too many bases");
  NRAM_RETURN_IF_ERROR(Trim(first * kPageBytes, (end - first) * kPageBytes));
  for (auto& sight : pages) {
    if (sight->pages().empty()) continue;  // it would keep its base for nothing
    const auto mine = of_same_base(*sight);
    if (mine == sights_.end()) {
      sights_.push_back(std::move(sight));
    } else {
      (*mine)->Add(*sight);
    }
  }
  return absl::OkStatus();
}

void CloneFile::TakeFiles(std::vector<std::unique_ptr<BlockFile>>* files) {
  if (own_ != nullptr) files->push_back(std::move(own_));
  for (auto& sight : sights_) {
    // Pages that a last sight has seen are destroyed at once.
    if (!sight->base()->sole()) {
      sight->Drop(0, PageSet::kNone);
      sight->base()->TrimUnseen();
    }
    if (std::unique_ptr<BlockFile> file = sight->Leave(); file != nullptr) files->push_back(std::move(file));
  }
  sights_.clear();
}

void CloningStore::Destroy(std::vector<std::unique_ptr<BlockFile>> files) {
  std::vector<std::unique_ptr<BlockFile>> plain;
  plain.reserve(files.size());
  for (auto& file : files) {
    if (CloneFile* const clone = file->AsClone(); clone != nullptr) {
      clone->TakeFiles(&plain);
    } else {
      plain.push_back(std::move(file));
    }
  }
  inner_->Destroy(std::move(plain));
}

}  // namespace nram
