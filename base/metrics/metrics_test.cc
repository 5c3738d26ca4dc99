#include <arpa/inet.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/metrics/figures.h"
#include "base/metrics/metrics_address.h"
#include "base/metrics/metrics_file.h"
#include "base/metrics/metrics_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

UniqueFd Connect(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

// The whole answer; "" if no server listens.
std::string Get(int port, const std::string& path) {
  const UniqueFd fd = Connect(port);
  if (!fd.valid()) return "";
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd.get(), buffer, sizeof buffer)) > 0;) answer.append(buffer, static_cast<size_t>(n));
  return answer;
}

std::string TestDirectory() {
  std::string pattern = absl::StrCat(testing::TempDir(), "/metrics.XXXXXX");
  CHECK(mkdtemp(pattern.data()) != nullptr);
  return pattern;
}

TEST(FiguresTest, TextIsPrometheus) {
  Figures figures(Figures::Labels{{"program", "sort \"one\""}});
  figures.Gauge("nram_server_free_bytes", "Memory that clients could reserve now.", 5e9);
  figures.Counter("nram_server_refused_total", "Requests refused.", 3, {{"reason", "full"}});
  figures.Counter("nram_server_refused_total", "Requests refused.", 4, {{"reason", "stale"}});
  const std::string text = figures.ToText();
  EXPECT_THAT(text, HasSubstr("# HELP nram_server_free_bytes Memory that clients could reserve now.\n"
                              "# TYPE nram_server_free_bytes gauge\n"
                              "nram_server_free_bytes{program=\"sort \\\"one\\\"\"} 5000000000\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE nram_server_refused_total counter\n"
                              "nram_server_refused_total{program=\"sort \\\"one\\\"\",reason=\"full\"} 3\n"
                              "nram_server_refused_total{program=\"sort \\\"one\\\"\",reason=\"stale\"} 4\n"));
}

TEST(FiguresTest, LabelsAndSamplesAreBounded) {
  Figures figures;
  for (size_t i = 0; i < Figures::kSamplesMax + 10; ++i) {
    figures.Gauge("nram_client_server_up", "Whether it is up.", 1, {{"server", std::string(1000, 'x') + "\n"}});
  }
  ASSERT_EQ(figures.families().size(), 1u);
  EXPECT_EQ(figures.families()[0].samples.size(), Figures::kSamplesMax);
  EXPECT_LE(figures.families()[0].samples[0].labels[0].second.size(), Figures::kLabelBytesMax + 3);
}

TEST(FiguresDeathTest, NamesKeepToTheConventions) {
  EXPECT_DEATH(Figures().Gauge("server_free_bytes", "help", 1), "server_free_bytes");
  EXPECT_DEATH(Figures().Gauge("nram_reads_total", "help", 1), "nram_reads_total");
  EXPECT_DEATH(Figures().Counter("nram_reads", "help", 1), "nram_reads");
  EXPECT_DEATH(Figures().Gauge("nram_Free", "help", 1), "nram_Free");
  EXPECT_DEATH(Figures().Gauge("nram_free_bytes", "", 1), "nram_free_bytes");
  EXPECT_DEATH(Figures().Gauge("nram_free_bytes", "help", 1, {{"a b", "c"}}), "a b");
}

