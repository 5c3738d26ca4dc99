#include "client/pool/publication.h"

#include <poll.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr uint64_t kBytes = kRecordSlotBytes * (1 + kRecordSlots);
// Read at a time.
constexpr uint64_t kPieceBytes = 4 * kMiB;
static_assert(kBytes % kPieceBytes == 0 && kPieceBytes % kSpanBytes == 0);

uint64_t OffsetOf(uint32_t slot) { return kRecordSlotBytes * (1 + uint64_t{slot}); }

bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

bool IsLate(int64_t deadline_ns) { return MonotonicNs() >= deadline_ns; }

IoOptions Until(int64_t deadline_ns) {
  return {.timeout_ms = std::max<int64_t>((deadline_ns - MonotonicNs()) / kNsPerMs, 1)};
}

void Pause(int64_t ms, int64_t deadline_ns) {
  const int64_t left_ms = (deadline_ns - MonotonicNs()) / kNsPerMs;
  poll(nullptr, 0, static_cast<int>(std::clamp<int64_t>(left_ms, 0, ms)));
}

absl::Span<const std::byte> BytesOf(const std::string& data) {
  return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}

}  // namespace

absl::Status Publication::CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a publication has 1 to ", kNameBytesMax, " bytes, and this one has ", name.size()));
}

absl::StatusOr<std::unique_ptr<Publication>> Publication::Create(Pool* pool, const std::string& name,
                                                                 const RegionOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckName(name));
  RegionOptions companion = options;
  companion.name = RegionName(name);
  companion.size_bytes = kBytes;
  companion.copies = std::clamp(pool->CountHosts(/*with_away=*/false), 1, kReplicasMax);
  // Its spans have generations, so readers find those that hold nothing.
  companion.versioned = true;
  std::unique_ptr<Publication> publication(new Publication(pool, name, /*read_only=*/false));
  MutexLock lock(&publication->mu_);
  NRAM_ASSIGN_OR_RETURN(publication->region_, pool->CreateRegion(companion));
  const absl::Status laid = publication->Lay(DeadlineAfterMs(pool->options().io_timeout_ms));
  if (!laid.ok()) {
    (void)publication->region_->Destroy();
    return laid;
  }
  return publication;
}

absl::StatusOr<std::unique_ptr<Publication>> Publication::Attach(Pool* pool, const std::string& name, AttachMode mode) {
  NRAM_RETURN_IF_ERROR(CheckName(name));
  std::unique_ptr<Publication> publication(new Publication(pool, name, mode == AttachMode::kReadOnly));
  MutexLock lock(&publication->mu_);
  NRAM_ASSIGN_OR_RETURN(publication->region_, pool->AttachRegion(RegionName(name), mode));
  if (mode != AttachMode::kReadOnly) {
    NRAM_RETURN_IF_ERROR(publication->Load(DeadlineAfterMs(pool->options().io_timeout_ms)));
  }
  return publication;
}

absl::Status Publication::Lay(int64_t deadline_ns) {
  for (uint64_t offset = kSpanBytes; offset < kBytes; offset += kSpanBytes) {
    if (!IsPlaced(offset)) NRAM_RETURN_IF_ERROR(Write(offset, std::string(1, '\0'), deadline_ns));
  }
  return WriteHead(deadline_ns);
}

bool Publication::IsLaid() const {
  for (uint64_t offset = 0; offset < kBytes; offset += kSpanBytes) {
    if (!IsPlaced(offset)) return false;
  }
  return true;
}

absl::Status Publication::Load(int64_t deadline_ns) {
  NRAM_ASSIGN_OR_RETURN(head_, ReadHead(deadline_ns));
  highest_ = sure_ = head_.newest;
  // It may have died before all was there.
  if (head_.newest == 0 || !IsLaid()) NRAM_RETURN_IF_ERROR(Lay(deadline_ns));
  return VisitSlots(deadline_ns, [&](uint32_t slot, const absl::StatusOr<PublicationRecord>& record)
                                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                       const bool counts = record.ok() && record->number <= head_.newest &&
                                                           slots_.emplace(record->number, slot).second;
                                       if (!counts) dirty_.push_back(slot);
                                       if (!record.ok()) return;
                                       highest_ = std::max(highest_, record->number);
                                       NoteRecorded(*record);
                                     });
}

void Publication::NoteRecorded(const PublicationRecord& record) {
  for (const VersionPlace& place : record.regions) {
    VersionNumber& highest = recorded_[place.region];
    highest = std::max(highest, place.number);
  }
}

absl::Status Publication::CheckOwner() const {
  if (!read_only_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(Quoted(name_), " was attached read-only: its owner publishes"));
}

