#include "memserver/frame_arena.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "memserver/asking.h"

namespace nram {

absl::StatusOr<std::unique_ptr<FrameArena>> FrameArena::Create(uint64_t ceiling_bytes, uint64_t fixed_bytes) {
  if (ceiling_bytes < fixed_bytes + kSlackBytes + kExtentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a ceiling of ", FormatByteSize(ceiling_bytes),
                                                   " leaves nothing to lend: the server itself takes ",
                                                   FormatByteSize(fixed_bytes + kSlackBytes + kExtentBytes)));
  }
  const uint64_t extents = ceiling_bytes / kExtentBytes;
  auto data = Mapping::Anonymous(extents * kExtentBytes, kExtentBytes);
  auto slabs = Mapping::Anonymous(extents * kSlabsPerExtent * sizeof(Slab));
  if (!data.ok() || !slabs.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("no address space for ", FormatByteSize(ceiling_bytes)));
  }
  static_assert(sizeof(Slab) == 32);
  // The price list (proto/price.h) holds for frames. (A frame of fewer chunks also costs its share of the slab's odd
  // end.)
  static_assert(FrameCost(kClasses) == kPageBytes);
  static_assert(FrameCost(kClasses - 1) <= kPageBytes && FrameCost(1) <= kPageBytes);
  // A reservation is split into data and index in this proportion.
  static_assert(kReservationBytesPerPage % kIndexBytesPerPageMax == 0);
  madvise(data->data(), data->size(), MADV_HUGEPAGE);  // an optimisation; kernels without it refuse
  data->HideFromCoreDumps();
  return std::unique_ptr<FrameArena>(new FrameArena(ceiling_bytes, fixed_bytes, *std::move(data), *std::move(slabs)));
}

FrameArena::FrameArena(uint64_t ceiling_bytes, uint64_t fixed_bytes, Mapping data, Mapping slabs)
    : ceiling_max_bytes_(ceiling_bytes),
      data_(std::move(data)),
      slabs_(std::move(slabs)),
      ceiling_bytes_(ceiling_bytes),
      fixed_bytes_(fixed_bytes),
      is_evacuating_(new std::atomic<bool>[data_.size() / kExtentBytes]()) {
  partial_.fill(kNone);
  unpaid_slab_.fill(kNone);
  const auto extents = static_cast<uint32_t>(data_.size() / kExtentBytes);
  extent_free_slabs_.assign(extents, 0);
  extent_used_bytes_.assign(extents, 0);
  unbacked_extents_.reserve(extents);
  spare_extents_.reserve(extents);
  for (uint32_t extent = extents; extent > 0; --extent) unbacked_extents_.push_back(extent - 1);
  // The tables of extents, with those of evacuations.
  index_bytes_ = extents * (9 + 5 + 12) + 4096;
}

uint64_t FrameArena::TakenLocked() const {
  return fixed_bytes_ + index_bytes_ + extents_backed_ * kExtentBytes +
         slabs_.size() * extents_backed_ / std::max<uint64_t>(extent_free_slabs_.size(), 1);
}

uint64_t FrameArena::DemandLocked(uint64_t extra_data_bytes, uint64_t extra_index_bytes) const {
  const uint64_t index_share = reserved_bytes_ / (kReservationBytesPerPage / kIndexBytesPerPageMax);
  const uint64_t data_needed = reserved_bytes_ - index_share + extra_data_bytes;
  const uint64_t inside = slabs_free_ * kSlabBytes + frames_free_[kClasses] * kPageBytes;
  uint64_t extents = 0;
  if (data_needed > inside) extents = (data_needed - inside + kExtentBytes - 1) / kExtentBytes;
  if (extents > unbacked_extents_.size()) return ~uint64_t{0};
  return TakenLocked() + kSlackBytes + extents * kExtentBytes + index_share + extra_index_bytes;
}

