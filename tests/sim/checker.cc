#include "tests/sim/checker.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nram::sim {
namespace {

struct Stamp {
  uint64_t region;
  uint64_t chunk;
  uint64_t number;
  uint64_t check;
};
static_assert(kChunkBytes % sizeof(Stamp) == 0);
constexpr size_t kStampsPerChunk = kChunkBytes / sizeof(Stamp);

Stamp MakeStamp(RegionId region, uint64_t chunk, uint64_t number) {
  return {Raw(region), chunk, number, (Raw(region) ^ chunk << 40 ^ number) * 0x9E3779B97F4A7C15u};
}

enum class Found { kZeros, kStamp, kGarbage };

Found ReadStamp(const std::byte* chunk, Stamp* stamp) {
  memcpy(stamp, chunk, sizeof *stamp);
  // All stamps are equal to the first: the chunk is itself, moved by one stamp.
  if (memcmp(chunk, chunk + sizeof *stamp, kChunkBytes - sizeof *stamp) != 0) return Found::kGarbage;
  return stamp->number == 0 && stamp->region == 0 && stamp->chunk == 0 && stamp->check == 0 ? Found::kZeros
                                                                                            : Found::kStamp;
}

std::string TextOf(ChunkRange range) { return absl::StrCat("[", range.first, ", ", range.end(), ")"); }

}  // namespace

const char* NameOf(Checker::Kind kind) {
  switch (kind) {
    case Checker::Kind::kRead:
      return "read";
    case Checker::Kind::kWrite:
      return "write";
    case Checker::Kind::kTrim:
      return "trim";
    case Checker::Kind::kReserve:
      return "reserve";
    case Checker::Kind::kDestroy:
      return "destroy";
  }
  return "";
}

void Checker::AddRegion(RegionId region, ChunkRange window, std::vector<LeaseId> leases, bool gc) {
  Region& added = regions_[Raw(region)];
  added.leases = std::move(leases);
  added.gc = gc;
  added.window = window;
  added.chunks.resize(window.count);
}

void Checker::SetRoomy(const Operation& reserve) {
  Region& region = regions_.at(Raw(reserve.region));
  if (region.roomy && region.roomy_since == term_count_) return;
  region.roomy = true;
  region.roomy_since = reserve.term_count;
  region.roomy_from = now_;
}

void Checker::UnsetRoomy(RegionId region) { regions_.at(Raw(region)).roomy = false; }

RegisterHistory& Checker::At(Region* region, uint64_t chunk) const {
  auto& history = region->chunks[chunk - region->window.first];
  if (history == nullptr) history = std::make_unique<RegisterHistory>(effect_);
  return *history;
}

Checker::Operation Checker::Begin(Kind kind, RegionId region, ChunkRange range, HostId host, int64_t deadline_ns) {
  Operation operation;
  operation.kind = kind;
  operation.region = region;
  operation.range = range;
  operation.number = next_number_++;
  operation.began = ++now_;
  operation.began_ns = world_->NowNs();
  operation.deadline_ns = deadline_ns;
  operation.term_count = term_count_;
  operation.host = host;
  operation.host_frozen_ns = world_->frozen_ns(host);
  Trace(absl::StrCat(NameOf(kind), " ", operation.number, " of ", TextOf(range), " begins, moment ", now_), region,
        range);
  return operation;
}

Checker::Operation Checker::BeginRead(RegionId region, ChunkRange range, HostId host, int64_t deadline_ns) {
  Operation operation = Begin(Kind::kRead, region, range, host, deadline_ns);
  reads_.insert(operation.began);
  return operation;
}

Checker::Operation Checker::BeginWrite(RegionId id, ChunkRange range, HostId host, int64_t deadline_ns, std::byte* out,
                                       absl::Span<const ChunkMask> masks) {
  Operation operation = Begin(Kind::kWrite, id, range, host, deadline_ns);
  ++others_;
  operation.zeros.resize(range.count);
  if (!masks.empty()) operation.left_out.resize(range.count);
  const bool some_zeros = world_->rng().OneIn(4);
  Region& region = regions_.at(Raw(id));
  for (uint64_t i = 0; i < range.count; ++i) {
    const uint64_t chunk = range.first + i;
    const bool zeros = some_zeros && world_->rng().OneIn(2);
    operation.zeros[i] = zeros;
    if (zeros) {
      memset(out + i * kChunkBytes, 0, kChunkBytes);
    } else {
      std::array<Stamp, kStampsPerChunk> stamps;
      stamps.fill(MakeStamp(id, chunk, operation.number));
      memcpy(out + i * kChunkBytes, stamps.data(), kChunkBytes);
    }
    if (!masks.empty() && (masks[chunk / kChunksPerPage - range.first_page()] >> (chunk % kChunksPerPage) & 1) == 0) {
      operation.left_out[i] = true;
      continue;
    }
    At(&region, chunk).BeginWrite(operation.number, zeros, operation.began);
  }
  return operation;
}

