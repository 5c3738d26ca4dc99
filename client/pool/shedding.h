#ifndef NRAM_CLIENT_POOL_SHEDDING_H_
#define NRAM_CLIENT_POOL_SHEDDING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"

namespace nram {

// Chooses the spans to move away from servers that ask for memory (adr/0017), and their number. Pure. A walk over all
// spans counts those of each server that asks, by how easily they can be moved: a *rank*. A server's word says which
// share of them is to be moved. Then the next walks take that number, of the lowest ranks.
//
// Not thread-safe, except for the functions marked so.
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

  // The server's word number `word` (they rise) asks for this share, in millionths, of the data there. The same word
  // twice is nothing new.
  void Hear(uint16_t server, uint64_t word, uint32_t share);
  // Whether the server may take a span, while some server asks. Where one may that could not before, pauses become
  // short ones (NoteNowhere).
  void HearRoom(uint16_t server, bool has_room);
  // Some server asks.
  bool asks() const { return asking_ > 0; }
  // A walk may find something to take: some server asks, and its spans have a receiver.
  bool WantsWalk(int64_t now_ns) const;
  // Whether a counted copy is to be moved now; then it is under way until Left or Stayed.
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
  // None was found, or one was. After some searches in vain there is no receiver: nothing is looked for in a pause,
  // which doubles each time. Then a few others are tried, so that some spans that cannot move do not keep the rest.
  void NoteNowhere(uint16_t server, int64_t now_ns);
  void NoteSomewhere(uint16_t server);
  // The data of a moved span takes memory at the server until it is freed.
  void NoteLeftover(uint16_t server) { accounts_[server].leftovers += 1; }
  void NoteFreed(uint16_t server) { accounts_[server].leftovers -= 1; }

 private:
  // Less than half of a server's patience (memserver/give_back.h), at the most.
  static constexpr int64_t kPauseMinNs = 300 * kNsPerMs;
  static constexpr int64_t kPauseMaxNs = 8 * kPauseMinNs;
  static constexpr int kSearches = 64;      // in vain, until there is no receiver
  static constexpr int kSearchesAgain = 4;  // after each pause
  // Memory is gained only when leftovers are freed. At this number they must be freed first.
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
    // Copies without a sibling that the present walk passes over, and then those that it takes.
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
