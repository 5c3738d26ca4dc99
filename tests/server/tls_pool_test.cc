// A memory server with certificates, and pools with the right certificates, with wrong ones and without: over both
// planes.

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "base/tls/test_certificates.h"
#include "client/pool/pool.h"
#include "client/transport/control_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "memserver/mem_server.h"
#include "tests/util/pattern.h"
#include "tests/util/region_io.h"
#include "tests/util/tls_pool_fixture.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class TlsPoolTest : public TlsPoolFixture {};

TEST_F(TlsPoolTest, CarriesBothPlanes) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  auto pool = Pool::Open(Options(With::kCertificates));
  ASSERT_TRUE(pool.ok()) << pool.status();
  auto region = (*pool)->CreateRegion({.gc = true, .name = "array"}).value();
  const std::string data = Pattern(20 * kMiB, 7);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  EXPECT_TRUE(*Read(region.get(), 0, data.size()) == data);
  // Small ones by many threads: records that hold several messages, and messages in several records.
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const uint64_t at = (t * 300 + i) * 4099 % (20 * kMiB - 8192) / kChunkBytes * kChunkBytes;
        const size_t bytes = i % 3 == 0 ? kChunkBytes : i % 3 == 1 ? kPageBytes : 2 * kPageBytes;
        const auto back = Read(region.get(), at, bytes);
        ASSERT_TRUE(back.ok()) << back.status();
        ASSERT_TRUE(*back == data.substr(at, bytes));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(region->Destroy().ok());
}

TEST_F(TlsPoolTest, SaysWhichSideLacksWhat) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  EXPECT_THAT(Refusal(Options(With::kNothing)), HasSubstr("--tls-dir=DIR at the client"));
  server_.reset();
  ASSERT_NO_FATAL_FAILURE(Serve(With::kNothing));
  EXPECT_THAT(Refusal(Options(With::kCertificates)), HasSubstr("the server does not speak TLS"));
}

TEST_F(TlsPoolTest, RefusesCertificatesOfOthersAndSaysWhy) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  const Authority other = Authority::Create("other").value();
  certificates_.Issue({.name = "eve"}, &other);
  EXPECT_THAT(Refusal(Options(With::kCertificates)), HasSubstr("does not know the authority"));
  certificates_.Issue({.name = "late", .begins_s = time(nullptr) - 10 * 86'400, .days = 9});
  EXPECT_THAT(Refusal(Options(With::kCertificates)), HasSubstr("has expired"));
  certificates_.Issue({.name = "client"});
  PoolOptions options = Options(With::kCertificates);
  options.servers[0].host = "localhost";
  EXPECT_EQ(Refusal(options), "it was let in");
  certificates_.Issue({.name = "server", .serves = true, .hosts = {"node7"}});
  server_.reset();
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  EXPECT_THAT(Refusal(Options(With::kCertificates)), HasSubstr("another host"));
}

TEST_F(TlsPoolTest, RulesSayWhoMayDoWhat) {
  WriteAccess("cn:client batch user\ncn:watch - monitor\ncn:boss ops operator\n");
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates, access_file_));
  const auto deadline = &Soon;
  EXPECT_EQ(Refusal(Options(With::kCertificates)), "it was let in");
  EXPECT_THAT(std::string(Control()->Drain(true, false, deadline()).message()), HasSubstr("needs the role operator"));
  certificates_.Issue({.name = "watch"});
  EXPECT_TRUE(Control()->GetStatistics(deadline()).ok());
  EXPECT_FALSE(Control()->ListRegions(false, false, deadline()).ok());
  EXPECT_THAT(Refusal(Options(With::kCertificates)), HasSubstr("may not store here"));
  certificates_.Issue({.name = "boss"});
  EXPECT_TRUE(Control()->Drain(true, false, deadline()).ok());
  EXPECT_TRUE(Control()->Drain(false, false, deadline()).ok());
  certificates_.Issue({.name = "stranger"});
  EXPECT_THAT(Refusal(Options(With::kCertificates)), HasSubstr("rules do not admit this side's certificate"));
}

// New files are taken by both ends while everything runs, and a client that has lost its connections reconnects with
// them.
TEST_F(TlsPoolTest, CertificatesAreRenewedWhileItRuns) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  auto pool = Pool::Open(Options(With::kCertificates)).value();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 3);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  certificates_.Issue({.name = "client-2"});
  certificates_.Issue({.name = "server-2", .serves = true, .hosts = {"127.0.0.1"}});
  for (int i = 0; i < 3; ++i) {
    pool->session(0)->life()->bulk->Disconnect();
    pool->session(0)->life()->urgent->Disconnect();
    const auto back = Read(region.get(), 0, kMiB);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == data);
  }
  EXPECT_TRUE(Control()->GetStatistics(DeadlineAfterMs(kPatienceMs)).ok());
}

}  // namespace
}  // namespace nram
