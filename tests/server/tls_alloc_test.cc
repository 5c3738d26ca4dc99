// Records allocate nothing: pages of swap will travel in them.

#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/tls/channel.h"
#include "gtest/gtest.h"
#include "tests/util/count_allocations.h"

namespace nram {
namespace {

TEST(TlsAllocTest, AChannelAllocatesNothingOnceItIsMade) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd here(ends[0]), there(ends[1]);
  TlsSession session;  // the same keys both ways
  Channel sender(here.get(), &session), receiver(there.get(), &session);
  std::vector<std::byte> data(20'000, std::byte{7}), back(data.size());
  const auto round = [&](size_t bytes) {
    const std::array<iovec, 2> out = {{{data.data(), 64}, {data.data() + 64, bytes - 64}}};
    ASSERT_EQ(*sender.Send(out), bytes);
    size_t got = 0;
    while (got < bytes) {
      const iovec in{back.data() + got, bytes - got};
      got += receiver.Receive({&in, 1})->bytes;
    }
    const iovec more{back.data(), 1};
    ASSERT_TRUE(receiver.Receive({&more, 1})->drained);  // it would block
  };
  for (int i = 0; i < 3; ++i) round(data.size());
  counting = true;
  for (int i = 0; i < 100; ++i) round(100 + i * 150);
  counting = false;
  EXPECT_EQ(allocations.exchange(0), 0u);
  counting = true;
  delete new std::string(1000, 'x');
  counting = false;
  EXPECT_GE(allocations.exchange(0), 1u) << "nothing is counted at all";
}

}  // namespace
}  // namespace nram
