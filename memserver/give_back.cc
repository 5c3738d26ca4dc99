#include "memserver/give_back.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nram {

uint64_t GiveBack::StoredBytes() const {
  const ArenaUsage usage = arena_->usage();
  const uint64_t others = landing_->size() * kPageBytes + store_->counters().versions.yieldable_bytes();
  return usage.frame_bytes - std::min(usage.frame_bytes, others) + usage.reserved_bytes;
}

uint64_t GiveBack::Yield(uint64_t bytes, bool held, std::vector<std::string>* remarks) {
  const uint64_t yielded = store_->YieldForDonor(bytes, held);
  if (yielded == 0) return 0;
  // Memory that has become free is to be moved together.
  compact_again_ns_ = 0;
  compact_pause_ns_ = kCompactPauseMinNs;
  if (held) {
    remarks->push_back(absl::StrCat("the donor needs memory, and its clients cannot give enough: versions that kept ",
                                    FormatByteSize(yielded), " are dropped, held ones included"));
  }
  return yielded;
}

void GiveBack::EndAsking(int64_t now_ns, std::vector<std::string>* remarks) {
  const int64_t asked_ns = asking_.End(now_ns);
  if (asked_ns < 0) return;
  store_->SetAsksBack(false);
  remarks->push_back(
      absl::StrCat("clients have given back the memory that the donor needs, after ", asked_ns / kNsPerMs, " ms"));
}

void GiveBack::Tick(uint64_t allowed_bytes, int64_t now_ns, std::vector<std::string>* remarks) {
  const bool may_ask = options_.mode == GiveBackOptions::Mode::kPressure;
  const bool was_asking = asking_.asks();
  const ArenaUsage before = arena_->usage();
  const bool is_needed = before.fixed_bytes + before.index_bytes + before.extent_bytes > allowed_bytes;
  const uint64_t allowance_bytes = may_ask ? Asking::kAllowanceBytes : 0;
  uint64_t over = arena_->SetCeiling(allowed_bytes, allowance_bytes, asking_.pressed());
  if (over > 0 && options_.mode != GiveBackOptions::Mode::kOff) {
    const uint64_t gain = Gain(now_ns);
    // While clients give, each moved span empties more of these extents. The memory that is free here already does not
    // wait for the lesser part, which they may not be able to give at all.
    const bool waits = was_asking && gain < over / 2 && asking_.StandsStillNs(now_ns) < kCompactAfterNs;
    if (gain >= kCompactBytesMin && !waits) {
      Compact(std::min(over, gain), now_ns);
      over = arena_->SetCeiling(allowed_bytes, allowance_bytes, asking_.pressed());
    }
  }
  const uint64_t extent_bytes = arena_->usage().extent_bytes;
  if (extent_bytes_ > extent_bytes && (is_needed || was_asking)) given_back_bytes_ += extent_bytes_ - extent_bytes;
  extent_bytes_ = extent_bytes;
  if (!may_ask) return;

  // Memory that is free already, and only has to be moved together, is not asked for as well.
  uint64_t gain = Gain(now_ns);
  const auto lacks = [&] { return over > gain ? over - gain : 0; };
  if (lacks() >= Asking::kBytesMin && Yield(lacks(), /*held=*/false, remarks) > 0) gain = Gain(now_ns);
  const uint64_t stored = StoredBytes();
  // Moving spans away would not free the memory of versions.
  if (lacks() >= stored + Asking::kBytesMin && Yield(lacks() - stored, /*held=*/true, remarks) > 0) gain = Gain(now_ns);
  const uint64_t asked = std::min(lacks(), stored);
  const uint64_t ceiling = arena_->usage().ceiling_bytes;
  beyond_bytes_ = over > 0 ? ~uint64_t{0} : ceiling - std::min(ceiling, allowed_bytes);
  if (!asking_.Tick(asked, stored, now_ns)) {
    if (over > 0) asking_.NoteShort(now_ns);
    return EndAsking(now_ns, remarks);
  }
  store_->SetAsksBack(true);
  if (!was_asking) {
    told_stuck_ = spills_ = false;
    remarks->push_back(absl::StrCat("the donor needs memory: clients are asked to give ", FormatByteSize(asked),
                                    " of ", FormatByteSize(stored), " back"));
  }
  // Nothing is destroyed for a little, nor for room that was promised and takes no memory yet.
  const ArenaUsage now = arena_->usage();
  const uint64_t taken = now.fixed_bytes + now.index_bytes + now.extent_bytes;
  const uint64_t lacking = std::min(asked, taken - std::min(taken, allowed_bytes));
  if (lacking >= Asking::kBytesMin && asking_.StandsStillNs(now_ns) >= options_.patience_ns) {
    GiveUp(lacking, now_ns, remarks);
  }
  if (spills_) SpillSome(asked, remarks);
}

