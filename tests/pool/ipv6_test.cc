// A pool over IPv6: both planes, and a host file that names it.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "client/pool/pool_spec.h"
#include "gtest/gtest.h"
#include "memserver/mem_server.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

bool HasIpv6() {
  const UniqueFd fd(socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd.valid() && bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST(Ipv6Test, BothPlanesByAHostFile) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  MemServerOptions options;
  options.listen = "::1";
  options.donate_bytes = 128 * kMiB;
  options.port = options.data_port = 0;
  options.workers_per_class = 1;
  const auto server = MemServer::Start(options, Clock::Real());
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string hosts = ::testing::TempDir() + "/hosts";
  ASSERT_TRUE(WriteFileAtomically(hosts, absl::StrCat("# one\n[::1]:", (*server)->control_port(), "\n")).ok());
  PoolOptions pool_options;
  const auto servers = ParsePoolSpec("@" + hosts);
  ASSERT_TRUE(servers.ok()) << servers.status();
  pool_options.servers = *servers;
  pool_options.open_timeout_ms = 60'000;
  const auto pool = TestPool::Open(pool_options);
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(pool->session(0)->name(), absl::StrCat("[::1]:", (*server)->control_port()));
  EXPECT_EQ(pool->session(0)->data_plane(), absl::StrCat("[::1]:", (*server)->data_port()));
  const auto region = pool->CreateRegion({.name = "six"}).value();
  const std::string data = Pattern(3 * kMiB, 1);
  ASSERT_TRUE(region->Write(512, Bytes(data)).ok());
  EXPECT_TRUE(Read(region.get(), 512, data.size()).value() == data);
  const auto reader = pool->AttachRegion("six", AttachMode::kReadOnly);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(Read(reader->get(), 512, data.size()).value() == data);
  unlink(hosts.c_str());
}

}  // namespace
}  // namespace nram
