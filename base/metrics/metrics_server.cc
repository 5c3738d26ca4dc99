#include "base/metrics/metrics_server.h"

#include <errno.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fd.h"
#include "base/metrics/families.h"
#include "base/metrics/metrics_address.h"
#include "base/status.h"
#include "base/sync.h"

namespace nram {
namespace {

// Of the HTTP server behind the library. No other folder or file is served: it has no document root.
constexpr char kThreads[] = "2";
constexpr char kRequestBytesMax[] = "8192";
constexpr char kRequestTimeoutMs[] = "5000";
constexpr char kWaitingMax[] = "16";

// The HTTP server does not say why it cannot listen.
absl::Status TryToListen(const MetricsAddress& address) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.socket), sizeof address.socket) == 0 &&
      listen(fd.get(), 1) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("listen on ", address.text));
}

class Source : public prometheus::Collectable {
 public:
  explicit Source(FigureSource source) : source_(std::move(source)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    Figures figures;
    {
      MutexLock lock(&mu_);
      source_(&figures);
    }
    return ToFamilies(figures);
  }

 private:
  mutable Mutex mu_;
  const FigureSource source_;
};

}  // namespace

struct MetricsServer::Parts {
  std::shared_ptr<Source> source;
  std::unique_ptr<prometheus::Exposer> exposer;  // ends first
};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(absl::string_view text, FigureSource source) {
  NRAM_ASSIGN_OR_RETURN(const MetricsAddress address, ParseMetricsAddress(text));
  const absl::Status tried = TryToListen(address);
  if (!tried.ok()) return absl::UnavailableError(tried.message());
  auto parts = std::make_unique<Parts>();
  parts->source = std::make_shared<Source>(std::move(source));
  const std::vector<std::string> options = {"listening_ports",    address.text,     "num_threads",      kThreads,
                                            "max_request_size",   kRequestBytesMax, "connection_queue", kWaitingMax,
                                            "request_timeout_ms", kRequestTimeoutMs};
  // The library throws; nothing else here does.
  try {
    parts->exposer = std::make_unique<prometheus::Exposer>(options);
    parts->exposer->RegisterCollectable(parts->source);
  } catch (const std::exception& failed) {
    return absl::UnavailableError(absl::StrCat("listen on ", address.text, ": ", failed.what()));
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(parts)));
}

MetricsServer::MetricsServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const {
  const std::vector<int> ports = parts_->exposer->GetListeningPorts();
  return ports.empty() ? 0 : ports[0];
}

}  // namespace nram
