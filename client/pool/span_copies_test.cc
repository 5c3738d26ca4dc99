#include "client/pool/span_copies.h"

#include <bit>
#include <optional>
#include <random>
#include <set>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Verdict = SpanCopies::Verdict;

TEST(SpanCopiesTest, OneCopyHasNoGeneration) {
  SpanCopies span;
  EXPECT_FALSE(span.placed() || span.lost());
  span.Place({7}, /*one_copy=*/true);
  EXPECT_EQ(span.in_sync(), 1);
  EXPECT_EQ(span.replica_host(0), 7);
  EXPECT_EQ(span.EndChange(0, 0), Verdict::kAgain);
  span.NoteDoubt();
  EXPECT_FALSE(span.doubtful()) << "one copy does not differ from itself";
  EXPECT_EQ(span.EndChange(1, 1), Verdict::kDone);
  EXPECT_EQ(span.generation(), SpanGeneration{0});
  EXPECT_FALSE(span.Drop(0));
  EXPECT_FALSE(span.Bury(1));
  EXPECT_TRUE(span.lost());
  EXPECT_TRUE(span.Bury(1)) << "that did not lose it";
  span.Place({8}, true);
  EXPECT_FALSE(span.lost());
}

TEST(SpanCopiesTest, ACopyThatMissesAChangeIsStale) {
  SpanCopies span;
  span.Place({1, 2}, false);
  EXPECT_EQ(span.generation(), SpanGeneration{2});
  EXPECT_EQ(span.EndChange(0b11, 0b11), Verdict::kDone);
  EXPECT_EQ(span.EndChange(0b01, 0b01), Verdict::kSettle);
  EXPECT_EQ(span.state(1), CopyState::kStale);
  EXPECT_EQ(span.generation(), SpanGeneration{4});
  EXPECT_FALSE(span.EndSettle(SpanGeneration{2}, 0b01, 0)) << "an answer to the former generation";
  EXPECT_TRUE(span.EndSettle(SpanGeneration{4}, 0b01, 0));
  EXPECT_EQ(span.EndChange(0b01, 0b01), Verdict::kDone);
  EXPECT_EQ(span.EndChange(0b10, 0b10), Verdict::kAgain) << "only a stale copy has it, and the last one in sync stays";
  EXPECT_EQ(span.in_sync(), 0b01);
  EXPECT_FALSE(span.Bury(0b01));
  span.Place({3, 4}, false);
  EXPECT_EQ(span.generation(), SpanGeneration{6}) << "what is left of the former place must not be believed";
}

TEST(SpanCopiesTest, TwoChangesThatEachAnotherCopyMissedLeaveOne) {
  SpanCopies span;
  span.Place({1, 2}, false);
  EXPECT_EQ(span.EndChange(0b01, 0b01), Verdict::kSettle);
  EXPECT_EQ(span.EndChange(0b10, 0b10), Verdict::kAgain);
  EXPECT_EQ(span.in_sync(), 0b01);
}

TEST(SpanCopiesTest, ARefusalThatLeftCopiesAlikeCostsNone) {
  SpanCopies span;
  span.Place({1, 2, 3}, false);
  const SpanCopies before = span;
  span.EndRefused(0b111);
  EXPECT_EQ(span, before);
  span.EndRefused(0b110);
  EXPECT_EQ(span.in_sync(), 0b110);
  EXPECT_TRUE(span.unsettled());
  span.EndRefused(0b001);
  EXPECT_EQ(span.in_sync(), 0b110) << "the stale one is no reason to drop those in sync";
}

TEST(SpanCopiesTest, OnlyTheLastTruthCounts) {
  SpanCopies span;
  span.Place({1, 2}, false);
  span.NoteDoubt();
  const SpanGeneration first = span.BeginTruth(0);
  const SpanGeneration second = span.BeginTruth(1);
  EXPECT_NE(first, second);
  EXPECT_FALSE(span.EndTruth(0, first));
  EXPECT_TRUE(span.doubtful());
  EXPECT_TRUE(span.EndTruth(1, second));
  EXPECT_EQ(span.in_sync(), 0b10);
  EXPECT_FALSE(span.doubtful() || span.unsettled());
}

