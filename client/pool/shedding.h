#ifndef NRAM_CLIENT_POOL_SHEDDING_H_
#define NRAM_CLIENT_POOL_SHEDDING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"

namespace nram {

// Which spans leave the servers that ask for memory (adr/0017), and how many. Pure. A walk over all spans counts those
// of each server that asks, by how easily they leave: a *rank*. A server's word says which share of them is to leave;
// then the next walks take so many, of the lowest ranks.
//
// Not thread-safe, but for what is marked so.
class Shedding {
 public:
  // 0: another copy makes it dispensable. Then those that must move, by their heat: 1 to kRanks - 1.
  static constexpr int kRanks = 5;
  static int RankOf(bool has_sibling, int heat) { return has_sibling ? 0 : 1 + heat; }

  // Allocates. Before all else, once.
  void Prepare(size_t servers);

  // --- A walk over all spans.
  void BeginPass();
  // A span has a copy there.
  void Count(uint16_t server, int rank) { accounts_[server].counting[rank] += 1; }
  void EndPass();

  // The server's word number `word` (they rise) says: so many millionths of what is there. The same word twice is
  // nothing new.
  void Hear(uint16_t server, uint64_t word, uint32_t share);
  // Whether the server may take a span, while some server asks. Where one may that could not before, pauses become
  // short ones (NoteNowhere).
  void HearRoom(uint16_t server, bool has_room);
  // Some server asks.
  bool asks() const { return asking_ > 0; }
  // A walk may find something to take: some server asks, and there is somewhere to go for what it has.
  bool WantsWalk(int64_t now_ns) const;
  // Whether a copy that was counted is to leave now; then it is under way until Left or Stayed.
  bool Takes(uint16_t server, int rank, int64_t now_ns);

  // --- Thread-safe.
  // How a copy that was taken has ended.
  void Left(uint16_t server) {
    accounts_[server].here -= 1;
    accounts_[server].under_way -= 1;
  }
  void Stayed(uint16_t server) { accounts_[server].under_way -= 1; }
  // A copy without a sibling needs a receiver. Whether to look for one, for a copy that was taken.
  bool MaySearch(uint16_t server, int64_t now_ns) const { return now_ns >= accounts_[server].nowhere_until_ns; }
  // None was found, or one was. After some searches in vain there is nowhere to go: nothing is looked for in a pause,
  // which doubles each time. Then a few others are tried, so that some spans that cannot move do not keep the rest.
  void NoteNowhere(uint16_t server, int64_t now_ns);
  void NoteSomewhere(uint16_t server);
  // The data that a span has left at the server takes memory there until it is freed.
  void NoteLeftover(uint16_t server) { accounts_[server].leftovers += 1; }
  void NoteFreed(uint16_t server) { accounts_[server].leftovers -= 1; }

 private:
  // Less than half of a server's patience (memserver/give_back.h), at the most.
  static constexpr int64_t kPauseMinNs = 300 * kNsPerMs;
  static constexpr int64_t kPauseMaxNs = 8 * kPauseMinNs;
  static constexpr int kSearches = 64;      // in vain, until there is nowhere to go
  static constexpr int kSearchesAgain = 4;  // after each pause
  // Memory comes back when leftovers are freed. With so many, that has to go first.
  static constexpr int64_t kLeftoversMax = 4096;

  struct Account {
    std::array<uint64_t, kRanks> counting{};  // by the present walk
    std::array<uint64_t, kRanks> ranks{};     // by the last
    bool counts = false;                      // the present walk does, from its beginning
    bool is_counted = false;
    uint64_t word = 0;
    uint32_t share = 0;
    bool has_room = false;
    uint64_t budget = 0;  // copies that are still to be taken
    int rank_max = 0;     // of which
    // In the present walk, of those without a sibling: so many are passed over, and then so many are taken.
    uint64_t to_pass = 0;
    uint64_t to_take = 0;
    std::atomic<int64_t> here{0};
    std::atomic<int64_t> leftovers{0};
    std::atomic<int64_t> under_way{0};
    std::atomic<int64_t> nowhere_since_ns{0};
    std::atomic<int64_t> nowhere_until_ns{0};
    std::atomic<int64_t> pause_ns{kPauseMinNs};  // the next one
    std::atomic<int> searches{kSearches};        // until then
    std::atomic<uint64_t> tried{0};              // spans, in the order of the walk, that found nothing
  };
  static void SetBudget(Account* account);

  size_t size_ = 0;
  std::unique_ptr<Account[]> accounts_;  // by server
  size_t asking_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SHEDDING_H_
