// Clients without a certificate, and a man in the middle, against a server with certificates.

#include <arpa/inet.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/sanitizers.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "tests/util/byte_relay.h"
#include "tests/util/pattern.h"
#include "tests/util/region_io.h"
#include "tests/util/tls_pool_fixture.h"

namespace nram {
namespace {

class TlsAttackTest : public TlsPoolFixture {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates)); }
};

// Connections of another address of this host, from 127.0.0.2 on.
class Crowd {
 public:
  explicit Crowd(size_t most) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, most + 2'000);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  // False: the kernel makes no more.
  bool Add(int port, const std::string& first_bytes) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons(static_cast<uint16_t>(port));
    if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) return false;
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return false;
    (void)!send(fd.get(), first_bytes.data(), first_bytes.size(), MSG_NOSIGNAL);
    held_.push_back(std::move(fd));
    return true;
  }
  size_t size() const { return held_.size(); }

 private:
  std::vector<UniqueFd> held_;
};

TEST_F(TlsAttackTest, TenThousandConnectionsWithoutACertificateKeepNobodyOut) {
  constexpr size_t kHeld = 10'000;
  const auto pool = Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  const uint64_t resident_before = ReadProcessMemory().resident_bytes;
  Crowd crowd(kHeld);
  // Nothing; the beginning of a handshake; other bytes.
  const std::vector<std::string> first = {"", std::string("\x16\x03\x01\x02", 4), "GET / HTTP/1.1\r\n\r\n"};
  for (size_t i = 0; i < kHeld; ++i) {
    ASSERT_TRUE(crowd.Add(i % 2 == 0 ? server_->data_port() : server_->control_port(), first[i / 2 % first.size()]))
        << i << " connections, " << strerror(errno);
    if (i % 1'000 != 999) continue;
    EXPECT_TRUE(*Read(region.get(), 0, kMiB) == data);
    // Newcomers with a certificate are accepted.
    const auto newcomer = Open();
    ASSERT_NE(newcomer, nullptr);
    auto other = newcomer->CreateRegion({.gc = true}).value();
    EXPECT_TRUE(other->Write(0, Bytes(data)).ok());
  }
  EXPECT_EQ(crowd.size(), kHeld);
  if (!kIsSanitized) {
    EXPECT_LT(ReadProcessMemory().resident_bytes, resident_before + 48 * kMiB);
  }
}

// The fate of the bytes on their way.
struct Middle {
  Middle(int its_most, uint64_t seed) : most(its_most), random(seed) {}

  void operator()(std::string* bytes) {
    MutexLock lock(&mu);
    if (changes >= most) return;
    if (random() % 20 != 0) return;  // most handshakes end well
    ++changes;
    const size_t at = random() % bytes->size();
    switch (random() % 7) {
      case 0:
        (*bytes)[at] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        *bytes += *bytes;
        break;
      case 2:
        std::rotate(bytes->begin(), bytes->begin() + at, bytes->end());
        break;
      case 3:
        bytes->resize(at);  // 0: the connection is cut
        break;
      case 4:
        bytes->insert(at, std::string(1 + random() % 40, '\x17'));
        break;
      case 5:  // the former bytes again
        std::swap(*bytes, former);
        if (bytes->empty()) *bytes = former;
        break;
      case 6:
        bytes->erase(at, 1);
        break;
    }
    if (bytes->size() < 4096) former = *bytes;
  }

  const int most;  // changes
  Mutex mu;
  std::mt19937_64 random;
  std::string former;
  std::atomic<int> changes{0};
};

TEST_F(TlsAttackTest, AManInTheMiddleOnlyBreaksConnections) {
  ByteRelay control(server_->control_port());
  ByteRelay data(server_->data_port());
  PoolOptions options = Options(With::kCertificates);
  options.servers[0].port = control.port();
  options.reroute_data_for_test = [&](size_t, const Endpoint&) { return Endpoint{"127.0.0.1", data.port(), ""}; };
  options.io_timeout_ms = 2'000;
  const auto pool = Pool::Open(options).value();
  auto region = pool->CreateRegion({.gc = false}).value();
  constexpr uint64_t kPages = 64;
  constexpr int kChanges = 60;
  Middle middle(kChanges, TestSeed());
  const auto tamper = [&](std::string* bytes) { middle(bytes); };
  std::mt19937_64 random(TestSeed() + 1);
  // The contents that a page may have: those of the last acknowledged write, or of one that failed after it.
  std::map<uint64_t, std::set<uint64_t>> may;
  const auto check = [&](uint64_t page, const std::string& got, const char* when) {
    for (const uint64_t seed : may[page]) {
      if (got == (seed == 0 ? std::string(kPageBytes, '\0') : Pattern(kPageBytes, seed))) return;
    }
    FAIL() << "page " << page << " has what nobody wrote, or what was overwritten, " << when;
  };
  for (uint64_t page = 0; page < kPages; ++page) may[page] = {0};
  control.SetTamper(tamper);
  data.SetTamper(tamper);
  uint64_t seed = 0;
  int failed = 0;
  const int64_t until_ns = DeadlineAfterMs(120'000);
  while (middle.changes < kChanges && MonotonicNs() < until_ns) {
    const uint64_t page = random() % kPages;
    if (random() % 2 == 0) {
      const bool ok = region->Write(page * kPageBytes, Bytes(Pattern(kPageBytes, ++seed)), {.timeout_ms = 300}).ok();
      if (ok) may[page].clear();
      may[page].insert(seed);
      failed += !ok;
    } else if (const auto got = Read(region.get(), page * kPageBytes, kPageBytes, {.timeout_ms = 300}); got.ok()) {
      ASSERT_NO_FATAL_FAILURE(check(page, *got, "while it is attacked"));
    }
  }
  control.SetTamper(nullptr);
  data.SetTamper(nullptr);
  EXPECT_EQ(middle.changes, kChanges) << "too little was tried";
  for (uint64_t page = 0; page < kPages; ++page) {
    absl::StatusOr<std::string> got = Read(region.get(), page * kPageBytes, kPageBytes, {.timeout_ms = 20'000});
    // A write that was given up may be under way to the last; then the page's contents are not known.
    for (int tries = 0; !got.ok() && tries < 5; ++tries) {
      got = Read(region.get(), page * kPageBytes, kPageBytes, {.timeout_ms = 20'000});
    }
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_NO_FATAL_FAILURE(check(page, *got, "afterwards"));
  }
  LOG(INFO) << middle.changes << " changes, " << seed << " writes, " << failed << " of them failed";
}

}  // namespace
}  // namespace nram