TEST(SpanCopiesTest, ACopyJoinsAndCatchesUp) {
  SpanCopies span;
  span.Place({1}, false);
  const int copy = span.Join(9);
  ASSERT_EQ(copy, 1);
  EXPECT_EQ(span.state(copy), CopyState::kStale) << "it must be emptied first";
  span.BeginOpen(copy);
  span.Open(copy);
  EXPECT_EQ(span.changed(), 0b11);
  EXPECT_EQ(span.in_sync(), 0b01);
  EXPECT_EQ(span.GenerationFor(copy), SpanGeneration{3});
  EXPECT_EQ(span.EndChange(0b11, 0b11), Verdict::kDone);
  span.EndJoin(copy, true);
  EXPECT_EQ(span.in_sync(), 0b11);
  EXPECT_TRUE(span.Drop(0));
  EXPECT_EQ(span.generation(), SpanGeneration{6}) << "the one that has left must refuse";
  EXPECT_TRUE(span.unsettled());
  EXPECT_FALSE(span.Drop(1));
  EXPECT_EQ(span.Join(5), 0);
  span.BeginOpen(0);
  span.Open(0);
  EXPECT_EQ(span.EndChange(0b10, 0b10), Verdict::kDone) << "one that catches up may miss a change";
  EXPECT_EQ(span.state(0), CopyState::kStale);
  EXPECT_EQ(span.Join(6), 0);
  span.BeginOpen(0);
  span.Open(0);
  span.EndJoin(0, false);
  EXPECT_EQ(span.generation(), SpanGeneration{12}) << "the stale copy may have generation 10";
  EXPECT_TRUE(span.unsettled());
}

