#ifndef NRAM_TESTS_UTIL_TEST_SERVER_H_
#define NRAM_TESTS_UTIL_TEST_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/units.h"
#include "gtest/gtest.h"
#include "memserver/data_server.h"
#include "memserver/frame_arena.h"
#include "memserver/landing_frames.h"
#include "memserver/lease_table.h"
#include "memserver/page_store.h"
#include "memserver/session.h"

namespace nram {

// The data plane of a memory server in this process, without the control plane: the test grants leases by hand.
class TestDataServer {
 public:
  struct Options {
    uint64_t donate_bytes = 256 * kMiB;
    DataServerOptions data;
    bool unix_socket = true;
    void (*between_steps)() = nullptr;  // of trims and destroys
  };

  TestDataServer() : TestDataServer(Options()) {}
  explicit TestDataServer(Options options) {
    arena_ = FrameArena::Create(options.donate_bytes, 8 * kMiB).value();
    tenant_ = std::make_unique<Tenant>(0, "local", arena_.get());
    leases_ = std::make_unique<LeaseTable>(arena_.get(), &clock_, 10'000);
    store_ = std::make_unique<PageStore>(arena_.get(), leases_.get());
    landing_ = std::make_unique<LandingFrames>(arena_.get(), 1024);
    context_ = {store_.get(), leases_.get(), landing_.get(), 0x1234, Credit{256, 4096}};
    context_.tenant = tenant_.get();
    context_.between_steps_for_test = options.between_steps;
    if (options.unix_socket) {
      char name[] = "/tmp/nram-test-XXXXXX";
      directory_ = mkdtemp(name);
      options.data.socket_path = directory_ + "/data";
      socket_ = {"", 0, options.data.socket_path};
    }
    server_ = DataServer::Start(options.data, context_).value();
  }
  ~TestDataServer() {
    server_.reset();
    if (!directory_.empty()) rmdir(directory_.c_str());
  }

  std::shared_ptr<Lease> Grant(uint64_t id) {
    return leases_->Grant({.tenant = tenant_.get(), .id = LeaseId{id}, .client_name = "test"}).value();
  }

  Endpoint tcp() const { return {"127.0.0.1", server_->port(), ""}; }
  Endpoint unix_socket() const { return socket_; }
  FrameArena& arena() { return *arena_; }
  LeaseTable& leases() { return *leases_; }
  PageStore& store() { return *store_; }
  LandingFrames& landing() { return *landing_; }
  FakeClock& clock() { return clock_; }
  const SessionContext& context() const { return context_; }
  const DataServerCounters& counters() const { return server_->counters(); }

 private:
  FakeClock clock_;
  std::string directory_;
  Endpoint socket_;
  std::unique_ptr<FrameArena> arena_;
  std::unique_ptr<Tenant> tenant_;
  std::unique_ptr<LeaseTable> leases_;
  std::unique_ptr<PageStore> store_;
  std::unique_ptr<LandingFrames> landing_;
  SessionContext context_;
  std::unique_ptr<DataServer> server_;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_TEST_SERVER_H_