Checker::Operation Checker::BeginOther(Kind kind, RegionId id, ChunkRange range, HostId host, int64_t deadline_ns) {
  Operation operation = Begin(kind, id, range, host, deadline_ns);
  ++others_;
  if (kind != Kind::kTrim) return operation;
  Region& region = regions_.at(Raw(id));
  for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
    At(&region, chunk).BeginWrite(operation.number, /*zeros=*/true, operation.began);
  }
  return operation;
}

void Checker::End(const Operation& operation, const absl::Status& status, const std::byte* in,
                  absl::Span<const int> servers) {
  ++now_;
  Trace(absl::StrCat(NameOf(operation.kind), " ", operation.number, " ends, moment ", now_, ": ",
                     status.ok() ? "OK" : status.ToString()),
        operation.region, operation.range);
  if (operation.kind == Kind::kRead) {
    reads_.erase(reads_.find(operation.began));
  } else {
    --others_;
  }
  const auto it = regions_.find(Raw(operation.region));
  if (!failure_.empty() || it == regions_.end()) return;
  Region& region = it->second;
  const int64_t excused_ns = world_->frozen_ns(operation.host) - operation.host_frozen_ns;
  if (world_->NowNs() > operation.deadline_ns + excused_ns + kLateNs) {
    FailAt(operation, operation.range.first,
           absl::StrCat("it ended ", (world_->NowNs() - operation.deadline_ns) / kNsPerMs, " ms after its deadline"));
  }
  if (!status.ok()) JudgeError(region, operation, status, servers);
  if (operation.kind == Kind::kWrite || operation.kind == Kind::kTrim) EndChange(&region, operation, status.ok());
  if (operation.kind == Kind::kRead && status.ok()) EndRead(&region, operation, in);
}

void Checker::EndChange(Region* region, const Operation& operation, bool known) {
  const ChunkRange& range = operation.range;
  const Moment oldest = Oldest();
  for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
    if (!operation.left_out.empty() && operation.left_out[chunk - range.first]) continue;
    At(region, chunk).EndWrite(operation.number, known, now_, oldest);
  }
  if (!known || !operation.left_out.empty()) return;
  // A write or trim of a whole page mends it.
  const uint64_t whole_end = range.end() / kChunksPerPage;
  const uint64_t whole_begin = (range.first + kChunksPerPage - 1) / kChunksPerPage;
  auto& damaged = region->damaged_pages;
  for (auto it = damaged.lower_bound(whole_begin); it != damaged.end() && it->first < whole_end; ++it) {
    if (it->second.began < operation.began) it->second.mended = std::min(it->second.mended, now_);
  }
}

void Checker::EndRead(Region* region, const Operation& operation, const std::byte* in) {
  const Moment oldest = Oldest();
  for (uint64_t i = 0; i < operation.range.count && failure_.empty(); ++i) {
    const uint64_t chunk = operation.range.first + i;
    Stamp stamp;
    const Found found = ReadStamp(in + i * kChunkBytes, &stamp);
    if (found == Found::kZeros) {
      const auto& history = region->chunks[chunk - region->window.first];
      if (history == nullptr) continue;
      const std::string wrong = history->EndReadOfZeros(operation.began, now_, oldest);
      if (!wrong.empty()) FailAt(operation, chunk, wrong);
      continue;
    }
    const Stamp expected = MakeStamp(operation.region, chunk, stamp.number);
    if (found == Found::kGarbage || memcmp(&stamp, &expected, sizeof stamp) != 0) {
      FailAt(operation, chunk,
             found == Found::kGarbage ? "it holds bytes that nobody wrote"
                                      : absl::StrCat("it holds chunk ", stamp.chunk, " of region ",
                                                     FormatId(stamp.region), " as of write ", stamp.number));
      continue;
    }
    const std::string wrong = At(region, chunk).EndRead(stamp.number, operation.began, now_, oldest);
    if (!wrong.empty()) FailAt(operation, chunk, wrong);
  }
}