absl::Status Publication::Write(uint64_t offset, std::string data, int64_t deadline_ns) {
  data.resize(RoundUp(data.size(), region_->unit_bytes()));
  return region_->Write(offset, BytesOf(data), Until(deadline_ns));
}

absl::Status Publication::WriteHead(int64_t deadline_ns) {
  while (true) {
    const absl::Status status = Write(0, EncodeHead(head_), deadline_ns);
    if (status.ok()) sure_ = head_.newest;
    if (!IsUnanswered(status)) return status;
    unanswered_ = head_.newest;
    if (IsLate(deadline_ns)) return status;
    Pause(kPauseMs, deadline_ns);
  }
}

absl::Status Publication::ClearSlot(uint32_t slot, int64_t deadline_ns) {
  NRAM_RETURN_IF_ERROR(Write(OffsetOf(slot), std::string(1, '\0'), deadline_ns));
  // The trim of the rest only frees room.
  const uint64_t rest = kRecordSlotBytes - kPageBytes;
  (void)region_->Trim(OffsetOf(slot) + kPageBytes, rest, Until(deadline_ns));
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Publication::FreeSlot(uint64_t number) const {
  std::set<uint32_t> used;
  for (const auto& [other, slot] : slots_) used.insert(slot);
  for (uint32_t i = 0; i < kRecordSlots; ++i) {
    const auto slot = static_cast<uint32_t>((number + i) % kRecordSlots);
    if (!used.contains(slot)) return slot;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(Quoted(name_), " has ", kRecordSlots, " published versions: drop some"));
}

absl::Status Publication::Commit(const PublicationRecord& record, int64_t deadline_ns) {
  NRAM_RETURN_IF_ERROR(CheckOwner());
  NRAM_RETURN_IF_ERROR(CheckRecord(record));
  const std::string encoded = EncodeRecord(record);
  if (encoded.size() > kPublicationBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the record of a publication has ", encoded.size(),
                                                   " bytes; the maximum is ", kPublicationBytesMax,
                                                   ": shorten its header"));
  }
  MutexLock lock(&mu_);
  if (IsHeadUnsure() && record.number == head_.newest) return WriteHead(deadline_ns);
  if (record.number <= highest_) {
    return absl::InvalidArgumentError(
        absl::StrCat("publication ", record.number, " follows ", highest_, ": its number must be above that"));
  }
  // Otherwise a commit that failed before would become valid with this one.
  while (!dirty_.empty()) {
    NRAM_RETURN_IF_ERROR(ClearSlot(dirty_.back(), deadline_ns));
    dirty_.pop_back();
  }
  NRAM_ASSIGN_OR_RETURN(const uint32_t slot, FreeSlot(record.number));
  NoteRecorded(record);
  if (const absl::Status status = Write(OffsetOf(slot), encoded, deadline_ns); !status.ok()) {
    dirty_.push_back(slot);
    return status;
  }
  const PublicationHead former = head_;
  highest_ = record.number;
  head_ = {record.number, slot};
  const absl::Status status = WriteHead(deadline_ns);
  // Also if an attempt was refused: one before it may have been done.
  if (!status.ok() && unanswered_ != record.number) {
    head_ = former;
    dirty_.push_back(slot);
    return status;
  }
  slots_[record.number] = slot;
  return status;
}

absl::Status Publication::Forget(uint64_t number, int64_t deadline_ns) {
  NRAM_RETURN_IF_ERROR(CheckOwner());
  MutexLock lock(&mu_);
  const auto it = slots_.find(number);
  if (it == slots_.end()) return NotThere(number);
  // Otherwise it might become valid after its versions were dropped.
  if (IsHeadUnsure()) NRAM_RETURN_IF_ERROR(WriteHead(deadline_ns));
  NRAM_RETURN_IF_ERROR(ClearSlot(it->second, deadline_ns));
  slots_.erase(it);
  return absl::OkStatus();
}

Publication::Standing Publication::StandingOf(uint64_t number) {
  MutexLock lock(&mu_);
  if (!slots_.contains(number)) return Standing::kNotThere;
  return number > sure_ ? Standing::kUnsure : Standing::kThere;
}

uint64_t Publication::NextNumber() {
  MutexLock lock(&mu_);
  return highest_ + 1;
}

absl::Status Publication::Destroy() {
  NRAM_RETURN_IF_ERROR(CheckOwner());
  MutexLock lock(&mu_);
  return region_->Destroy();
}

