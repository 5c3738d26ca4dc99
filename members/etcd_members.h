#ifndef NRAM_MEMBERS_ETCD_MEMBERS_H_
#define NRAM_MEMBERS_ETCD_MEMBERS_H_

// The servers that are registered in etcd (memserver/registration.h).

#include <memory>

#include "members/etcd/etcd_client.h"
#include "members/etcd/etcd_spec.h"
#include "members/member_source.h"

namespace nram {

struct EtcdTimes {
  int64_t list_ms = 2'000;     // for a listing
  int64_t silence_ms = 6'000;  // without a word, another host is asked
  int64_t fresh_ms = 15'000;   // a word that is older counts no more
  int64_t again_max_ms = 2'000;
};

// Has a thread of its own from the first Look on, which lists and watches. Values that are wrong are passed over, with
// a line in the log.
std::unique_ptr<MemberSource> NewEtcdMembers(const EtcdSpec& spec, std::unique_ptr<EtcdClient> client,
                                             const EtcdTimes& times = {});

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_MEMBERS_H_