void Checker::JudgeError(const Region& region, const Operation& operation, const absl::Status& status,
                         absl::Span<const int> servers) {
  const auto fail = [&](absl::string_view why) {
    FailAt(operation, operation.range.first, absl::StrCat(why, ": ", status.ToString()));
  };
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      if (never_lost_ || !(lies_ || MayBeLost(operation, servers))) fail("nothing there can be lost");
      return;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      if (servers_ == Servers::kThere) return fail("all servers are there");
      if (servers_ == Servers::kMayBeAway || operation.deadline_ns - operation.began_ns < kPatientNs) return;
      // It asks every server that the region was on, and frees the rest later.
      if (operation.kind == Kind::kDestroy && never_lost_) return;
      // Room that it has reserved is void when the client learns of another term.
      if (operation.kind == Kind::kReserve && term_ns_ > 0 && operation.began_ns < term_ns_ + kTermKnownNs) return;
      fail("no server is away");
      return;
    case absl::StatusCode::kResourceExhausted:
      if (operation.kind != Kind::kWrite && operation.kind != Kind::kReserve) return fail("it needs no room");
      // No new span is placed where a part of the region was lost.
      if (never_full_ && region.lost_at.empty()) return fail("no server can be full");
      if (operation.kind == Kind::kWrite && region.roomy && region.roomy_since == term_count_ &&
          operation.began > region.roomy_from) {
        fail("the region has reserved room for it");
      }
      return;
    default:
      fail("no such error is expected");
  }
}

void Checker::FailAt(const Operation& operation, uint64_t chunk, const std::string& what) {
  if (!failure_.empty()) return;
  failed_region_ = operation.region;
  failed_chunk_ = chunk;
  failure_ = absl::StrCat(NameOf(operation.kind), " ", operation.number, " of region ", FormatId(Raw(operation.region)),
                          " ", TextOf(operation.range), ", chunk ", chunk, ": ", what);
}

void Checker::NoteSent(int server, RegionId id) {
  const auto it = regions_.find(Raw(id));
  if (it != regions_.end()) it->second.sent_to.insert(server);
}

void Checker::NoteDeath(int server) {
  ++term_count_;
  term_ns_ = world_->NowNs();
  for (auto& [id, region] : regions_) {
    if (region.sent_to.erase(server) > 0) region.lost_at.insert(server);
  }
}

void Checker::NoteLeaseEnded(int server, LeaseId lease, bool with_all) {
  ++term_count_;
  term_ns_ = world_->NowNs();
  for (auto& [id, region] : regions_) {
    const bool ends = (with_all || region.gc) && region.leases.at(server) == lease;
    if (ends && region.sent_to.erase(server) > 0) region.lost_at.insert(server);
  }
}

void Checker::NoteDamaged(RegionId id, uint64_t page) {
  Trace(absl::StrCat("a bit of page ", page, " changes"), id, {page * kChunksPerPage, kChunksPerPage});
  const auto it = regions_.find(Raw(id));
  if (it != regions_.end()) it->second.damaged_pages[page] = {++now_, kNever};
}

bool Checker::WasDamaged(RegionId id, uint64_t page) const {
  const auto it = regions_.find(Raw(id));
  return it != regions_.end() && it->second.damaged_pages.contains(page);
}

bool Checker::HasDamage() const {
  for (const auto& [id, region] : regions_) {
    for (const auto& [page, damage] : region.damaged_pages) {
      if (damage.mended == kNever) return true;
    }
  }
  return false;
}

bool Checker::MayBeLost(const Operation& operation, absl::Span<const int> servers) const {
  const ChunkRange& range = operation.range;
  const auto it = regions_.find(Raw(operation.region));
  if (it == regions_.end() || range.count == 0) return false;
  const Region& region = it->second;
  for (const int server : servers) {
    if (region.lost_at.contains(server)) return true;
  }
  const uint64_t end_page = range.first_page() + range.pages();
  for (auto page = region.damaged_pages.lower_bound(range.first_page());
       page != region.damaged_pages.end() && page->first < end_page; ++page) {
    if (page->second.mended > operation.began) return true;
  }
  return false;
}

void Checker::Trace(std::string event, RegionId region, ChunkRange range) {
  if (verbose_) {
    std::cerr << absl::StreamFormat("%12.6f s  %s %s\n", static_cast<double>(world_->NowNs()) / kNsPerSecond, event,
                                    Raw(region) == 0 ? "" : FormatId(Raw(region)));
  }
  if (trace_.size() >= kTraceMax) trace_.pop_front();
  trace_.push_back({world_->NowNs(), region, range, std::move(event)});
}

std::string Checker::Report() const {
  std::vector<const Traced*> chosen;
  for (auto it = trace_.rbegin(); it != trace_.rend() && chosen.size() < kReportMax; ++it) {
    const bool of_all = Raw(it->region) == 0;
    const bool of_chunk =
        it->region == failed_region_ &&
        (it->range.count == 0 || (it->range.first <= failed_chunk_ && failed_chunk_ < it->range.end()));
    if (of_all || of_chunk) chosen.push_back(&*it);
  }
  std::string report;
  for (auto it = chosen.rbegin(); it != chosen.rend(); ++it) {
    absl::StrAppendFormat(&report, "  %12.6f s  %s\n", static_cast<double>((*it)->time_ns) / kNsPerSecond,
                          (*it)->event);
  }
  return report;
}

}  // namespace nram::sim