// A register in a span of up to four copies on servers that follow the rule of adr/0014. Messages are executed or not,
// and answered or not. One operation runs at a time, as the gate orders those that overlap.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) { Place(); }

  void Step() {
    switch (Random(8)) {
      case 0:
      case 1:
      case 2:
        Write();
        break;
      case 3:
      case 4:
        Read();
        break;
      case 5:
        // The server of a copy restarts.
        if (Random(4) == 0) Kill(static_cast<int>(Random(SpanCopies::kMost)));
        break;
      case 6:
        Repair();
        break;
      case 7:
        trouble_ = Random(3) * 20;
        break;
    }
    CheckOthersRefuse();
  }
  int losses() const { return losses_; }
  int reads() const { return reads_; }

 private:
  struct Server {
    uint32_t generation = 0;  // 0: it has no leaf
    int value = 0;
  };
  struct Answer {
    bool stored = false;
    bool answered = false;
    bool other_generation = false;
  };

  uint64_t Random(uint64_t bound) { return random_() % bound; }

  void Place() {
    const size_t count = 1 + Random(3);
    std::vector<uint16_t> replica_hosts;
    for (size_t i = 0; i < count; ++i) replica_hosts.push_back(static_cast<uint16_t>(i));
    span_.Place(replica_hosts, /*one_copy=*/false);
    // A write that creates the leaf: of zeros here.
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      servers_[copy] = {};
      if (span_.state(copy) == CopyState::kInSync) servers_[copy].generation = Raw(span_.generation());
    }
    possible_ = {0};
  }

  // A message with a value, or one that only raises the generation.
  Answer Send(int copy, SpanGeneration generation, std::optional<int> value, bool creates = false) {
    Server& server = servers_[copy];
    const bool arrives = Random(100) >= trouble_;
    Answer answer;
    if (!arrives) return answer;
    answer.answered = Random(100) >= trouble_;
    const uint32_t sent = Raw(generation);
    if (sent < server.generation || (server.generation == 0 && !creates)) {
      answer.other_generation = answer.answered;
      return answer;
    }
    if (sent > server.generation && creates) server.value = 0;
    server.generation = sent;
    if (value.has_value()) server.value = *value;
    answer.stored = true;
    if (answer.answered) span_.NoteKnown(copy);
    return answer;
  }

  bool Settle() {
    for (int attempt = 0; attempt < 20; ++attempt) {
      if (span_.doubtful()) {
        const CopySet copies = span_.in_sync();
        const int copy = std::countr_zero(copies);
        const int other = std::bit_width(copies) - 1;
        const int chosen = Random(2) == 0 ? copy : other;
        const SpanGeneration generation = span_.BeginTruth(chosen);
        const Answer answer = Send(chosen, generation, std::nullopt);
        if (answer.stored && answer.answered) {
          EXPECT_TRUE(span_.EndTruth(chosen, generation));
        }
        continue;
      }
      if (!span_.unsettled()) return true;
      CopySet answered = 0, missed = 0;
      const SpanGeneration generation = span_.generation();
      for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
        if (span_.state(copy) != CopyState::kInSync) continue;
        const Answer answer = Send(copy, generation, std::nullopt);
        EXPECT_FALSE(answer.other_generation) << "a copy in sync refuses the owner";
        (answer.stored && answer.answered ? answered : missed) |= 1u << copy;
      }
      (void)span_.EndSettle(generation, answered, missed);
    }
    return !span_.doubtful() && !span_.unsettled();
  }

  void Write() {
    const int value = ++last_value_;
    possible_.insert(value);
    bool any_answer = false;
    for (int attempt = 0; attempt < 3; ++attempt) {
      CopySet stored = 0;
      for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
        if ((span_.changed() >> copy & 1) == 0) continue;
        const Answer answer = Send(copy, span_.GenerationFor(copy), value);
        if (answer.stored && answer.answered) stored |= 1u << copy;
        // A copy that catches up and has no leaf yet refuses: it misses the change.
        EXPECT_FALSE(answer.other_generation && span_.state(copy) == CopyState::kInSync);
      }
      any_answer = any_answer || stored != 0;
      switch (span_.EndChange(stored, stored)) {
        case Verdict::kSettle:
          if (!Settle()) return;  // stored, and the caller has an error
          [[fallthrough]];
        case Verdict::kDone:
          possible_ = {value};
          return;
        case Verdict::kAgain:
          break;
      }
    }
    span_.NoteDoubt();
  }

  void Read() {
    if (!Settle()) return;
    const CopySet copies = span_.in_sync();
    for (unsigned rest = copies; rest != 0; rest &= rest - 1) {
      const int copy = std::countr_zero(rest);
      ASSERT_EQ(servers_[copy].generation, Raw(span_.generation())) << "a copy in sync refuses a read";
      const int value = servers_[copy].value;
      ASSERT_TRUE(possible_.count(value)) << "copy " << copy << " has " << value;
      // From now on the value is this one, on all copies.
      possible_ = {value};
      ++reads_;
    }
  }

  void Kill(int copy) {
    servers_[copy] = {};
    if (span_.Bury(1u << copy)) {
      if (!span_.placed()) Place();
      return;
    }
    ++losses_;
    EXPECT_TRUE(span_.lost());
    Place();
  }

  void Repair() {
    if (!Settle() || std::popcount(span_.in_sync()) == SpanCopies::kMost) return;
    const int from = std::countr_zero(span_.in_sync());
    const int copy = span_.Join(next_replica_host_++);
    if (copy < 0) return;
    span_.BeginOpen(copy);
    const Answer opened = Send(copy, SpanGeneration{Raw(span_.generation()) - 1}, std::nullopt, /*creates=*/true);
    if (!opened.stored || !opened.answered) return;
    span_.Open(copy);
    if (!Settle() || span_.state(copy) != CopyState::kCatchingUp) return;
    // The only block: written whole.
    const Answer copied = Send(copy, span_.GenerationFor(copy), servers_[from].value);
    if (Random(2) == 0) Write();
    if (span_.state(copy) != CopyState::kCatchingUp) return;
    if (!copied.stored || !copied.answered) {
      (void)span_.EndChange(span_.in_sync(), span_.in_sync());  // it missed this one
      EXPECT_EQ(span_.state(copy), CopyState::kStale);
      return;
    }
    const Answer raised = Send(copy, span_.generation(), std::nullopt);
    span_.EndJoin(copy, raised.stored && raised.answered);
  }

  // A read with the owner's generation is refused by a copy that is not in sync.
  void CheckOthersRefuse() {
    if (span_.doubtful()) return;
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      if (span_.state(copy) != CopyState::kStale && span_.state(copy) != CopyState::kCatchingUp) continue;
      ASSERT_NE(servers_[copy].generation, Raw(span_.generation())) << "copy " << copy << " could be believed";
    }
  }

  std::mt19937_64 random_;
  SpanCopies span_;
  std::array<Server, SpanCopies::kMost> servers_;
  std::set<int> possible_;  // the values that a read may return
  int last_value_ = 0;
  uint16_t next_replica_host_ = 100;
  uint64_t trouble_ = 0;  // of a hundred messages and answers, so many are lost
  int losses_ = 0;
  int reads_ = 0;
};

TEST(SpanCopiesTest, NobodyReadsWhatWasOverwritten) {
  int losses = 0, reads = 0;
  for (uint64_t round = 0; round < 300 && !::testing::Test::HasFailure(); ++round) {
    Model model(TestSeed() + round);
    for (int step = 0; step < 300 && !::testing::Test::HasFailure(); ++step) model.Step();
    losses += model.losses();
    reads += model.reads();
  }
  EXPECT_GT(losses, 0);
  EXPECT_GT(reads, 10'000);
}

}  // namespace
}  // namespace nram
