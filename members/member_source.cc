#include "members/member_source.h"

#include "absl/strings/match.h"
#include "base/status.h"
#include "members/dns.h"
#include "members/etcd/etcd_client.h"
#include "members/etcd/etcd_spec.h"
#include "members/etcd_members.h"

namespace nram {

bool IsMemberSpec(absl::string_view spec) {
  return absl::StartsWith(spec, "dns:") || absl::StartsWith(spec, EtcdSpec::kScheme);
}

absl::StatusOr<std::unique_ptr<MemberSource>> OpenMemberSource(absl::string_view spec) {
  if (absl::StartsWith(spec, "dns:")) {
    NRAM_ASSIGN_OR_RETURN(const Endpoint name, ParseDnsSpec(spec));
    return NewDns(name);
  }
  NRAM_ASSIGN_OR_RETURN(const EtcdSpec etcd, EtcdSpec::Parse(spec));
  return NewEtcdMembers(etcd, EtcdClient::Create(etcd.hosts, EtcdTlsDir()));
}

}  // namespace nram
