// A server may not have as many descriptors as its flags ask for, and clients want them all. One plane does not take
// the other's descriptors, and another client still connects, gets a lease, writes and reads.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/util/http2_peer.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

// A server in a process of its own, which ends with its owner. Start it while this process has no other threads.
class LimitedServer {
 public:
  explicit LimitedServer(rlim_t descriptors) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const rlimit few{descriptors, descriptors};
      PCHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
      MemServerOptions options;
      options.donate_bytes = 256 * kMiB;
      options.port = options.data_port = 0;
      options.workers_per_class = 1;
      const auto started = MemServer::Start(options);
      if (started.ok()) ports_ = {(*started)->control_port(), (*started)->data_port()};
      PCHECK(write(ends[1], &ports_, sizeof ports_) == sizeof ports_);
      while (true) pause();
    }
    EXPECT_EQ(read(ends[0], &ports_, sizeof ports_), static_cast<ssize_t>(sizeof ports_));
    for (const int end : ends) close(end);
  }
  ~LimitedServer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int control_port() const { return ports_.control; }
  int data_port() const { return ports_.data; }

 private:
  struct Ports {
    int control = 0;
    int data = 0;
  };
  pid_t pid_ = -1;
  Ports ports_;
};

TEST(DescriptorsTest, NeitherPlaneTakesTheOthers) {
  LimitedServer server(400);
  ASSERT_NE(server.control_port(), 0);
  for (const bool both : {false, true}) {
    std::vector<std::unique_ptr<Http2Peer>> crowd;
    for (int i = 0; i < 400; ++i) {
      crowd.push_back(std::make_unique<Http2Peer>(server.control_port()));
      if (i % 2 == 0) crowd.back()->Greet(65535);
      if (both) crowd.push_back(std::make_unique<Http2Peer>(server.data_port()));
    }
    PoolOptions options;
    options.servers.push_back({"127.0.0.1", server.control_port(), ""});
    options.open_timeout_ms = 20'000;
    auto pool = TestPool::Open(options);
    ASSERT_NE(pool, nullptr);
    auto region = pool->CreateRegion({.gc = true}).value();
    const std::string data = Pattern(64 * 1024, 1);
    ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
    EXPECT_TRUE(Read(region.get(), 0, data.size()).value() == data);
  }
}

}  // namespace
}  // namespace nram
