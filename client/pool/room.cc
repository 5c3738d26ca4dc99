#include "client/pool/room.h"

#include <glog/logging.h>

#include <algorithm>

#include "base/plant.h"

namespace nram {

Room::Grant& Room::Grant::operator=(Grant&& other) noexcept {
  CHECK_EQ(bytes_, 0) << "a grant of room was forgotten";
  bytes_ = std::exchange(other.bytes_, 0);
  term_ = other.term_;
  is_regions_ = other.is_regions_;
  return *this;
}

Room::Grant::~Grant() { CHECK_EQ(bytes_, 0) << "a grant of room was forgotten"; }

void Room::Grant::Absorb(Grant other) {
  if (!other) return;
  if (bytes_ == 0) {
    *this = std::move(other);
    return;
  }
  CHECK_EQ(is_regions_, other.is_regions_);
  bytes_ += std::exchange(other.bytes_, 0);
  term_ = std::min(term_, other.term_);
}

bool Room::AddFree(int64_t bytes, uint32_t term) {
  uint64_t purse = purse_.load(std::memory_order_relaxed);
  do {
    if (!IsOf(purse, term) && !NRAM_PLANTED(former_term_counts)) return false;
  } while (!purse_.compare_exchange_weak(purse, Purse(TermOf(purse), FreeOf(purse) + bytes)));
  return true;
}

void Room::AddFreeNow(int64_t bytes) {
  while (!AddFree(bytes, TermOf(purse_))) {
  }
}

Room::Grant Room::TryTake(uint64_t bytes) {
  const auto wanted = static_cast<int64_t>(bytes);
  uint64_t purse = purse_.load(std::memory_order_relaxed);
  if (bytes == 0 || FreeOf(purse) < wanted) return {};
  Begin(bytes);
  do {
    if (FreeOf(purse) < wanted) {
      End(bytes);
      return {};
    }
  } while (!purse_.compare_exchange_weak(purse, Purse(TermOf(purse), FreeOf(purse) - wanted)));
  return Grant(bytes, TermOf(purse), /*is_regions=*/false);
}

void Room::Used(Grant grant, uint64_t used_bytes) {
  CHECK(!grant.is_regions());
  if (!grant) return;
  events_ += 1;
  auto used = static_cast<int64_t>(std::min(used_bytes, std::max(grant.bytes(), kUsedBytesMax)));
  if (NRAM_PLANTED(room_returned_twice)) used -= static_cast<int64_t>(grant.bytes()) - used;
  // A grant of an older term returns nothing. Whether its write was executed then or in the present term is not known:
  // it is charged, which costs room until the next exact word at the worst. Missing room would fail a write.
  if (!AddFree(static_cast<int64_t>(grant.bytes()) - used, grant.term()) && used > 0) AddFreeNow(-used);
  if (!NRAM_PLANTED(grant_leaked) || used > 0) End(grant.bytes());
  grant.End();
}

uint32_t Room::Reserve(Grant grant) {
  CHECK(!grant.is_regions());
  if (!grant) return 0;
  events_ += 1;
  MutexLock lock(&mu_);
  const bool is_present = IsOf(Purse(term_, 0), grant.term());
  if (is_present) reserved_bytes_ += static_cast<int64_t>(grant.bytes());
  End(grant.bytes());
  grant.End();
  return is_present ? term_ : 0;
}

Room::Grant Room::TakeReserved(uint64_t bytes, uint32_t term) {
  MutexLock lock(&mu_);
  if (term != term_ || bytes == 0) return {};
  Begin(bytes);
  reserved_bytes_ -= static_cast<int64_t>(bytes);
  return Grant(bytes, term, /*is_regions=*/true);
}

bool Room::EndReserved(Grant grant, uint64_t used_bytes) {
  CHECK(grant.is_regions());
  events_ += 1;
  MutexLock lock(&mu_);
  const bool is_present = grant.term() == term_;
  if (is_present) reserved_bytes_ += static_cast<int64_t>(grant.bytes()) - static_cast<int64_t>(used_bytes);
  End(grant.bytes());
  grant.End();
  return is_present;
}

bool Room::ReleaseReserved(uint64_t bytes, uint32_t term) {
  events_ += 1;
  MutexLock lock(&mu_);
  if (term != term_) return false;
  reserved_bytes_ -= static_cast<int64_t>(bytes);
  AddFree(static_cast<int64_t>(bytes), term);
  return true;
}

bool Room::ChargeReserved(uint64_t bytes, uint32_t term) {
  // The other way round.
  return ReleaseReserved(uint64_t{0} - bytes, term);
}

void Room::Charge(uint64_t bytes) {
  events_ += 1;
  AddFreeNow(-static_cast<int64_t>(std::min(bytes, kUsedBytesMax)));
}

uint32_t Room::Hold() {
  Begin(1);
  return term();
}

bool Room::Unhold(uint64_t reserved_bytes, uint32_t term) {
  events_ += 1;
  MutexLock lock(&mu_);
  const bool is_present = term == term_;
  if (is_present) reserved_bytes_ += static_cast<int64_t>(reserved_bytes);
  End(1);
  return is_present;
}

void Room::EndDoubt(uint32_t term) {
  Unhold(0, term);
  doubts_ -= 1;
}

bool Room::Enter(uint64_t incarnation, uint64_t lease_term) {
  MutexLock lock(&mu_);
  if (incarnation == incarnation_ && lease_term == lease_term_) return false;
  events_ += 1;
  incarnation_ = incarnation;
  lease_term_ = lease_term;
  reserved_bytes_ = 0;
  unsettled_ = false;  // requests of a former term are not executed in this one
  purse_ = Purse(++term_, 0);
  return true;
}

bool Room::IsPresent(uint64_t incarnation, uint64_t lease_term) const {
  MutexLock lock(&mu_);
  return incarnation == incarnation_ && lease_term == lease_term_;
}

uint32_t Room::term() const {
  MutexLock lock(&mu_);
  return term_;
}

uint64_t Room::lease_term() const {
  MutexLock lock(&mu_);
  return lease_term_;
}

bool Room::AddReservation(uint64_t bytes, uint64_t incarnation, uint64_t lease_term) {
  events_ += 1;
  MutexLock lock(&mu_);
  if (incarnation != incarnation_ || lease_term != lease_term_) return false;
  return AddFree(static_cast<int64_t>(bytes), term_);
}

bool Room::Hear(uint64_t reservation_bytes, uint64_t look) {
  MutexLock lock(&mu_);
  // Below 0 if a region counts on more than there is: then the client's next reservation makes up for it.
  const int64_t free = static_cast<int64_t>(std::min(reservation_bytes, kReservationBytesMax)) - reserved_bytes_;
  uint64_t purse = purse_;
  do {
    if (granted_bytes_ != 0 || unsettled_ || events_ != look) return false;
  } while (!purse_.compare_exchange_weak(purse, Purse(term_, free)));
  return true;
}

uint64_t Room::TakeSurplus(uint64_t reservation_bytes, uint64_t keep_bytes) {
  events_ += 1;
  MutexLock lock(&mu_);
  const auto keep = static_cast<int64_t>(keep_bytes);
  uint64_t purse = purse_;
  int64_t pages = 0;
  do {
    if (doubts_ != 0) return 0;
    const auto granted = static_cast<int64_t>(granted_bytes_.load());
    const int64_t most = static_cast<int64_t>(reservation_bytes) - reserved_bytes_ - granted;
    pages = std::max<int64_t>(std::min(FreeOf(purse), most) - keep, 0) / static_cast<int64_t>(kBytesPerPage);
  } while (
      !purse_.compare_exchange_weak(purse, Purse(term_, FreeOf(purse) - pages * static_cast<int64_t>(kBytesPerPage))));
  return static_cast<uint64_t>(pages);
}

}  // namespace nram
