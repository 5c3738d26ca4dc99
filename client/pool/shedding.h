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
  // Some server asks.
  bool asks() const { return asking_ > 0; }
  // Whether a copy that was counted is to leave now; then it is under way until Left or Stayed.
  bool Takes(uint16_t server, int rank, int64_t now_ns);

  // --- Thread-safe.
  // How a copy that was taken has ended.
  void Left(uint16_t server) {
    accounts_[server].here -= 1;
    accounts_[server].under_way -= 1;
  }
  void Stayed(uint16_t server) { accounts_[server].under_way -= 1; }
  // There is nowhere to go for what has no sibling: not before kNowhereNs is over.
  void NoteNowhere(uint16_t server, int64_t now_ns) { accounts_[server].nowhere_until_ns = now_ns + kNowhereNs; }
  // What a span has left at the server takes memory there until it is freed.
  void NoteLeftover(uint16_t server) { accounts_[server].leftovers += 1; }
  void NoteFreed(uint16_t server) { accounts_[server].leftovers -= 1; }

 private:
  static constexpr int64_t kNowhereNs = 300 * kNsPerMs;
  // Memory comes back when leftovers are freed. With so many, that has to go first.
  static constexpr int64_t kLeftoversMax = 4096;

  struct Account {
    std::array<uint64_t, kRanks> counting{};  // by the present walk
    std::array<uint64_t, kRanks> ranks{};     // by the last
    bool counts = false;                      // the present walk does, from its beginning
    bool is_counted = false;
    uint64_t word = 0;
    uint32_t share = 0;
    uint64_t budget = 0;  // copies that are still to be taken
    int rank_max = 0;     // of which
    std::atomic<int64_t> here{0};
    std::atomic<int64_t> leftovers{0};
    std::atomic<int64_t> under_way{0};
    std::atomic<int64_t> nowhere_until_ns{0};
  };
  static void SetBudget(Account* account);

  size_t size_ = 0;
  std::unique_ptr<Account[]> accounts_;  // by server
  size_t asking_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SHEDDING_H_
