#ifndef NRAM_CLIENT_POOL_NAMED_REGIONS_H_
#define NRAM_CLIENT_POOL_NAMED_REGIONS_H_

// Named regions: created on all servers or on none, found and taken over by name.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/pool/environment.h"
#include "client/pool/options.h"
#include "client/pool/region.h"
#include "client/pool/sessions.h"
#include "client/transport/control_client.h"

namespace nram {

enum class AttachMode {
  kReadOnly,
  kOwner,     // refused while another client's lease lives
  kTakeOver,  // shuts the present owner out
};

// Thread-safe. Its calls block, and are described at Pool's of the same names.
class NamedRegions {
 public:
  // All outlive it.
  NamedRegions(const RegionHome* home, LeaseId lease)
      : home_(home),
        sessions_(home->sessions),
        environment_(home->environment),
        options_(home->options),
        lease_(lease) {}

  absl::StatusOr<std::unique_ptr<Region>> Create(const RegionOptions& options);
  absl::StatusOr<std::unique_ptr<Region>> Attach(const std::string& name, AttachMode mode);

 private:
  struct Making;
  absl::Status MakeEverywhere(const Making& making, int64_t deadline_ns);
  // Has every server undo it, and waits for those that answer. Returns text to be added to the error.
  std::string UndoEverywhere(const Making& making);
  absl::Status AwaitUndone(const std::string& name, int64_t deadline_ns);
  absl::StatusOr<std::vector<RegionInfo>> FindNamed(const std::string& name, int64_t deadline_ns);
  static absl::Status CheckWhole(const std::string& name, const std::vector<RegionInfo>& infos,
                                 const std::vector<uint64_t>& alive, const RegionInfo& newest, const std::string& away);
  absl::Status RaiseEverywhere(const std::vector<RegionInfo>& infos, Epoch epoch, AttachMode mode);
  absl::Status RaiseAt(ServerSession* session, const AttachRegionArgs& args, int64_t deadline_ns);
  absl::Status LoadSpans(Region* region, int64_t deadline_ns);
  std::unique_ptr<Region> MakeRegion(RegionId id, Epoch epoch, const RegionOptions& options, bool read_only) const;
  int64_t DeadlineIn(int64_t ms) const { return environment_->NowNs() + ms * kNsPerMs; }

  const RegionHome* const home_;
  Sessions* const sessions_;
  Environment* const environment_;
  const PoolOptions* const options_;
  const LeaseId lease_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_NAMED_REGIONS_H_
