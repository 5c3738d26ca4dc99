#ifndef NRAM_MEMBERS_ETCD_NAMES_H_
#define NRAM_MEMBERS_ETCD_NAMES_H_

// Names of kept regions as keys of etcd.

#include <cstdint>
#include <functional>
#include <memory>

#include "members/etcd/etcd_client.h"
#include "members/etcd/etcd_spec.h"
#include "members/name_arbiter.h"

namespace nram {

// `connect` makes a client for each call, and may be called by any thread. Values from etcd are not trusted.
// `patience_ms` is for tests.
std::unique_ptr<NameArbiter> NewEtcdNames(const EtcdSpec& spec, std::function<std::unique_ptr<EtcdClient>()> connect,
                                          int64_t patience_ms = NameArbiter::kPatienceMs);

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_NAMES_H_
