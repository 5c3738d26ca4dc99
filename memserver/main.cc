// nram-memserver: lends this machine's RAM to a pool. See MemServerOptions::Help.

#include <glog/logging.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/sanitizers.h"
#include "base/signals.h"
#include "base/tls/tls_dir.h"
#include "base/units.h"
#include "members/etcd/etcd_client.h"
#include "memserver/mem_server.h"
#include "memserver/options.h"
#include "memserver/registration.h"
#include "proto/wire.h"

namespace nram {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "nram-memserver: " << status.message() << std::endl;
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

// Null: it registers nowhere.
std::unique_ptr<Registration> Register(const MemServerOptions& options, MemServer* server) {
  if (options.register_at.empty()) return nullptr;
  Registration::Options registration;
  registration.spec = EtcdSpec::Parse(options.register_at).value();
  std::string host = options.advertise.empty() ? options.listen : options.advertise;
  // A bare IPv6 address has more than one colon.
  const size_t colons = static_cast<size_t>(std::count(host.begin(), host.end(), ':'));
  if (colons > 1 && host[0] != '[') host = absl::StrCat("[", host, "]");
  const bool has_port = host[0] == '[' ? host.back() != ']' : colons == 1;
  ServerRecord& record = registration.record;
  record.address = has_port ? host : absl::StrCat(host, ":", server->control_port());
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  record.host = name;
  record.domain = options.domain;
  record.version = absl::StrCat(kWireVersion);
  record.incarnation = FormatId(server->incarnation());
  registration.state = [server] {
    return std::string(server->core().leaving() ? "leaves" : server->core().draining() ? "drains" : "serves");
  };
  const std::string tls_dir = options.etcd_tls_dir.empty()     ? EtcdTlsDir()
                              : options.etcd_tls_dir == kNoTls ? ""
                                                               : options.etcd_tls_dir;
  auto client = EtcdClient::Create(registration.spec.hosts, tls_dir);
  return std::make_unique<Registration>(std::move(registration), std::move(client));
}

int Main(int argc, char** argv) {
  MemServerOptions options;
  ArgParser parser("nram-memserver");
  MemServerOptions::Register(&options, &parser);
  std::vector<std::string> positional;
  if (const auto code = parser.ParseMain(argc, argv, MemServerOptions::Help(), &positional)) return *code;
  if (!positional.empty())
    return Fail(absl::InvalidArgumentError(absl::StrCat("unexpected word \"", positional[0], "\"")));

  // Few arenas of malloc: the index is small and must not spread.
  mallopt(M_ARENA_MAX, 2);
  if (options.tls_dir.empty()) options.tls_dir = ServerTlsDir();
  if (options.tls_dir == "none") options.tls_dir.clear();
  signal(SIGPIPE, SIG_IGN);
  // The signals are blocked before any thread starts, so that only sigwait below sees them.
  const sigset_t ending = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  (void)WriteOomScore(options.oom_score_adj);

  options.watches_resident = !kIsSanitized;  // a sanitizer's own memory is no part of the ceiling
  auto server = MemServer::Start(options);
  if (!server.ok()) return Fail(server.status());
  if (!options.ready_file.empty()) {
    const std::string ready = absl::StrCat("{\"pid\": ", getpid(), ", \"control_port\": ", (*server)->control_port(),
                                           ", \"data_port\": ", (*server)->data_port(),
                                           ", \"metrics_port\": ", (*server)->metrics_port(), "}\n");
    if (const absl::Status status = WriteFileAtomically(options.ready_file, ready); !status.ok()) return Fail(status);
  }
  std::unique_ptr<Registration> registration = Register(options, server->get());
  int received = 0;
  while (sigwait(&ending, &received) != 0) {
  }
  if (options.leave_within_ms > 0 && received != SIGQUIT) {
    LOG(INFO) << "leaving on signal " << received << ", for " << options.leave_within_ms
              << " ms at most; another signal ends this at once";
    // Another signal is taken, and ends the waiting.
    const timespec none{};
    (*server)->Leave(DeadlineAfterMs(options.leave_within_ms),
                     [&] { return sigtimedwait(&ending, nullptr, &none) > 0; });
  }
  registration.reset();
  LOG(INFO) << "ending on signal " << received << " with " << (*server)->store().counters().regions << " regions and "
            << (*server)->store().counters().pages << " pages, which are lost";
  server->reset();
  return 0;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  nram::OpenStandardFds();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  return nram::Main(argc, argv);
}