bool FrameArena::CanSpareLocked(uint64_t extra_data_bytes) const {
  const uint64_t index_share = reserved_bytes_ / (kReservationBytesPerPage / kIndexBytesPerPageMax);
  const uint64_t inside = slabs_free_ * kSlabBytes + frames_free_[kClasses] * kPageBytes;
  return !spare_extents_.empty() && reserved_bytes_ - index_share + extra_data_bytes + kExtentBytes <= inside;
}

bool FrameArena::MakeRoomLocked(uint64_t extra_data_bytes, uint64_t extra_index_bytes) {
  while (DemandLocked(extra_data_bytes, extra_index_bytes) > ceiling_bytes_) {
    if (!CanSpareLocked(extra_data_bytes)) return false;
    ReleaseSpareLocked();
  }
  return true;
}

uint64_t FrameArena::FreeBytesLocked() const {
  // The largest extra that MakeRoomLocked accepts, from the same terms.
  const uint64_t taken = TakenLocked() + kSlackBytes;
  const uint64_t room = ceiling_bytes_ > taken ? ceiling_bytes_ - taken : 0;
  const uint64_t extents = std::min<uint64_t>(room / kExtentBytes, unbacked_extents_.size());
  const uint64_t reachable = extents * kExtentBytes + slabs_free_ * kSlabBytes + frames_free_[kClasses] * kPageBytes;
  return reachable > reserved_bytes_ ? reachable - reserved_bytes_ : 0;
}

bool FrameArena::CanPay(const Payment* payment, uint64_t bytes) {
  return payment != nullptr && payment->pays_ && payment->reservation_->left_bytes_ >= bytes;
}

void FrameArena::PayLocked(uint64_t bytes, Payment* payment, const ArenaAccount* account) {
  CHECK_EQ(payment->reservation_->account_, account) << "one tenant pays for another";
  payment->reservation_->left_bytes_ -= bytes;
  reserved_bytes_ -= bytes;
  payment->paid_bytes_ += bytes;
}

bool FrameArena::ReserveReleasedLocked(uint64_t bytes, ArenaReservation* reservation) {
  if (reservation == nullptr || reservation->closed_) return false;
  reservation->left_bytes_ += bytes;
  reserved_bytes_ += bytes;
  Count(reservation->account_, bytes);
  return true;
}

void FrameArena::Uncount(ArenaAccount* account, uint64_t bytes) {
  if (account == nullptr) return;
  CHECK_GE(account->bytes_, bytes);
  account->bytes_ -= bytes;
}

void FrameArena::PushLocked(uint32_t* head, uint32_t index) {
  Slab& pushed = slab(index);
  pushed.prev = kNone;
  pushed.next = *head;
  if (*head != kNone) slab(*head).prev = index;
  *head = index;
}

void FrameArena::RemoveLocked(uint32_t* head, uint32_t index) {
  const Slab& removed = slab(index);
  if (removed.prev != kNone) slab(removed.prev).next = removed.next;
  if (removed.next != kNone) slab(removed.next).prev = removed.prev;
  if (*head == index) *head = removed.next;
}

bool FrameArena::MapExtentLocked(bool reserved) {
  if (unbacked_extents_.empty()) return false;
  // The slack is for reservations alone.
  const uint64_t slack = reserved ? 0 : kSlackBytes;
  if (TakenLocked() + slack + kExtentBytes > ceiling_bytes_) return false;
  const uint32_t extent = unbacked_extents_.back();
  unbacked_extents_.pop_back();
  ++extents_backed_;
  slabs_free_ += kSlabsPerExtent;
  extent_free_slabs_[extent] = kSlabsPerExtent;
  for (uint32_t i = 0; i < kSlabsPerExtent; ++i) slab(extent * kSlabsPerExtent + i).chunks = 0;
  spare_extents_.push_back(extent);
  return true;
}

