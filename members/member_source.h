#ifndef NRAM_MEMBERS_MEMBER_SOURCE_H_
#define NRAM_MEMBERS_MEMBER_SOURCE_H_

// A source of a pool's members: a host file, DNS, etcd. A source only lists the servers. Only a server itself tells
// whether it lives, and which data it has (adr/0023).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/endpoint.h"
#include "members/name_arbiter.h"

namespace nram {

// A pool's servers at a time, and the numbers that it gives to servers while it is open.
inline constexpr size_t kPoolServersMax = 4096;
inline constexpr int kDefaultServerPort = 7070;

struct Member {
  Endpoint endpoint;
  bool leaves = false;  // it is about to go

  friend bool operator==(const Member&, const Member&) = default;
};

// One user at a time, except for Stop and the const functions.
class MemberSource {
 public:
  virtual ~MemberSource() = default;

  // All members, none twice. Blocks until `deadline_ns` (absolute, monotonic) at most. An error: the members are not
  // known now. The list is never empty: a source that loses all its entries at once is not believed.
  virtual absl::StatusOr<std::vector<Member>> Look(int64_t deadline_ns) = 0;
  // How long to wait between two looks. Blocks for that long, until there is news, or until Stop.
  virtual int64_t period_ms() const = 0;
  virtual void AwaitNext() = 0;
  // Ends calls that block, now and later. Any thread.
  virtual void Stop() = 0;

  // As it was named: "etcd:node1:2379/render".
  virtual const std::string& name() const = 0;
  // Its members may be other machines, whatever they are now.
  virtual bool may_be_remote() const = 0;

  // The arbiter that says which client was the first to name a kept region there. Null: this source has none. It may
  // outlive the source. Any thread.
  virtual std::unique_ptr<NameArbiter> OpenNames() const { return nullptr; }
};

// "dns:NAME[:PORT]", "etcd:HOST[:PORT],.../NAME".
bool IsMemberSpec(absl::string_view spec);
// INVALID_ARGUMENT names the error in `spec`. Does not ask the source yet.
absl::StatusOr<std::unique_ptr<MemberSource>> OpenMemberSource(absl::string_view spec);

}  // namespace nram

#endif  // NRAM_MEMBERS_MEMBER_SOURCE_H_
