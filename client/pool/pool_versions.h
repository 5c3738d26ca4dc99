#ifndef NRAM_CLIENT_POOL_POOL_VERSIONS_H_
#define NRAM_CLIENT_POOL_POOL_VERSIONS_H_

// Versions of regions for readers that do not own the region (adr/0019).

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/named_seals.h"
#include "client/pool/publication_record.h"
#include "client/pool/region.h"
#include "client/pool/version_holds.h"
#include "client/transport/control_client.h"

namespace nram {

// The versions that one server has of a region.
struct ServerVersions {
  ServerSession* session = nullptr;
  uint64_t incarnation = 0;
  std::vector<VersionInfo> versions;  // the oldest first
};

// Thread-safe. Its calls block, and are described at Pool's of the same names.
class PoolVersions {
 public:
  // Both outlive it.
  PoolVersions(const RegionHome* home, const NamedSeals* seals)
      : home_(home), seals_(seals), holds_(home->environment) {}

  absl::StatusOr<std::unique_ptr<Region>> Open(const VersionPlace& place);
  absl::Status VisitChanges(const Region& from, const Region& to,
                            absl::FunctionRef<void(uint64_t span, const ChangedPages& pages)> visit) const;

  absl::StatusOr<std::vector<ServerVersions>> List(RegionId region, int64_t deadline_ns) const;

 private:
  // A member that is there, and held.
  struct Member {
    ServerSession* session = nullptr;
    CopyMap::Life life;
    RegionInfo info;
  };
  using Members = std::vector<Member>;
  using Held = std::vector<VersionHolds::Hold>;
  // Those that have the version. UNAVAILABLE: one does not answer. DATA_LOSS: too many do not have it.
  absl::StatusOr<Members> HoldAll(const VersionPlace& place, int64_t deadline_ns, Held* held);
  // NOT_FOUND: it is not there.
  absl::Status HoldAt(const VersionPlace& place, ServerSession* session, int64_t deadline_ns, Held* held);
  absl::Status MakeSeal(const VersionPlace& place, const Members& members, std::unique_ptr<RegionSeal>* seal) const;
  // Where its spans are.
  absl::Status Load(const VersionPlace& place, const Members& members, int64_t deadline_ns, CopyMap* copies) const;
  int64_t DeadlineNs() const;

  const RegionHome* const home_;
  const NamedSeals* const seals_;
  VersionHolds holds_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_VERSIONS_H_
