// Control's hello to clients of this and of other versions of the wire.

#include <memory>
#include <string>

#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "memserver/control_service.h"
#include "memserver/mem_server.h"
#include "proto/wire.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class HelloVersionTest : public ::testing::Test {
 protected:
  HelloVersionTest() {
    MemServerOptions options;
    options.donate_bytes = MemServerOptions::kDonateMinBytes;
    options.port = options.data_port = 0;
    options.baseline_bytes_for_test = 0;
    server_ = MemServer::Start(options).value();
    service_ = std::make_unique<ControlService>(&server_->core(), [] { return Surroundings(); });
  }

  absl::Status Hello(uint32_t version_min, uint32_t version_max) {
    v1::HelloRequest request;
    request.set_version_min(version_min);
    request.set_version_max(version_max);
    reply_.Clear();
    return service_->Hello(Caller(), request, &reply_);
  }

  std::unique_ptr<MemServer> server_;
  std::unique_ptr<ControlService> service_;
  v1::HelloReply reply_;
};

TEST_F(HelloVersionTest, TheHighestVersionThatBothSpeakIsChosen) {
  EXPECT_TRUE(Hello(kWireVersion, kWireVersion).ok());
  EXPECT_EQ(reply_.version(), kWireVersion);
  EXPECT_TRUE(Hello(1, 99).ok());
  EXPECT_EQ(reply_.version(), kWireVersion);
}

TEST_F(HelloVersionTest, AClientOfAnotherVersionIsToldWhoIsTooOldAndWhatToDo) {
  // The message that a client of wire 6 shows to its user.
  absl::Status status = Hello(6, 6);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "this server speaks version 12 of the wire and the client version 6: the client is too old; install the "
            "same release of nram on both machines");
  status = Hello(13, 14);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("the server is too old"));
  EXPECT_EQ(Hello(0, 0).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace nram