TEST(MetricsServerTest, AddressesAreNumericWithAPort) {
  for (const char* const good : {"127.0.0.1:9435", "0.0.0.0:0", "10.1.2.3:65535"}) {
    EXPECT_TRUE(ParseMetricsAddress(good).ok()) << good;
  }
  for (const char* const bad :
       {"", "9435", "localhost:9435", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:9435",
        "[::1]:9435", "127.0.0.1:9435s", "127.0.0.1:1,127.0.0.1:2"}) {
    const absl::Status status = ParseMetricsAddress(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:9435"));
  }
}

TEST(MetricsServerTest, AScrapeAsksForTheFiguresOfNow) {
  std::atomic<int> asked{0};
  auto server = MetricsServer::Start("127.0.0.1:0", [&](Figures* figures) {
    figures->Counter("nram_test_asked_total", "How often it was asked.", ++asked);
  });
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  ASSERT_GT(port, 0);
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("\nnram_test_asked_total 1\n"));
  const std::string second = Get(port, "/metrics");
  EXPECT_THAT(second, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(second, HasSubstr("\nnram_test_asked_total 2\n"));
  // No other path exists, and none makes the server collect figures.
  EXPECT_THAT(Get(port, "/"), Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Get(port, "/../../etc/passwd"), Not(HasSubstr(" 200 ")));
  EXPECT_EQ(asked, 2);
  server->reset();
  EXPECT_EQ(Get(port, "/metrics"), "");
  EXPECT_EQ(asked, 2);
}

TEST(MetricsServerTest, ASilentPeerDoesNotKeepOthersOut) {
  auto server =
      MetricsServer::Start("127.0.0.1:0", [](Figures* figures) { figures->Gauge("nram_test_figure", "A figure.", 1); });
  ASSERT_TRUE(server.ok()) << server.status();
  const UniqueFd silent = Connect((*server)->port());
  ASSERT_TRUE(silent.valid());
  EXPECT_THAT(Get((*server)->port(), "/metrics"), HasSubstr("nram_test_figure 1\n"));
}

TEST(MetricsServerTest, SaysWhyItCannotListen) {
  const FigureSource nothing = [](Figures*) {};
  auto first = MetricsServer::Start("127.0.0.1:0", nothing);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = MetricsServer::Start(address, nothing);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
  EXPECT_EQ(MetricsServer::Start("192.0.2.1:0", nothing).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(MetricsServer::Start("elsewhere", nothing).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MetricsFileTest, IsWrittenAnewAndGoesAway) {
  umask(022);
  const std::string directory = TestDirectory();
  std::atomic<int> asked{0};
  const auto source = [&](Figures* figures) { figures->Gauge("nram_test_asked", "How often.", ++asked); };
  auto file = MetricsFile::Start(directory + "/job-%p.prom", source, /*period_ms=*/1);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string path = absl::StrCat(directory, "/job-", getpid(), ".prom");
  EXPECT_EQ((*file)->path(), path);
  const std::string label = absl::StrCat("nram_test_asked{program=\"job-", getpid(), "\"} ");
  EXPECT_THAT(*ReadFile(path), HasSubstr(label));
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  while (asked < 5 && MonotonicNs() < deadline_ns) std::this_thread::yield();
  EXPECT_GE(asked, 5);
  EXPECT_THAT(*ReadFile(path), HasSubstr(label));
  // node_exporter is another user.
  struct stat stat {};
  ASSERT_EQ(::stat(path.c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777u, 0644u);
  file->reset();
  EXPECT_TRUE(ListDirectory(directory).empty());
  rmdir(directory.c_str());
}

TEST(MetricsFileTest, TwoPoolsOfOneProgramHaveAFileEach) {
  const std::string directory = TestDirectory();
  const FigureSource one = [](Figures* figures) { figures->Gauge("nram_test_figure", "A figure.", 1); };
  auto first = MetricsFile::Start(directory + "/job.prom", one);
  auto second = MetricsFile::Start(directory + "/job.prom", one);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->path(), directory + "/job.prom");
  EXPECT_EQ((*second)->path(), directory + "/job-2.prom");
  EXPECT_THAT(*ReadFile(directory + "/job-2.prom"), HasSubstr("{program=\"job-2\"}"));
  first->reset();
  auto third = MetricsFile::Start(directory + "/job.prom", one);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ((*third)->path(), directory + "/job.prom");
  second->reset();
  third->reset();
  EXPECT_TRUE(ListDirectory(directory).empty());
  rmdir(directory.c_str());
}

TEST(MetricsFileTest, WrongNamesAndPlacesAreErrors) {
  const FigureSource nothing = [](Figures*) {};
  for (const std::string& bad : {std::string("/tmp/figures.txt"), std::string("/tmp/.prom"), std::string("x"),
                                 "/tmp/" + std::string(300, 'x') + ".prom"}) {
    const absl::Status status = MetricsFile::Start(bad, nothing).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("NAME.prom"));
  }
  EXPECT_THAT(std::string(MetricsFile::Start("/no/such/place/x.prom", nothing).status().message()),
              HasSubstr("/no/such/place/x.prom"));
}

}  // namespace
}  // namespace nram
