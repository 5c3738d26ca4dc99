#ifndef NRAM_TESTS_UTIL_TEST_ETCD_H_
#define NRAM_TESTS_UTIL_TEST_ETCD_H_

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/subprocess.h"
#include "gtest/gtest.h"
#include "members/etcd/etcd_client.h"
#include "memserver/listen.h"
#include "tests/util/freeze.h"

namespace nram {

// A real etcd (Debian's etcd-server) with a directory and a port of its own. Not thread-safe.
class TestEtcd {
 public:
  // `flags`: additional ones. `scheme`: https with certificates, which `tls_dir` has for clients.
  explicit TestEtcd(std::vector<std::string> flags = {}, std::string scheme = "http", std::string tls_dir = "")
      : flags_(std::move(flags)), scheme_(std::move(scheme)), tls_dir_(std::move(tls_dir)) {
    const char* const base = std::getenv("TEST_TMPDIR");
    std::string name = absl::StrCat(base == nullptr ? "/tmp" : base, "/etcd-XXXXXX");
    directory_ = mkdtemp(name.data());
    // Another program may take the port before etcd does.
    for (int i = 0; i < 10 && !process_.has_value(); ++i) {
      port_ = BoundPort(ListenTcp("127.0.0.1", 0)->get()).value();
      Start();
    }
    EXPECT_TRUE(process_.has_value()) << "etcd does not start: is etcd-server installed (tools/setup)?";
  }
  ~TestEtcd() {
    process_.reset();
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
  }

  // Starts again with its former data, after Kill.
  void Start() {
    const std::string url = absl::StrCat(scheme_, "://", host());
    std::vector<std::string> words = {"cd", directory_, "&&", "exec", "etcd", "--name=t", "--data-dir=data",
                                      "--listen-client-urls=" + url, "--advertise-client-urls=" + url,
                                      // A Unix socket in that directory.
                                      "--listen-peer-urls=unix://localhost:1",
                                      "--initial-advertise-peer-urls=unix://localhost:1",
                                      "--initial-cluster=t=unix://localhost:1"};
    words.insert(words.end(), flags_.begin(), flags_.end());
    words.push_back("> log 2>&1");
    SubprocessOptions options;
    options.death_signal = SIGKILL;
    options.close_others = true;
    process_ = Subprocess::Start({"sh", "-c", absl::StrJoin(words, " ")}, options).value();
    const bool serves = PollUntil(DeadlineAfterMs(30'000), 20, [&] {
      return process_->WaitUntil(0).has_value() || Client()->List("x", 1, DeadlineAfterMs(1'000)).ok();
    });
    if (!serves || process_->WaitUntil(0).has_value()) process_.reset();
  }
  void Kill() { process_.reset(); }
  void Freeze() { FreezeProcess(process_->pid()); }
  void Thaw() { kill(process_->pid(), SIGCONT); }
  // etcdctl's exit code.
  int Run(const std::string& words) const {
    return system(absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", host(), " ", words, " > /dev/null 2>&1").c_str());
  }

  void EndAllLeases() const {
    const std::string etcdctl = absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", host(), " lease ");
    EXPECT_EQ(system(absl::StrCat("for lease in $(", etcdctl, "list | tail -n +2); do ", etcdctl,
                                  "revoke $lease > /dev/null; done")
                         .c_str()),
              0);
  }

  std::string host() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string Spec(const std::string& name) const { return absl::StrCat("etcd:", host(), "/", name); }
  std::unique_ptr<EtcdClient> Client() const { return EtcdClient::Create({host()}, tls_dir_); }
  bool runs() const { return process_.has_value(); }

 private:
  const std::vector<std::string> flags_;
  const std::string scheme_;
  const std::string tls_dir_;
  std::string directory_;
  int port_ = 0;
  std::optional<Subprocess> process_;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_TEST_ETCD_H_
