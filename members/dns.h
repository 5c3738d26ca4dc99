#ifndef NRAM_MEMBERS_DNS_H_
#define NRAM_MEMBERS_DNS_H_

// The addresses of a name: a headless service of Kubernetes, a service of Consul, a name with many addresses.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "members/member_source.h"

namespace nram {

struct DnsAnswer {
  std::vector<std::string> addresses;  // numeric, IPv4 or IPv6
  int64_t ttl_s = 0;                   // the shortest of them
};
using DnsLookup = std::function<absl::StatusOr<DnsAnswer>(const std::string& name, int64_t deadline_ns)>;

// "dns:NAME[:PORT]". INVALID_ARGUMENT.
absl::StatusOr<Endpoint> ParseDnsSpec(absl::string_view text);

// Asks by c-ares, as /etc/resolv.conf and /etc/hosts say, without a cache. NOT_FOUND: the name has no address.
absl::StatusOr<DnsAnswer> LookUpByAres(const std::string& name, int64_t deadline_ns);

// Asks again when the answer's time is over, but not sooner than kDnsMinMs, nor later than kDnsMaxMs.
inline constexpr int64_t kDnsMinMs = 1'000;
inline constexpr int64_t kDnsMaxMs = 1'800;
std::unique_ptr<MemberSource> NewDns(const Endpoint& name, DnsLookup lookup = &LookUpByAres);

}  // namespace nram

#endif  // NRAM_MEMBERS_DNS_H_
