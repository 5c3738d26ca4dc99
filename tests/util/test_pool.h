#ifndef NRAM_TESTS_UTIL_TEST_POOL_H_
#define NRAM_TESTS_UTIL_TEST_POOL_H_

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "memserver/mem_server.h"
#include "tests/util/faulty_relay.h"

namespace nram {

// Memory servers, both planes, in this process, and pools on them.
class TestPool {
 public:
  // kPretended: each server counts as a host of its own, so that regions may have copies.
  enum class Hosts { kThisOne, kPretended };

  explicit TestPool(int servers, uint64_t donate_bytes = 128 * kMiB, const Clock* clock = Clock::Real(),
                    Hosts hosts = Hosts::kThisOne)
      : donate_bytes_(donate_bytes), clock_(clock), hosts_(hosts) {
    for (int i = 0; i < servers; ++i) {
      servers_.emplace_back();
      ports_.push_back(0);
      StartServer(i);
    }
  }

  // Starts the server, or starts it again on the same ports: as after a crash, empty.
  void StartServer(int i) {
    MemServerOptions options;
    options.donate_bytes = donate_bytes_;
    options.port = ports_[i];
    options.data_port = 0;
    options.workers_per_class = 1;
    options.baseline_bytes_for_test = 8 * kMiB;
    options.lease_ttl_ms = lease_ttl_ms;
    if (hosts_ == Hosts::kPretended) options.pretended_host = absl::StrCat("pretended-", i);
    auto server = MemServer::Start(options, clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    servers_[i] = *std::move(server);
    ports_[i] = servers_[i]->control_port();
  }
  void StopServer(int i) { servers_[i].reset(); }

  PoolOptions Options() const {
    PoolOptions options;
    for (const int port : ports_) options.servers.push_back({"127.0.0.1", port, ""});
    options.open_timeout_ms = 60'000;  // the sanitizers make gRPC slow
    options.spin.limit_us = 0;
    // So that any of these tests can run with sealed pages.
    const char* const seal = std::getenv("NRAM_SEAL");
    if (seal == nullptr || std::string(seal) != "1") return options;
    static const char* const directory = std::getenv("TEST_TMPDIR");
    static const std::string key_file = absl::StrCat(directory == nullptr ? "/tmp" : directory, "/key.", getpid());
    static const bool made =
        WriteFileAtomically(key_file, std::string(32, 'k')).ok() && chmod(key_file.c_str(), 0600) == 0;
    EXPECT_TRUE(made);
    options.seal = Seal::kYes;
    options.key_file = key_file;
    return options;
  }
  std::unique_ptr<Pool> Open() const { return Open(Options()); }
  static std::unique_ptr<Pool> Open(const PoolOptions& options) {
    auto pool = Pool::Open(options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return pool.ok() ? *std::move(pool) : nullptr;
  }

  MemServer& server(int i) { return *servers_[i]; }
  bool runs(int i) const { return servers_[i] != nullptr; }
  size_t size() const { return servers_.size(); }
  int64_t lease_ttl_ms = 10'000;

 private:
  const uint64_t donate_bytes_;
  const Clock* const clock_;
  const Hosts hosts_;
  std::vector<std::unique_ptr<MemServer>> servers_;
  std::vector<int> ports_;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_TEST_POOL_H_
