// The pump between a plain peer and gRPC, with a meter of the peer's frames.

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/http2/frame_meter.h"
#include "base/http2/frame_scanner.h"
#include "base/http2/test_frames.h"
#include "base/poll_until.h"
#include "base/tls/pump.h"
#include "base/tls/test_read_all.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

// A plain peer whose frames are metered, and the end that gRPC would have.
struct MeteredLink {
  MeteredLink() {
    int of_peer[2], of_grpc[2];
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, of_peer) == 0);
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, of_grpc) == 0);
    peer.reset(of_peer[0]);
    grpcs.reset(of_grpc[0]);
    fcntl(peer.get(), F_SETFL, 0);
    fcntl(grpcs.get(), F_SETFL, 0);
    link = pump.Add(UniqueFd(of_peer[1]), /*session=*/nullptr, UniqueFd(of_grpc[1]),
                    {FrameMeter(FrameScanner::Sender::kClient), [this](const absl::Status&) { ++cuts; }});
  }

  UniqueFd peer, grpcs;
  std::atomic<int> cuts{0};
  Pump pump;
  std::shared_ptr<const Pump::Link> link;
};

TEST(MeteredPumpTest, AFloodEndsByACutAndLittleOfItArrives) {
  MeteredLink metered;
  const int most = static_cast<int>(FrameMeter::RateOf(FrameMeter::kResets).at_once);
  std::thread flood([&] {
    std::string some = TestGreeting(FrameScanner::Sender::kClient);
    // Until the pump has closed the connection.
    for (uint32_t stream = 1; send(metered.peer.get(), some.data(), some.size(), MSG_NOSIGNAL) > 0; stream += 2) {
      some = TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack") +
             TestFrame(FrameType::kReset, 0, stream, "1234");
    }
  });
  const std::string arrived = ReadAll(metered.grpcs.get());
  flood.join();
  int resets = 0;
  FrameScanner scanner(FrameScanner::Sender::kClient);
  ASSERT_TRUE(scanner
                  .Scan(TestBytes(arrived),
                        [&](const FrameHeader& frame) {
                          resets += frame.type == FrameType::kReset ? 1 : 0;
                          return absl::OkStatus();
                        })
                  .ok());
  // The bucket fills again while the flood goes on, by a few frames a second.
  EXPECT_LT(resets, 10 * most);
  EXPECT_TRUE(PollUntil(DeadlineAfterMs(20'000), 1, [&] { return metered.pump.count() == 0; }));
  EXPECT_EQ(metered.cuts, 1);
  EXPECT_TRUE(metered.link->ended());
  EXPECT_THAT(std::string(metered.link->status().message()), HasSubstr("RST_STREAM"));
}

TEST(MeteredPumpTest, ACutEndsBothEndsAtOnce) {
  MeteredLink metered;
  EXPECT_FALSE(metered.link->ended());
  metered.link->Cut();
  pollfd end{metered.peer.get(), POLLRDHUP, 0};
  EXPECT_EQ(poll(&end, 1, 0), 1);
  EXPECT_EQ(ReadAll(metered.grpcs.get()), "");
  metered.link->Cut();  // again, or after its end
  EXPECT_EQ(metered.cuts, 0);
}

// The kernel knows of the end before the pump does.
TEST(MeteredPumpTest, TheEndOfThePeerIsKnownAtOnce) {
  MeteredLink metered;
  metered.peer.reset();
  EXPECT_TRUE(metered.link->ended());
}

}  // namespace
}  // namespace nram
