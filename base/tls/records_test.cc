// The records of TLS, and the memory in which they are opened.

#include "base/tls/records.h"

#include <sys/uio.h>

#include <array>
#include <cstddef>

#include "base/test_core_dump.h"
#include "base/tls/channel.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(RecordsTest, KeysAreRenewedUntilTheyAreUsedUp) {
  TrafficSecret secret;
  secret.bytes.fill(7);
  constexpr uint64_t kPerKey = 5;
  RecordSealer sealer(secret, kPerKey);
  RecordOpener opener(secret);
  std::byte byte{42}, back{}, rest[kRecordContentMax];
  std::array<std::byte, 1 + RecordSealer::kRoomBytes> out;
  uint64_t sealed = 0;
  while (true) {
    const iovec from{&byte, 1}, to{&back, 1};
    PieceCursor source({&from, 1}), target({&to, 1});
    const size_t bytes = sealer.Seal(RecordType::kData, &source, 1, out.data());
    if (bytes == 0) break;
    ++sealed;
    back = std::byte{0};
    for (size_t at = 0; at < bytes;) {
      size_t record = 0, rest_bytes = 0;
      ASSERT_TRUE(RecordOpener::ReadHeader(out.data() + at, &record).ok());
      const auto landed = opener.Open({out.data() + at, record}, &target, rest, &rest_bytes);
      ASSERT_TRUE(landed.ok()) << landed.status() << " record " << sealed;
      at += record;
    }
    ASSERT_EQ(back, byte);
  }
  EXPECT_EQ(sealed, RecordKeys::kKeys * (kPerKey - 1));
}

TEST(OpenedDataTest, CoreDumpsLeaveOpenedDataOut) {
  const TlsSession session{};
  const size_t before = UndumpedBytes();
  const Channel channel(-1, &session);
  EXPECT_EQ(UndumpedBytes() - before, kRecordContentMax);
}

}  // namespace
}  // namespace nram