absl::Status Publication::DropUnrecorded(Region* region, int64_t deadline_ns) {
  NRAM_RETURN_IF_ERROR(CheckOwner());
  // Its servers may have freed it and have it anew since, and then know no number of before; readers know these.
  // Before anything can fail: that is no reason to use a number again.
  {
    MutexLock lock(&mu_);
    if (const auto it = recorded_.find(region->id()); it != recorded_.end()) region->map()->NoteVersion(it->second);
  }
  std::set<VersionNumber> recorded;
  NRAM_ASSIGN_OR_RETURN(const std::vector<PublicationRecord> records, List(deadline_ns));
  for (const PublicationRecord& record : records) {
    for (const VersionPlace& place : record.regions) {
      if (place.region == region->id()) recorded.insert(place.number);
    }
  }
  std::set<VersionNumber> left;
  NRAM_ASSIGN_OR_RETURN(const std::vector<ServerVersions> servers, pool_->ListVersions(region->id(), deadline_ns));
  for (const ServerVersions& server : servers) {
    for (const VersionInfo& version : server.versions) {
      if (!recorded.contains(version.number)) left.insert(version.number);
    }
  }
  // As far as no recorded one lies between, by one message.
  for (auto it = left.begin(); it != left.end();) {
    const VersionNumber first = *it;
    const auto stays = recorded.upper_bound(first);
    const auto next = stays == recorded.end() ? left.end() : left.upper_bound(*stays);
    NRAM_RETURN_IF_ERROR(region->DropVersions(first, *std::prev(next), /*force=*/false, Until(deadline_ns)).status());
    it = next;
  }
  return absl::OkStatus();
}

// --- Reading.

bool Publication::LookAgain() {
  if (IsLaid() || MonotonicNs() < look_again_ns_) return false;
  absl::StatusOr<std::unique_ptr<Region>> again = pool_->AttachRegion(RegionName(name_), AttachMode::kReadOnly);
  if (again.ok()) region_ = *std::move(again);
  look_again_ns_ = DeadlineAfterMs(kLookAgainMs);
  return again.ok();
}

absl::Status Publication::ReadBytes(uint64_t offset, std::string* data, int64_t deadline_ns) {
  const absl::Span<std::byte> to(reinterpret_cast<std::byte*>(data->data()), data->size());
  bool looked = false;  // once: a look may take longer than the time to the next one
  while (true) {
    absl::Status status = region_->Read(offset, to, Until(deadline_ns));
    if (status.ok() && read_only_ && !looked && LookAgain()) {
      looked = true;
      continue;
    }
    // The owner has moved copies, or is another one, with another region perhaps.
    const bool mends = read_only_ && (IsUnanswered(status) || absl::IsDataLoss(status));
    if (status.ok() || !mends || IsLate(deadline_ns)) return status;
    absl::StatusOr<std::unique_ptr<Region>> again = pool_->AttachRegion(RegionName(name_), AttachMode::kReadOnly);
    if (again.ok()) {
      const bool is_other = (*again)->id() != region_->id();
      region_ = *std::move(again);
      if (absl::IsDataLoss(status) && !is_other) return status;
    } else if (!IsUnanswered(again.status())) {
      return again.status();
    }
    Pause(kPauseMs, deadline_ns);
  }
}

absl::StatusOr<PublicationHead> Publication::ReadHead(int64_t deadline_ns) {
  std::string chunk(region_->unit_bytes(), '\0');
  NRAM_RETURN_IF_ERROR(ReadBytes(0, &chunk, deadline_ns));
  return DecodeHead(chunk);
}

absl::StatusOr<PublicationRecord> Publication::ReadSlot(uint32_t slot, int64_t deadline_ns) {
  std::string bytes(kRecordSlotBytes, '\0');
  NRAM_RETURN_IF_ERROR(ReadBytes(OffsetOf(slot), &bytes, deadline_ns));
  return DecodeRecord(bytes);
}

