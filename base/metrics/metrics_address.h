#ifndef NRAM_BASE_METRICS_METRICS_ADDRESS_H_
#define NRAM_BASE_METRICS_METRICS_ADDRESS_H_

#include <netinet/in.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

// Where Prometheus scrapes a program.
struct MetricsAddress {
  std::string text;
  sockaddr_in socket{};
};

// Parses "10.0.0.7:9435", the value of a flag --metrics. Nothing is looked up: the host is a numeric IPv4 address,
// because the HTTP server, as Debian builds it, knows nothing else. INVALID_ARGUMENT names the accepted form.
absl::StatusOr<MetricsAddress> ParseMetricsAddress(absl::string_view text);

}  // namespace nram

#endif  // NRAM_BASE_METRICS_METRICS_ADDRESS_H_