void FrameArena::OpenSpareLocked() {
  const uint32_t extent = spare_extents_.back();
  spare_extents_.pop_back();
  spare_min_ = std::min(spare_min_, spare_extents_.size());
  for (uint32_t i = kSlabsPerExtent; i > 0; --i) PushLocked(&free_slabs_, extent * kSlabsPerExtent + i - 1);
}

void FrameArena::ReleaseSpareLocked() {
  const uint32_t extent = spare_extents_.back();
  spare_extents_.pop_back();
  spare_min_ = std::min(spare_min_, spare_extents_.size());
  slabs_free_ -= kSlabsPerExtent;
  extent_free_slabs_[extent] = 0;
  --extents_backed_;
  unbacked_extents_.push_back(extent);
  madvise(data_.data() + extent * kExtentBytes, kExtentBytes, MADV_DONTNEED);
}

// A reservation has opened the slab and counts on paying for the rest of it. A request without one takes of it from
// the slack, so all reservations must fit beside it.
bool FrameArena::MayTakeUnpaidLocked(int chunks) {
  return partial_[chunks] == kNone || partial_[chunks] != unpaid_slab_[chunks] || MakeRoomLocked(0, 0);
}

uint32_t FrameArena::OpenSlabLocked(int chunks) {
  const uint32_t index = free_slabs_;
  RemoveLocked(&free_slabs_, index);
  --slabs_free_;
  --extent_free_slabs_[index / kSlabsPerExtent];
  Slab& taken = slab(index);
  const int frames = FramesPerSlab(chunks);
  taken.chunks = static_cast<uint8_t>(chunks);
  taken.free_count = static_cast<uint8_t>(frames);
  taken.free_frames[0] = frames >= 64 ? ~uint64_t{0} : (uint64_t{1} << frames) - 1;
  taken.free_frames[1] = frames == 128 ? ~uint64_t{0} : 0;
  frames_free_[chunks] += frames;
  PushLocked(&partial_[chunks], index);
  return index;
}

// A slab of the class that has a free frame, or else one of a larger class; kNone if there is none.
uint32_t FrameArena::SlabForLocked(int chunks, bool reserved) {
  if (partial_[chunks] != kNone) return partial_[chunks];
  if (free_slabs_ == kNone && (!spare_extents_.empty() || MapExtentLocked(reserved))) OpenSpareLocked();
  if (free_slabs_ != kNone) {
    const uint32_t index = OpenSlabLocked(chunks);
    if (reserved && chunks < kClasses) unpaid_slab_[chunks] = index;
    return index;
  }
  for (int larger = chunks + 1; larger <= kClasses; ++larger) {
    if (partial_[larger] != kNone) return partial_[larger];
  }
  return kNone;
}

FrameLoc FrameArena::TakeFrameLocked(uint32_t index) {
  Slab& from = slab(index);
  const int word = from.free_frames[0] != 0 ? 0 : 1;
  const int bit = std::countr_zero(from.free_frames[word]);
  from.free_frames[word] &= from.free_frames[word] - 1;
  --frames_free_[from.chunks];
  if (--from.free_count == 0) {
    RemoveLocked(&partial_[from.chunks], index);
    if (unpaid_slab_[from.chunks] == index) unpaid_slab_[from.chunks] = kNone;
  }
  const uint64_t cost = FrameCost(from.chunks);
  frame_bytes_ += cost;
  extent_used_bytes_[index / kSlabsPerExtent] += cost;
  return index * kChunksPerSlab + (word * 64 + bit) * uint64_t{from.chunks};
}

