#include "proto/grpc_log.h"

#include <glog/logging.h>
#include <grpc/support/log.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class Lines : public google::LogSink {
 public:
  Lines() { google::AddLogSink(this); }
  ~Lines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const struct ::tm*, const char* message,
            size_t bytes) override {
    MutexLock lock(&mu_);
    lines_.emplace_back(message, bytes);
  }
  std::vector<std::string> all() {
    MutexLock lock(&mu_);
    return lines_;
  }

 private:
  Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

TEST(GrpcLogTest, ALineIsEscapedAndShort) {
  EXPECT_EQ(GrpcLogLine("a/b/hpack_parser.cc", 12, "bad \x1b[31mkey\nI0101 forged"),
            "gRPC: hpack_parser.cc:12: bad \\x1B[31mkey\\x0AI0101 forged");
  EXPECT_LE(GrpcLogLine("file.cc", 1, std::string(100'000, 'x')).size(), 300u);
  EXPECT_LE(GrpcLogLine("file.cc", 1, std::string(100'000, '\x1b')).size(), 300u);
}

// Whatever a peer makes gRPC say: a few lines, and nothing past the log.
TEST(GrpcLogTest, AFloodOfLinesIsAFew) {
  Lines lines;
  gpr_log_verbosity_init();  // as grpc_init does; without it nothing is logged
  TakeGrpcLog();
  TakeGrpcLog();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 20'000; ++i) gpr_log(GPR_ERROR, "value=\x1b[2J\nE0101 forged %d", i);
  EXPECT_TRUE(PollUntil(DeadlineAfterMs(20'000), 1, [&] { return lines.all().size() >= 5; }));
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(absl::StrContains(written, "\nE0101 forged"));
  const std::vector<std::string> all = lines.all();
  EXPECT_LE(all.size(), 10u);
  EXPECT_THAT(all.at(0), HasSubstr("value=\\x1B[2J\\x0AE0101 forged 0"));
}

// What gRPC says before it ends the process is not lost, whatever was said before.
TEST(GrpcLogTest, TheReasonOfAnAbortIsWrittenAtOnce) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        gpr_log_verbosity_init();
        TakeGrpcLog();
        for (int i = 0; i < 100; ++i) gpr_log(GPR_ERROR, "said by a peer");
        GPR_ASSERT(1 + 1 == 3);
      },
      "gRPC: grpc_log_test.cc:[0-9]+: assertion failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace nram
