// The Unix sockets that a server can name to a client.

#include "client/transport/data_socket.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "memserver/mem_server.h"
#include "tests/util/lying_server.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class DataSocketTest : public ::testing::Test {
 protected:
  DataSocketTest() {
    char name[] = "/tmp/nram-test-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~DataSocketTest() override { (void)!system(("rm -rf --one-file-system " + directory_).c_str()); }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  // A socket that listens there.
  UniqueFd Listen(const std::string& name) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, Path(name).c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd.get(), 8), 0);
    return fd;
  }
  std::string directory_;
};

TEST_F(DataSocketTest, TakesWhatAMemoryServerMakes) {
  const UniqueFd control = Listen("s"), data = Listen("s.data");
  const auto owner = CheckDataSocket(Path("s.data"));
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(*owner, geteuid());
}

TEST_F(DataSocketTest, RefusesTheRest) {
  const UniqueFd foreign = Listen("foreign"), alone = Listen("alone.data");
  const UniqueFd control = Listen("o"), data = Listen("o.data");
  const UniqueFd file_control = Listen("f"), linked_control = Listen("l");
  ASSERT_GE(UniqueFd(open(Path("f.data").c_str(), O_CREAT | O_RDWR, 0600)).get(), 0);
  ASSERT_EQ(symlink(Path("o.data").c_str(), Path("l.data").c_str()), 0);
  for (const char* name : {"foreign", "alone.data", "f.data", "l.data"}) {
    const absl::Status status = CheckDataSocket(Path(name)).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << name << ": " << status;
  }
  EXPECT_TRUE(absl::IsPermissionDenied(CheckDataSocket("relative.data").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckDataSocket(Path("o.data") + std::string("\0.data", 6)).status()));
  EXPECT_TRUE(absl::IsNotFound(CheckDataSocket(Path("nothing.data")).status()));
  if (geteuid() == 0) {
    ASSERT_EQ(chown(Path("o").c_str(), 65'534, 65'534), 0);
    EXPECT_TRUE(absl::IsPermissionDenied(CheckDataSocket(Path("o.data")).status()));
  }
}

TEST_F(DataSocketTest, WhoListensMustBeItsOwner) {
  const UniqueFd listener = Listen("s");
  const auto address = ResolveEndpoint({"", 0, Path("s")}).value();
  const auto fd = ConnectSocket(address, DeadlineAfterMs(10'000));
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_TRUE(CheckPeer(fd->get(), geteuid()).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(CheckPeer(fd->get(), geteuid() + 1)));
}

TEST_F(DataSocketTest, BothWaysToNameAServerLeadToItsSocket) {
  MemServerOptions options;
  options.donate_bytes = 128 * kMiB;
  options.port = options.data_port = 0;
  options.workers_per_class = 1;
  options.socket_path = Path("server");
  const auto server = MemServer::Start(options, Clock::Real()).value();
  ASSERT_EQ(symlink(Path("server").c_str(), Path("link").c_str()), 0);
  const std::string data = Pattern(2 * kMiB, 1);
  for (const Endpoint& endpoint : {Endpoint{"127.0.0.1", server->control_port(), ""}, Endpoint{"", 0, Path("server")},
                                   Endpoint{"", 0, Path("link")}}) {
    PoolOptions pool_options;
    pool_options.servers = {endpoint};
    pool_options.open_timeout_ms = 60'000;
    const auto pool = TestPool::Open(pool_options);
    ASSERT_NE(pool, nullptr);
    EXPECT_EQ(pool->session(0)->data_plane(), "unix:" + Path("server.data"));
    const auto region = pool->CreateRegion({.gc = true}).value();
    ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
    EXPECT_TRUE(Read(region.get(), 0, data.size()).value() == data);
  }
}

struct Warnings : google::LogSink {
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const struct ::tm*, const char* message,
            size_t length) override {
    if (absl::StrContains(absl::string_view(message, length), "is not used")) ++count;
  }
  std::atomic<int> count{0};
};

TEST_F(DataSocketTest, AForeignSocketIsNotSpokenToAndTcpIsUsedInstead) {
  const UniqueFd foreign = Listen("foreign");
  LyingServer server;
  server.Set({.hello = [&](const auto&, v1::HelloReply* reply) {
    reply->set_data_socket(Path("foreign"));
    reply->mutable_host()->set_boot_id(BootId());
    return grpc::Status::OK;
  }});
  Warnings warnings;
  PoolOptions options;
  options.servers = {server.endpoint()};
  options.open_timeout_ms = 60'000;
  const auto pool = TestPool::Open(options);
  ASSERT_NE(pool, nullptr);
  EXPECT_THAT(pool->session(0)->data_plane(), HasSubstr("127.0.0.1:"));
  EXPECT_EQ(accept(foreign.get(), nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(warnings.count, 1);
}

}  // namespace
}  // namespace nram
