#ifndef NRAM_BASE_METRICS_METRICS_SERVER_H_
#define NRAM_BASE_METRICS_METRICS_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/metrics/figures.h"
#include "base/units.h"

namespace nram {

// A port where Prometheus scrapes this program: http://ADDRESS/metrics. A scrape calls the source on one of the port's
// own two threads; the request is bounded in size and time. Any client that reaches the port may read. Thread-safe.
class MetricsServer {
 public:
  // The most memory that the two threads and their answers take.
  static constexpr uint64_t kBytes = 4 * kMiB;
  // The most descriptors.
  static constexpr int kDescriptors = 24;

  // Answers when Start returns. INVALID_ARGUMENT: as ParseMetricsAddress. UNAVAILABLE: the address cannot be had; the
  // message says why. Port 0: the kernel chooses.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(absl::string_view address, FigureSource source);
  // The source is not being asked any more when this returns. Blocks for a scrape that is under way, some seconds at
  // most.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;

 private:
  struct Parts;

  explicit MetricsServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace nram

#endif  // NRAM_BASE_METRICS_METRICS_SERVER_H_
