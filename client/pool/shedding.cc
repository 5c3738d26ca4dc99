#include "client/pool/shedding.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/plant.h"

namespace nram {

void Shedding::Prepare(size_t servers) {
  size_ = servers;
  accounts_ = std::make_unique<Account[]>(servers);
}

void Shedding::BeginPass() {
  for (size_t server = 0; server < size_; ++server) {
    Account& account = accounts_[server];
    account.counting = {};
    account.counts = account.share > 0;
    // Once all of the ranks that are taken have been tried, the first ones are again.
    const auto end = account.ranks.begin() + account.rank_max + 1;
    if (account.tried >=
        std::accumulate(account.ranks.begin() + 1, std::max(end, account.ranks.begin() + 1), uint64_t{0})) {
      account.tried = 0;
    }
    account.to_pass = account.tried;
    account.to_take = account.pause_ns > kPauseMinNs ? kSearchesAgain : UINT64_MAX;
  }
}

void Shedding::EndPass() {
  for (size_t server = 0; server < size_; ++server) {
    Account& account = accounts_[server];
    if (!std::exchange(account.counts, false) || account.share == 0) continue;
    account.ranks = account.counting;
    account.here = static_cast<int64_t>(std::accumulate(account.ranks.begin(), account.ranks.end(), uint64_t{0}));
    if (!std::exchange(account.is_counted, true)) SetBudget(&account);
  }
}

void Shedding::Hear(uint16_t server, uint64_t word, uint32_t share) {
  Account& account = accounts_[server];
  if (account.word == word) return;
  account.word = word;
  if ((account.share > 0) != (share > 0)) {
    share > 0 ? ++asking_ : --asking_;
    account.is_counted = account.counts = false;
    account.budget = 0;
    account.nowhere_until_ns = account.nowhere_since_ns = 0;
    account.tried = 0;
    NoteSomewhere(server);
  }
  account.share = share;
  if (account.is_counted) SetBudget(&account);
}

void Shedding::SetBudget(Account* account) {
  const int64_t here = std::max<int64_t>(account->here, 0);
  const int64_t leftovers = std::max<int64_t>(account->leftovers, 0);
  // The server also counts the leftovers that are not freed yet.
  const double wanted = static_cast<double>(here + leftovers) * account->share / 1e6;
  const int64_t budget = static_cast<int64_t>(wanted + 0.999) - leftovers - account->under_way;
  account->budget = leftovers < kLeftoversMax ? static_cast<uint64_t>(std::max<int64_t>(budget, 0)) : 0;
  uint64_t of_ranks = 0;
  account->rank_max = 0;
  while (account->rank_max + 1 < kRanks && (of_ranks += account->ranks[account->rank_max]) < account->budget) {
    ++account->rank_max;
  }
}

void Shedding::HearRoom(uint16_t server, bool has_room) {
  if (!has_room || std::exchange(accounts_[server].has_room, has_room)) {
    accounts_[server].has_room = has_room;
    return;
  }
  for (size_t other = 0; other < size_; ++other) {
    Account& account = accounts_[other];
    account.nowhere_until_ns = std::min(account.nowhere_until_ns.load(), account.nowhere_since_ns + kPauseMinNs);
  }
}

bool Shedding::WantsWalk(int64_t now_ns) const {
  for (size_t server = 0; asks() && server < size_; ++server) {
    const Account& account = accounts_[server];
    if (account.share > 0 && now_ns >= account.nowhere_until_ns) return true;
  }
  return false;
}

void Shedding::NoteNowhere(uint16_t server, int64_t now_ns) {
  Account& account = accounts_[server];
  account.tried += 1;
  if (NRAM_PLANTED(donors_search_for_ever)) return;
  // Two slots at once may count twice: it is a pause anyway.
  if (account.searches.fetch_sub(1) > 1) return;
  const int64_t pause_ns = account.pause_ns;
  account.nowhere_since_ns = now_ns;
  account.nowhere_until_ns = now_ns + pause_ns;
  account.pause_ns = std::min(2 * pause_ns, kPauseMaxNs);
  account.searches = kSearchesAgain;
}

void Shedding::NoteSomewhere(uint16_t server) {
  Account& account = accounts_[server];
  account.searches = kSearches;
  account.pause_ns = kPauseMinNs;
}

bool Shedding::Takes(uint16_t server, int rank, int64_t now_ns) {
  Account& account = accounts_[server];
  if (NRAM_PLANTED(donors_no_budget) && account.is_counted) account.budget = 1;
  if (account.budget == 0 || rank > account.rank_max) return false;
  if (rank > 0) {
    if (now_ns < account.nowhere_until_ns || account.to_take == 0) return false;
    if (account.to_pass > 0) {
      --account.to_pass;
      return false;
    }
    --account.to_take;
  }
  --account.budget;
  account.under_way += 1;
  return true;
}

}  // namespace nram