FrameLoc FrameArena::Allocate(int chunks, Payment* payment, ArenaAccount* account) {
  DCHECK(chunks >= 1 && chunks <= kClasses);
  MutexLock lock(&mu_);
  const bool reserved = CanPay(payment, kPageBytes);
  // Without a reservation, the frame must leave enough memory for all reservations. If it opens a slab, the whole slab
  // counts.
  if (!reserved) {
    if (!Allows(account, FrameCost(chunks))) return kNoFrame;
    const bool opens_slab = partial_[chunks] == kNone;
    const uint64_t data_needed = opens_slab ? kSlabBytes : chunks == kClasses ? kPageBytes : 0;
    if (data_needed > 0 && !MakeRoomLocked(data_needed, 0)) return kNoFrame;
    if (!MayTakeUnpaidLocked(chunks)) return kNoFrame;
  }
  uint32_t index = SlabForLocked(chunks, reserved);
  if (index == kNone && reserved && GiveUpEvacuationLocked() > 0) index = SlabForLocked(chunks, reserved);
  if (index == kNone) {
    // This is a bug, but no reason to lose the stored data.
    if (reserved) LOG(DFATAL) << "reserved memory is missing: " << reserved_bytes_ << " bytes are reserved";
    return kNoFrame;
  }
  const uint64_t cost = FrameCost(slab(index).chunks);
  if (reserved) {
    PayLocked(cost, payment, account);
  } else {
    Count(account, cost);
  }
  return TakeFrameLocked(index);
}

void FrameArena::Free(FrameLoc frame, Refund* refund, ArenaAccount* account) {
  MutexLock lock(&mu_);
  const bool whole = slab(static_cast<uint32_t>(frame / kChunksPerSlab)).chunks == kClasses;
  const bool evacuating = IsEvacuatingLocked(ExtentOf(frame));
  const uint64_t bytes = FreeLocked(frame);
  Uncount(account, bytes);
  if (refund == nullptr || refund->reservation_ == nullptr || refund->reservation_->closed_) return;
  // A whole frame counts the same in use and in a reservation. A smaller one is room for whole pages only if its slab
  // is. One of an evacuating extent is room for nothing, unless the evacuation is given up.
  if ((!whole || evacuating) && !MakeRoomLocked(bytes, 0)) {
    if (!whole) return;
    GiveUpEvacuationLocked();
  }
  if (ReserveReleasedLocked(bytes, refund->reservation_)) refund->kept_bytes_ += bytes;
}

uint64_t FrameArena::FreeLocked(FrameLoc frame) {
  const auto index = static_cast<uint32_t>(frame / kChunksPerSlab);
  Slab& to = slab(index);
  CHECK_NE(to.chunks, 0) << "frame freed twice";
  const uint64_t number = frame % kChunksPerSlab / to.chunks;
  const uint64_t bit = uint64_t{1} << (number % 64);
  CHECK_EQ(to.free_frames[number / 64] & bit, 0u) << "frame freed twice";
  to.free_frames[number / 64] |= bit;
  const uint64_t cost = FrameCost(to.chunks);
  const uint32_t extent = index / kSlabsPerExtent;
  const bool evacuating = IsEvacuatingLocked(extent);
  frame_bytes_ -= cost;
  extent_used_bytes_[extent] -= cost;
  const bool was_full = to.free_count++ == 0;
  if (evacuating) {
    --frames_to_move_[to.chunks];
  } else {
    ++frames_free_[to.chunks];
    if (was_full) PushLocked(&partial_[to.chunks], index);
  }
  if (to.free_count < FramesPerSlab(to.chunks)) return cost;
  // The slab is free for any class again.
  if (!evacuating) {
    RemoveLocked(&partial_[to.chunks], index);
    frames_free_[to.chunks] -= FramesPerSlab(to.chunks);
    if (unpaid_slab_[to.chunks] == index) unpaid_slab_[to.chunks] = kNone;
    PushLocked(&free_slabs_, index);
    ++slabs_free_;
  }
  to.chunks = 0;
  if (++extent_free_slabs_[extent] < kSlabsPerExtent) return cost;
  if (evacuating) {
    SetEvacuatingLocked(extent, false);
    ++emptied_;
    slabs_free_ += kSlabsPerExtent;
  } else {
    for (uint32_t i = 0; i < kSlabsPerExtent; ++i) RemoveLocked(&free_slabs_, extent * kSlabsPerExtent + i);
  }
  spare_extents_.push_back(extent);
  return cost;
}

