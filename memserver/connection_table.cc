#include "memserver/connection_table.h"

#include <sys/socket.h>

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"

namespace nram {

ConnectionPlace::ConnectionPlace(ConnectionTable* table, const Session* session, int fd, std::string source,
                                 int64_t accepted_ns)
    : table_(table), session_(session), fd_(fd), source_(std::move(source)), accepted_ns_(accepted_ns) {
  MutexLock lock(&table_->mu_);
  table_->places_.insert(this);
}

ConnectionPlace::~ConnectionPlace() {
  MutexLock lock(&table_->mu_);
  table_->places_.erase(this);
  if (displaced_) table_->gone_.SignalAll();
}

ConnectionPlace* ConnectionTable::ChooseIdleLocked(const Tenant* tenant) const {
  constexpr int kNone = 3;
  ConnectionPlace* chosen = nullptr;
  int chosen_rank = kNone;
  for (ConnectionPlace* place : places_) {
    if (place->displaced_ || (tenant != nullptr && place->session_->tenant() != tenant)) continue;
    const Lease* const lease = place->lease_.load(std::memory_order_acquire);
    const int rank = place->session_->fenced() ? 0 : lease == nullptr ? 1 : !lease->used ? 2 : kNone;
    if (rank == kNone || rank > chosen_rank) continue;
    if (rank < chosen_rank || place->accepted_ns_ < chosen->accepted_ns_) chosen = place;
    chosen_rank = rank;
  }
  return chosen;
}

ConnectionPlace* ConnectionTable::ChooseLocked(absl::string_view source) const {
  ConnectionPlace* chosen = ChooseIdleLocked(/*tenant=*/nullptr);
  if (chosen != nullptr) return chosen;
  absl::flat_hash_map<absl::string_view, size_t> by_source;
  for (const ConnectionPlace* place : places_) {
    if (!place->displaced_) ++by_source[place->source_];
  }
  absl::string_view largest;
  size_t most = 0;
  for (const auto& [from, count] : by_source) {
    if (count > most) {
      largest = from;
      most = count;
    }
  }
  if (most <= places_.size() / 4 || by_source[source] >= most / 2) return nullptr;
  for (ConnectionPlace* place : places_) {
    if (place->displaced_ || place->source_ != largest) continue;
    if (chosen == nullptr || place->accepted_ns_ > chosen->accepted_ns_) chosen = place;
  }
  return chosen;
}

bool ConnectionTable::MakeRoomFor(absl::string_view source, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  return DisplaceLocked(ChooseLocked(source), deadline_ns);
}

bool ConnectionTable::MakeRoomFor(const Tenant* tenant, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  return DisplaceLocked(ChooseIdleLocked(tenant), deadline_ns);
}

bool ConnectionTable::DisplaceLocked(ConnectionPlace* chosen, int64_t deadline_ns) {
  if (chosen == nullptr) return false;
  chosen->displaced_ = true;
  // The connection's worker finds the end of the stream. The descriptor is still the connection's, which leaves the
  // table before it closes the descriptor.
  shutdown(chosen->fd_, SHUT_RDWR);
  while (places_.contains(chosen)) {
    if (!gone_.WaitUntil(&mu_, deadline_ns)) return !places_.contains(chosen);
  }
  return true;
}

}  // namespace nram
