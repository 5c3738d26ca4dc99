#ifndef NRAM_TESTS_UTIL_TLS_POOL_FIXTURE_H_
#define NRAM_TESTS_UTIL_TLS_POOL_FIXTURE_H_

// One server in this process, with certificates or without, and clients of it.

#include <fstream>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/tls/test_certificates.h"
#include "client/pool/pool.h"
#include "client/transport/control_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "memserver/mem_server.h"
#include "tests/util/region_io.h"

namespace nram {

class TlsPoolFixture : public ::testing::Test {
 protected:
  enum class With { kCertificates, kNothing };
  static constexpr int64_t kPatienceMs = 20'000;

  void Serve(With with, const std::string& access_file = "") {
    MemServerOptions options;
    options.donate_bytes = 256 * kMiB;
    options.port = options.data_port = 0;
    options.workers_per_class = 1;
    options.baseline_bytes_for_test = 0;
    if (with == With::kCertificates) options.tls_dir = certificates_.directory();
    options.access_file = access_file;
    auto server = MemServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  PoolOptions Options(With with) const {
    PoolOptions options;
    options.servers = {{"127.0.0.1", server_->control_port(), ""}};
    options.open_timeout_ms = kPatienceMs;
    options.io_timeout_ms = 5'000;
    if (with == With::kCertificates) options.tls = certificates_.Load(TlsRole::kClient);
    return options;
  }
  static std::string Refusal(const PoolOptions& options) {
    const auto pool = Pool::Open(options);
    return pool.ok() ? "it was let in" : std::string(pool.status().message());
  }
  // Clients that are made from here on are `name`.
  void BeClient(const std::string& name) { certificates_.Issue({.name = name}); }
  std::unique_ptr<Pool> Open() const {
    auto pool = Pool::Open(Options(With::kCertificates));
    EXPECT_TRUE(pool.ok()) << pool.status();
    return pool.ok() ? *std::move(pool) : nullptr;
  }
  std::unique_ptr<ControlClient> Control() const {
    return ControlClient::Create({"127.0.0.1", server_->control_port(), ""}, certificates_.Load(TlsRole::kClient));
  }
  static int64_t Soon() { return DeadlineAfterMs(kPatienceMs); }
  void WriteAccess(const std::string& text) { std::ofstream(access_file_, std::ios::trunc) << text; }

  TestCertificates certificates_{"tls_pool"};
  const std::string access_file_ = certificates_.directory() + "/access";
  std::unique_ptr<MemServer> server_;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_TLS_POOL_FIXTURE_H_
