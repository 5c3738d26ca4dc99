// Parts of the data plane that hold something for its connections.

#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/test_core_dump.h"
#include "gtest/gtest.h"
#include "memserver/arrivals.h"
#include "memserver/connection.h"

namespace nram {
namespace {

bool IsReadable(int fd) {
  pollfd waits{fd, POLLIN, 0};
  return poll(&waits, 1, 0) == 1;
}

TEST(ArrivalsTest, TheNewestStayAndTheOldestAreClosed) {
  constexpr size_t kOverdue = 10;
  Arrivals arrivals;
  EXPECT_FALSE(IsReadable(arrivals.event_fd()));
  std::vector<UniqueFd> clients;
  for (size_t i = 0; i < Arrivals::kMax + kOverdue; ++i) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    clients.emplace_back(ends[0]);
    Arrivals::Arrival arrival;
    arrival.fd.reset(ends[1]);
    arrival.peer.name = std::to_string(i);
    arrivals.Add(std::move(arrival));
  }
  EXPECT_TRUE(IsReadable(arrivals.event_fd()));
  const std::vector<Arrivals::Arrival> taken = arrivals.Take();
  ASSERT_EQ(taken.size(), Arrivals::kMax);
  for (size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(taken[i].peer.name, std::to_string(kOverdue + i));
  for (size_t i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(IsReadable(clients[i].get()), i < kOverdue) << "client " << i << " reads its end";
  }
  EXPECT_FALSE(IsReadable(arrivals.event_fd()));
  EXPECT_TRUE(arrivals.Take().empty());
}

TEST(ReplyBuffersTest, CoreDumpsLeaveThemOut) {
  constexpr size_t kCount = 8;
  const size_t before = UndumpedBytes();
  const ReplyBuffers buffers(kCount);
  EXPECT_GE(UndumpedBytes() - before, kCount * ReplyBuffers::kBufferBytes);
}

}  // namespace
}  // namespace nram