void FrameArena::ReleaseIdle(bool period_ends) {
  for (int step = 0; step < kReleaseStepsMax; ++step) {
    {
      MutexLock lock(&mu_);
      if (period_ends && step == 0) {
        idle_ = spare_min_;
        spare_min_ = spare_extents_.size();
      }
      idle_ = std::min(idle_, spare_extents_.size());
      for (int i = 0; i < kReleaseStep && idle_ > 0; ++i, --idle_) ReleaseSpareLocked();
      if (idle_ == 0) return;
    }
    poll(nullptr, 0, 1);
  }
}

bool FrameArena::ChargeIndex(uint64_t bytes, Payment* payment, ArenaAccount* account) {
  MutexLock lock(&mu_);
  // A reservation expects less index than small regions have. Spare memory makes up for it, and then the slack, and at
  // last the memory that an evacuation has put aside.
  if (CanPay(payment, bytes) && (MakeRoomLocked(0, 0) || TakenLocked() + bytes <= ceiling_bytes_ ||
                                 (GiveUpEvacuationLocked() > 0 && MakeRoomLocked(0, 0)))) {
    PayLocked(bytes, payment, account);
  } else if (Allows(account, bytes) && MakeRoomLocked(0, bytes)) {
    Count(account, bytes);
  } else {
    return false;
  }
  index_bytes_ += bytes;
  return true;
}

// The bytes move from the index to the reservation: the sum does not change. (A reservation counts mostly as data,
// which comes in extents; the slack has room for that.)
void FrameArena::ReleaseIndex(uint64_t bytes, Refund* refund, ArenaAccount* account) {
  MutexLock lock(&mu_);
  CHECK_GE(index_bytes_, bytes);
  index_bytes_ -= bytes;
  Uncount(account, bytes);
  if (refund != nullptr && ReserveReleasedLocked(bytes, refund->reservation_)) refund->kept_bytes_ += bytes;
}

void FrameArena::ReturnIndex(uint64_t bytes, Payment* payment, ArenaAccount* account) {
  MutexLock lock(&mu_);
  CHECK_GE(index_bytes_, bytes);
  index_bytes_ -= bytes;
  Uncount(account, bytes);
  if (payment == nullptr) return;
  const uint64_t paid_bytes = std::min(bytes, payment->paid_bytes_);
  if (ReserveReleasedLocked(paid_bytes, payment->reservation_)) payment->paid_bytes_ -= paid_bytes;
}

bool FrameArena::ChargeFixed(uint64_t bytes) {
  MutexLock lock(&mu_);
  if (!MakeRoomLocked(0, bytes)) return false;
  fixed_bytes_ += bytes;
  return true;
}

void FrameArena::ReleaseFixed(uint64_t bytes) {
  MutexLock lock(&mu_);
  CHECK_GE(fixed_bytes_, bytes);
  fixed_bytes_ -= bytes;
}

bool FrameArena::Reserve(uint64_t pages, ArenaReservation* reservation) {
  MutexLock lock(&mu_);
  if (reservation->closed_ || pages > ceiling_bytes_ / kPageBytes) return false;
  if (!Allows(reservation->account_, pages * kReservationBytesPerPage)) return false;
  if (!MakeRoomLocked(pages * kPageBytes, pages * kIndexBytesPerPageMax)) return false;
  reservation->left_bytes_ += pages * kReservationBytesPerPage;
  reserved_bytes_ += pages * kReservationBytesPerPage;
  Count(reservation->account_, pages * kReservationBytesPerPage);
  return true;
}

std::optional<uint64_t> FrameArena::ReserveLike(FrameLoc frame, ArenaReservation* reservation) {
  MutexLock lock(&mu_);
  if (reservation->closed_) return 0;
  const uint64_t bytes = FrameCost(slab(static_cast<uint32_t>(frame / kChunksPerSlab)).chunks);
  if (!Allows(reservation->account_, bytes) || !MakeRoomLocked(bytes, 0)) return std::nullopt;
  reservation->left_bytes_ += bytes;
  reserved_bytes_ += bytes;
  Count(reservation->account_, bytes);
  return bytes;
}