absl::Status Publication::VisitSlots(int64_t deadline_ns,
                                     absl::FunctionRef<void(uint32_t, absl::StatusOr<PublicationRecord>)> visit) {
  std::string piece(kPieceBytes, '\0');
  for (uint64_t offset = 0; offset < kBytes; offset += kPieceBytes) {
    NRAM_RETURN_IF_ERROR(ReadBytes(offset, &piece, deadline_ns));
    for (uint64_t at = 0; at < kPieceBytes; at += kRecordSlotBytes) {
      if (offset + at == 0) continue;  // the head
      absl::StatusOr<PublicationRecord> record = DecodeRecord(absl::string_view(piece).substr(at, kRecordSlotBytes));
      if (absl::IsNotFound(record.status())) continue;
      visit(static_cast<uint32_t>((offset + at) / kRecordSlotBytes - 1), std::move(record));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PublicationRecord>> Publication::ListLocked(const PublicationHead& head,
                                                                       int64_t deadline_ns) {
  std::map<uint64_t, PublicationRecord> records;
  NRAM_RETURN_IF_ERROR(VisitSlots(deadline_ns, [&](uint32_t, absl::StatusOr<PublicationRecord> record) {
    if (record.ok() && record->number <= head.newest) records[record->number] = *std::move(record);
  }));
  std::vector<PublicationRecord> list;
  for (auto& [number, record] : records) list.push_back(std::move(record));
  return list;
}

absl::StatusOr<std::vector<PublicationRecord>> Publication::List(int64_t deadline_ns) {
  MutexLock lock(&mu_);
  NRAM_ASSIGN_OR_RETURN(const PublicationHead head, ReadHead(deadline_ns));
  return ListLocked(head, deadline_ns);
}

absl::Status Publication::NotThere(uint64_t number) const {
  const std::string what = number == 0 ? "no version" : absl::StrCat("no version ", number);
  return absl::NotFoundError(absl::StrCat(what, " of ", Quoted(name_), " is published"));
}

absl::StatusOr<PublicationRecord> Publication::ReadLocked(uint64_t number, int64_t deadline_ns) {
  NRAM_ASSIGN_OR_RETURN(PublicationHead head, ReadHead(deadline_ns));
  while (true) {
    if (head.newest == 0 || number > head.newest) return NotThere(number);
    const uint64_t wanted = number == 0 ? head.newest : number;
    const auto slot = wanted == head.newest ? head.slot : static_cast<uint32_t>(wanted % kRecordSlots);
    absl::StatusOr<PublicationRecord> record = ReadSlot(slot, deadline_ns);
    if (record.ok() && record->number == wanted) return record;
    if (!record.ok() && !absl::IsNotFound(record.status()) && !absl::IsDataLoss(record.status())) return record;
    // The newest was dropped, or its place is another.
    NRAM_ASSIGN_OR_RETURN(std::vector<PublicationRecord> list, ListLocked(head, deadline_ns));
    for (PublicationRecord& one : list) {
      if (one.number == number) return std::move(one);
    }
    if (number != 0) return NotThere(number);
    // It may have been dropped because there was a newer one already, which the list leaves out.
    NRAM_ASSIGN_OR_RETURN(const PublicationHead now, ReadHead(deadline_ns));
    if (now.newest == head.newest) return list.empty() ? NotThere(0) : absl::StatusOr<PublicationRecord>(list.back());
    if (IsLate(deadline_ns)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the newest version of ", Quoted(name_), " is dropped faster than it can be read"));
    }
    head = now;
  }
}

absl::StatusOr<PublicationRecord> Publication::Read(uint64_t number, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  return ReadLocked(number, deadline_ns);
}

void Publication::NoteNewest(uint64_t newest) {
  if (newest == seen_) return;
  const int64_t now_ns = MonotonicNs();
  // The age of the first one is unknown.
  if (seen_ns_ != 0) period_ns_ = now_ns - seen_ns_;
  seen_ns_ = now_ns;
  seen_ = newest;
}

int64_t Publication::PollMs() const {
  const int64_t since_ns = seen_ns_ == 0 ? 0 : MonotonicNs() - seen_ns_;
  const int64_t period_ns = period_ns_ == 0 ? since_ns : period_ns_;
  return std::clamp<int64_t>(period_ns / 20 / kNsPerMs, 1, kPollMaxMs);
}

absl::StatusOr<uint64_t> Publication::AwaitAbove(uint64_t number, int64_t deadline_ns) {
  absl::Status last = absl::OkStatus();
  uint64_t looked_at = number;
  while (true) {
    int64_t pause_ms = 0;
    {
      MutexLock lock(&mu_);
      // Others wait for the lock.
      const int64_t look_ns = std::min(deadline_ns, DeadlineAfterMs(kLookMaxMs));
      const absl::StatusOr<PublicationHead> head = ReadHead(look_ns);
      last = head.status();
      if (head.ok()) {
        NoteNewest(head->newest);
        if (head->newest > looked_at) {
          const absl::StatusOr<PublicationRecord> newest = ReadLocked(0, look_ns);
          if (newest.ok() && newest->number > number) return newest->number;
          last = absl::IsNotFound(newest.status()) ? absl::OkStatus() : newest.status();
          // It was dropped already: all slots need not be read again for it.
          if (last.ok()) looked_at = head->newest;
        }
      }
      if (!last.ok() && !IsUnanswered(last)) return last;
      pause_ms = PollMs();
    }
    if (IsLate(deadline_ns)) break;
    Pause(pause_ms, deadline_ns);
  }
  if (!last.ok()) return absl::DeadlineExceededError(last.message());
  return absl::DeadlineExceededError(
      absl::StrCat("nothing above ", number, " of ", Quoted(name_), " was published in time"));
}

}  // namespace nram