uint64_t GiveBack::Gain(int64_t now_ns) const { return now_ns < compact_again_ns_ ? 0 : compactor_.GainBytes(); }

void GiveBack::Compact(uint64_t bytes, int64_t now_ns) {
  if (compactor_.Run(bytes, MonotonicNs() + options_.compact_ns) >= FrameArena::extent_size()) {
    compact_pause_ns_ = kCompactPauseMinNs;
    return;
  }
  // The free memory belongs to reservations, or cannot be moved together: it is not there for the donor either.
  compact_again_ns_ = now_ns + compact_pause_ns_;
  compact_pause_ns_ = std::min(2 * compact_pause_ns_, kCompactPauseMaxNs);
}

// One lease at a time, the largest first: then it is looked whether more is needed.
void GiveBack::GiveUp(uint64_t bytes, int64_t now_ns, std::vector<std::string>* remarks) {
  asking_.SetStandsStill(options_.patience_ns - kGiveUpAgainNs, now_ns);
  if (Yield(bytes, /*held=*/true, remarks) > 0) return;
  RegionTable::Dropped expendable;
  std::shared_ptr<Lease> largest;
  uint64_t most = 0;
  for (std::shared_ptr<Lease>& lease : leases_->Expendable()) {
    const uint64_t held = lease->regions == 0 ? 0 : store_->StoredBytes(*lease);
    if (held <= most) continue;
    most = held;
    largest = std::move(lease);
  }
  // The whole lease, so that nothing that is on its way makes a region anew.
  if (largest != nullptr && leases_->End(largest->id) != nullptr) {
    expendable = {static_cast<uint64_t>(std::max<int64_t>(largest->regions, 0)), most};
    store_->CollectLater(largest, /*all=*/true);
    store_->CollectSome(WorkBound(), kCollectSteps);
    remarks->push_back(absl::StrCat(
        "the donor needs memory, and its clients have not given enough: ", expendable.regions, " regions with ",
        FormatByteSize(expendable.bytes), " of ", largest->client_name, ", which are expendable, are destroyed"));
  }
  RegionTable::Dropped orphans;
  if (options_.drops_orphans && expendable.regions == 0) {
    orphans = store_->DropOrphans(bytes);
    if (orphans.regions > 0) {
      remarks->push_back(absl::StrCat(
          "the donor needs memory, and its clients have not given enough: ", orphans.regions, " regions with ",
          FormatByteSize(orphans.bytes), ", all orphans, are destroyed (--orphans=drop)"));
    }
  }
  regions_given_up_ += expendable.regions + orphans.regions;
  if (expendable.regions + orphans.regions > 0) return;
  spills_ = options_.spills_to_swap;
  if (std::exchange(told_stuck_, true)) return;
  remarks->push_back(absl::StrCat("the donor needs ", FormatByteSize(bytes), " that its clients cannot give back: ",
                                  "other servers have no room, or the stored pages cannot be moved",
                                  spills_ ? "; pages are moved to the donor's swap" : ""));
}

void GiveBack::SpillSome(uint64_t bytes, std::vector<std::string>* remarks) {
  const absl::StatusOr<uint64_t> spilled = spill_.Run(bytes, MonotonicNs() + kSpillNs);
  if (spilled.ok()) {
    given_back_bytes_ += *spilled;
    return;
  }
  spills_ = false;
  remarks->push_back(absl::StrCat("--spill=swap: ", spilled.status().message()));
}

}  // namespace nram
