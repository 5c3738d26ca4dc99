#include "tests/sim/register_history.h"

#include "gtest/gtest.h"

namespace nram::sim {
namespace {

using Effect = RegisterHistory::Effect;

TEST(RegisterHistoryTest, AnAcknowledgedWriteIsNeverUnseen) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  history.EndWrite(1, true, 2, 2);
  EXPECT_EQ(history.EndRead(1, 3, 4, 3), "");
  EXPECT_NE(history.EndReadOfZeros(5, 6, 5), "");
}

TEST(RegisterHistoryTest, AReadBesideAWriteFindsOldOrNew) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  EXPECT_EQ(history.EndReadOfZeros(2, 3, 2), "");
  EXPECT_EQ(history.EndRead(1, 4, 5, 4), "");
  // Once seen, it is there.
  EXPECT_NE(history.EndReadOfZeros(6, 7, 6), "");
  history.EndWrite(1, true, 8, 8);
}

TEST(RegisterHistoryTest, AReadThatBeganBeforeTheWriteEndedMayFindTheOld) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  history.EndWrite(1, true, 2, 2);
  history.BeginWrite(2, false, 3);
  history.EndWrite(2, true, 5, 4);  // a read has been under way since 4
  EXPECT_EQ(history.EndRead(1, 4, 6, 6), "");
  EXPECT_NE(history.EndRead(1, 7, 8, 7), "");
}

TEST(RegisterHistoryTest, AFailedWriteTakesEffectOnceOrNever) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  history.EndWrite(1, true, 2, 2);
  history.BeginWrite(2, false, 3);
  history.EndWrite(2, false, 4, 4);
  EXPECT_EQ(history.EndRead(1, 5, 6, 5), "");
  EXPECT_EQ(history.EndRead(2, 7, 8, 7), "");
  EXPECT_NE(history.EndRead(1, 9, 10, 9), "") << "what was seen once has vanished";
}

TEST(RegisterHistoryTest, AFailedWriteDoesNotOvertakeALaterOne) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  history.EndWrite(1, false, 2, 2);
  history.BeginWrite(2, false, 3);
  history.EndWrite(2, true, 4, 4);
  EXPECT_EQ(history.EndRead(2, 5, 6, 5), "");
  EXPECT_NE(history.EndRead(1, 7, 8, 7), "");
}

TEST(RegisterHistoryTest, WritesAtTheSameTimeHaveAnyOrderButOne) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  history.BeginWrite(2, false, 2);
  history.EndWrite(1, true, 3, 3);
  history.EndWrite(2, true, 4, 4);
  EXPECT_EQ(history.EndRead(1, 5, 6, 5), "");
  EXPECT_EQ(history.EndRead(1, 7, 8, 7), "");
  EXPECT_NE(history.EndRead(2, 9, 10, 9), "");
}

TEST(RegisterHistoryTest, AWriteThatIsSentAgainMayComeAgainWhileItIsUnderWay) {
  RegisterHistory history(Effect::kAgain);
  history.BeginWrite(1, false, 1);
  EXPECT_EQ(history.EndRead(1, 2, 3, 2), "");
  history.BeginWrite(2, false, 4);
  history.EndWrite(2, true, 5, 5);
  EXPECT_EQ(history.EndRead(2, 6, 7, 6), "");
  EXPECT_EQ(history.EndRead(1, 8, 9, 8), "");
  EXPECT_NE(RegisterHistory(history).EndRead(2, 10, 11, 10), "") << "it has ended, and something else was there since";
  EXPECT_EQ(history.EndRead(1, 10, 11, 10), "");
  history.BeginWrite(3, false, 12);
  history.EndWrite(3, true, 13, 13);
  history.EndWrite(1, true, 14, 14);
  EXPECT_EQ(history.EndRead(3, 15, 16, 15), "");
  EXPECT_NE(history.EndRead(1, 17, 18, 17), "") << "it has ended";
}

TEST(RegisterHistoryTest, AFailedWriteThatWasSentAgainDoesNotVanish) {
  RegisterHistory history(Effect::kAgain);
  history.BeginWrite(1, false, 1);
  history.EndWrite(1, false, 2, 2);
  EXPECT_EQ(history.EndReadOfZeros(3, 4, 3), "");
  EXPECT_EQ(history.EndRead(1, 5, 6, 5), "");
  EXPECT_NE(history.EndReadOfZeros(7, 8, 7), "");
}

TEST(RegisterHistoryTest, ZerosOfATrimAreNotTheZerosBefore) {
  RegisterHistory history(Effect::kOnce);
  history.BeginWrite(1, false, 1);
  history.EndWrite(1, true, 2, 2);
  EXPECT_NE(RegisterHistory(history).EndReadOfZeros(3, 4, 3), "");
  history.BeginWrite(2, true, 5);
  history.EndWrite(2, true, 6, 6);
  EXPECT_EQ(history.EndReadOfZeros(7, 8, 7), "");
  EXPECT_NE(history.EndRead(1, 9, 10, 9), "");
}

TEST(RegisterHistoryTest, ItForgetsWhatIsOver) {
  RegisterHistory history(Effect::kOnce);
  for (uint64_t number = 1; number <= 1000; ++number) {
    history.BeginWrite(number, number % 3 == 0, 4 * number);
    history.EndWrite(number, number % 7 != 0, 4 * number + 1, 4 * number + 1);
    EXPECT_LE(history.size(), 4u) << history.Describe();
  }
}

}  // namespace
}  // namespace nram::sim
