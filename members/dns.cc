#include "members/dns.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"
#include "members/pause.h"

namespace nram {
namespace {

class Dns final : public MemberSource {
 public:
  Dns(const Endpoint& name, DnsLookup lookup)
      : endpoint_(name), lookup_(std::move(lookup)), name_(absl::StrCat("dns:", name.ToString())) {}

  absl::StatusOr<std::vector<Member>> Look(int64_t deadline_ns) override {
    absl::StatusOr<DnsAnswer> answer = lookup_(endpoint_.host, deadline_ns);
    if (!answer.ok()) return Annotate(answer.status(), name_);
    period_ms_ = std::clamp(std::min(answer->ttl_s, int64_t{60}) * 1'000, kDnsMinMs, kDnsMaxMs);
    // Sorted: the order of the answer changes from time to time.
    const std::set<std::string> addresses(answer->addresses.begin(), answer->addresses.end());
    std::vector<Member> members;
    for (const std::string& address : addresses) {
      if (members.size() < kPoolServersMax) members.push_back({{address, endpoint_.port, ""}});
    }
    if (members.empty()) return absl::NotFoundError(absl::StrCat(name_, ": the name has no address"));
    return members;
  }
  int64_t period_ms() const override { return period_ms_; }
  void AwaitNext() override { pause_.Wait(period_ms_); }
  void Stop() override { pause_.Stop(); }
  const std::string& name() const override { return name_; }
  bool may_be_remote() const override { return true; }

 private:
  const Endpoint endpoint_;
  const DnsLookup lookup_;
  const std::string name_;
  int64_t period_ms_ = kDnsMinMs;
  Pause pause_;
};

}  // namespace

absl::StatusOr<Endpoint> ParseDnsSpec(absl::string_view text) {
  absl::string_view name = text;
  absl::StatusOr<Endpoint> endpoint = absl::InvalidArgumentError("it is not a host");
  if (absl::ConsumePrefix(&name, "dns:") && !absl::StrContains(name, '/') && !absl::StrContains(name, ',')) {
    endpoint = ParseEndpoint(name, kDefaultServerPort);
  }
  if (endpoint.ok() && !endpoint->is_unix()) return endpoint;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", Printable(text, 200), "\" is not accepted: expected dns:NAME[:PORT], as in dns:nram:7070"));
}

std::unique_ptr<MemberSource> NewDns(const Endpoint& name, DnsLookup lookup) {
  return std::make_unique<Dns>(name, std::move(lookup));
}

}  // namespace nram
