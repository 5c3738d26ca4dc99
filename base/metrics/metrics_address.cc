#include "base/metrics/metrics_address.h"

#include <arpa/inet.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace nram {

absl::StatusOr<MetricsAddress> ParseMetricsAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon != absl::string_view::npos && !absl::SimpleAtoi(text.substr(colon + 1), &port)) port = -1;
  const std::string host(text.substr(0, colon));
  MetricsAddress address;
  if (port < 0 || port > 65535 || inet_pton(AF_INET, host.c_str(), &address.socket.sin_addr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(text, 100),
                     "\" is not accepted: expected a numeric IPv4 address of this machine and a port, as in ",
                     "127.0.0.1:9435; 0.0.0.0 means all of its addresses"));
  }
  address.socket.sin_family = AF_INET;
  address.socket.sin_port = htons(static_cast<uint16_t>(port));
  address.text = absl::StrCat(host, ":", port);
  return address;
}

}  // namespace nram