void FrameArena::Unreserve(uint64_t pages, ArenaReservation* reservation) {
  MutexLock lock(&mu_);
  const uint64_t bytes = pages > reservation->left_bytes_ / kReservationBytesPerPage ? reservation->left_bytes_
                                                                                     : pages * kReservationBytesPerPage;
  reservation->left_bytes_ -= bytes;
  reserved_bytes_ -= bytes;
  Uncount(reservation->account_, bytes);
}

void FrameArena::CloseReservation(ArenaReservation* reservation) {
  MutexLock lock(&mu_);
  const uint64_t bytes = std::exchange(reservation->left_bytes_, 0);
  reserved_bytes_ -= bytes;
  Uncount(reservation->account_, bytes);
  reservation->closed_ = true;
}

void FrameArena::OpenReservation(ArenaReservation* reservation) {
  MutexLock lock(&mu_);
  reservation->closed_ = false;
}

uint64_t FrameArena::left_bytes(const ArenaReservation& reservation) const {
  MutexLock lock(&mu_);
  return reservation.left_bytes_;
}

uint64_t FrameArena::SetCeiling(uint64_t bytes, uint64_t allowance_bytes, bool is_pressed) {
  for (int step = 0; step < kReleaseStepsMax; ++step) {
    {
      MutexLock lock(&mu_);
      for (int i = 0; i < kReleaseStep && DemandLocked(0, 0) > bytes && CanSpareLocked(0); ++i) ReleaseSpareLocked();
      const uint64_t demand = DemandLocked(0, 0);
      ceiling_bytes_ =
          std::min(CeilingFor(bytes, demand, ceiling_bytes_, allowance_bytes, is_pressed), ceiling_max_bytes_);
      if (demand <= bytes || !CanSpareLocked(0)) return demand - std::min(demand, bytes);
    }
    poll(nullptr, 0, 1);
  }
  return 0;  // there is more to spare: the next call goes on
}

FrameLoc ArenaAccount::Allocate(int chunks, Payment* payment) { return arena_->Allocate(chunks, payment, this); }

void ArenaAccount::Free(FrameLoc frame, Refund* refund) { arena_->Free(frame, refund, this); }

int ArenaAccount::ChunksIn(FrameLoc frame) const { return arena_->ChunksIn(frame); }

bool ArenaAccount::ChargeIndex(uint64_t bytes, Payment* payment) { return arena_->ChargeIndex(bytes, payment, this); }

void ArenaAccount::ReleaseIndex(uint64_t bytes, Refund* refund) { arena_->ReleaseIndex(bytes, refund, this); }

void ArenaAccount::ReturnIndex(uint64_t bytes, Payment* payment) { arena_->ReturnIndex(bytes, payment, this); }

void ArenaAccount::SetLimit(uint64_t bytes) {
  MutexLock lock(&arena_->mu_);
  limit_bytes_ = bytes;
}

uint64_t ArenaAccount::bytes() const {
  MutexLock lock(&arena_->mu_);
  return bytes_;
}

uint64_t ArenaAccount::limit_bytes() const {
  MutexLock lock(&arena_->mu_);
  return limit_bytes_;
}

uint64_t ArenaAccount::left_bytes() const {
  MutexLock lock(&arena_->mu_);
  return limit_bytes_ > bytes_ ? limit_bytes_ - bytes_ : 0;
}

ArenaUsage FrameArena::usage() const {
  MutexLock lock(&mu_);
  return {ceiling_bytes_,
          fixed_bytes_,
          frame_bytes_,
          index_bytes_,
          reserved_bytes_,
          FreeBytesLocked(),
          extents_backed_ * kExtentBytes};
}

}  // namespace nram
