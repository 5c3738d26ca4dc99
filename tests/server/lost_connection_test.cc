// A connection of the control plane that the server ends while a call begins on it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/transport/control_client.h"
#include "gtest/gtest.h"
#include "memserver/mem_server.h"
#include "tests/util/byte_relay.h"

namespace nram {
namespace {

class LostConnectionTest : public ::testing::Test {
 protected:
  LostConnectionTest() {
    MemServerOptions options;
    options.donate_bytes = MemServerOptions::kDonateMinBytes;
    options.port = options.data_port = 0;
    options.baseline_bytes_for_test = 0;
    server_ = MemServer::Start(options).value();
    relay_ = std::make_unique<ByteRelay>(server_->control_port());
  }

  // A client with a connection. The `times` next connections are cut when a call of the method comes there.
  std::unique_ptr<ControlClient> ClientThatLoses(const std::string& method, int times) {
    auto client = ControlClient::Create({"127.0.0.1", relay_->port(), ""});
    EXPECT_TRUE(client->Hello(Soon()).ok());
    left_ = times;
    relay_->SetTamper([this, path = absl::StrCat("/nram.v1.Control/", method)](std::string* bytes) {
      if (left_ == 0 || !absl::StrContains(*bytes, path)) return;
      --left_;
      bytes->clear();
    });
    return client;
  }
  static int64_t Soon() { return DeadlineAfterMs(60'000); }

  std::atomic<int> left_{0};  // connections to be cut
  std::unique_ptr<MemServer> server_;
  std::unique_ptr<ByteRelay> relay_;
};

TEST_F(LostConnectionTest, ACallThatReadsIsMadeOnceMore) {
  struct Case {
    std::string method;
    std::function<absl::Status(ControlClient*)> call;
  };
  const auto look = [](uint64_t, const auto&) { return absl::OkStatus(); };
  constexpr RegionId kNone{1};
  const std::vector<Case> cases = {
      {"GetStatistics", [](ControlClient* client) { return client->GetStatistics(Soon()).status(); }},
      {"ListRegions", [](ControlClient* client) { return client->ListRegions(false, false, Soon()).status(); }},
      {"ListSpans", [&](ControlClient* client) { return client->ListSpans(kNone, Soon(), look); }},
      {"ListVersions", [](ControlClient* client) { return client->ListVersions(kNone, Soon()).status(); }},
      {"ListChanges", [&](ControlClient* client) { return client->ListChanges(kNone, {}, {}, Soon(), look); }},
  };
  for (const Case& one : cases) {
    const absl::Status answer = one.call(ClientThatLoses(one.method, 1).get());
    EXPECT_FALSE(absl::IsUnavailable(answer)) << one.method << ": " << answer;
    EXPECT_EQ(left_, 0) << one.method << " was not lost";
    // No more than once.
    EXPECT_TRUE(absl::IsUnavailable(one.call(ClientThatLoses(one.method, 2).get()))) << one.method;
    EXPECT_EQ(left_, 0) << one.method;
  }
}

// The server may have executed it.
TEST_F(LostConnectionTest, ACallThatChangesSomethingIsNot) {
  const auto client = ClientThatLoses("GrantLease", 1);
  EXPECT_TRUE(absl::IsUnavailable(client->GrantLease(LeaseId{1}, "owner", 0, Soon()).status()));
  EXPECT_EQ(left_, 0);
  EXPECT_TRUE(client->GrantLease(LeaseId{1}, "owner", 0, Soon()).ok()) << "the next call connects anew";
}

}  // namespace
}  // namespace nram
