#ifndef NRAM_MEMBERS_NAME_ARBITER_H_
#define NRAM_MEMBERS_NAME_ARBITER_H_

// Says which client was the first to give a kept region its name, where a pool's source can say that (adr/0023). It
// says nothing else: only the servers tell whether a region exists, and which client owns it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/endpoint.h"
#include "base/units.h"

namespace nram {

// Names are each tenant's own.
struct KeptName {
  std::string tenant;
  std::string name;
};

// A region that has, or is to have, a name.
struct NamedRegion {
  RegionId id{};
  std::vector<Endpoint> servers;  // that may have a part of it
  std::string client;             // the owner, for people
  Epoch epoch{};                  // of the owner whose list of servers that is; 0: the creation's
};

// Thread-safe. Each call blocks for kPatienceMs at most, twice that where it says so. An error of any code: the source
// does not answer, or refuses. The change then may or may not be done, and the caller may repeat it.
class NameArbiter {
 public:
  static constexpr int64_t kPatienceMs = 1'500;

  virtual ~NameArbiter() = default;

  struct Standing {
    bool won = false;      // the name is the region's
    int64_t revision = 0;  // of the name's last change; 0: no region has it
    // If it was not won, and another region has it:
    NamedRegion holder;
    absl::Status trouble;           // the reason why `holder` cannot be read
    std::vector<Endpoint> members;  // of the pool, as the source has them now
  };
  // Gives the name to the region, if the region has it already, or if it has not changed since `revision` (0: if no
  // region has it). May block twice as long.
  virtual absl::StatusOr<Standing> Claim(const KeptName& name, const NamedRegion& region, int64_t revision) = 0;
  // The name has this list of servers from now on. NOT_FOUND: it is not the region's, or a later owner has told a list.
  // May block twice as long.
  virtual absl::Status SetServers(const KeptName& name, const NamedRegion& region) = 0;
  // Frees the name, if it was the region's. May block twice as long.
  virtual absl::Status Release(const KeptName& name, RegionId id) = 0;

  // Where people find the name: "/nram/render/regions/local/x in etcd:node1:2379/render".
  virtual std::string PlaceOf(const KeptName& name) const = 0;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_NAME_ARBITER_H_
