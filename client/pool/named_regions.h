#ifndef NRAM_CLIENT_POOL_NAMED_REGIONS_H_
#define NRAM_CLIENT_POOL_NAMED_REGIONS_H_

// Named regions: created on all servers or on none, found and taken over by name.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/pool/environment.h"
#include "client/pool/kept_names.h"
#include "client/pool/membership.h"
#include "client/pool/named_seals.h"
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

// Whether a region is attached although a server has restarted, or has freed its part, that may have had the newest, or
// all there was, of some pages.
enum class AttachLoss {
  kRefuse,
  kAccept,  // pages that only such servers had are zeros, older, or an error
};

// Thread-safe. Its calls block, and are described at Pool's of the same names.
class NamedRegions {
 public:
  // All outlive it.
  NamedRegions(const RegionHome* home, Membership* membership, const NamedSeals* seals, KeptNames* names)
      : home_(home),
        membership_(membership),
        seals_(seals),
        names_(names),
        sessions_(home->sessions),
        environment_(home->environment),
        options_(home->options) {}

  absl::StatusOr<std::unique_ptr<Region>> Create(const RegionOptions& options);
  absl::StatusOr<std::unique_ptr<Region>> Attach(const std::string& name, AttachMode mode, AttachLoss loss);

 private:
  struct Making;
  absl::Status ChooseServers(const RegionOptions& options, Making* making) const;
  // Has the name arbitrated, if the region is kept, and makes it; nothing remains after an error.
  absl::Status Make(const Making& making, int64_t deadline_ns);
  absl::Status MakeEverywhere(const Making& making, int64_t deadline_ns);
  // Has every server undo it, and waits for those that answer. Returns text to be added to the error.
  std::string UndoEverywhere(const Making& making);
  absl::Status AwaitUndone(const std::string& name, int64_t deadline_ns);
  absl::StatusOr<std::unique_ptr<Region>> TryAttach(const std::string& name, AttachMode mode, AttachLoss loss,
                                                    bool* again);
  // The servers' answers about one region, by server, and the findings.
  struct Found {
    std::vector<RegionInfo> infos;     // empty where it is not, or where it is not looked for
    std::vector<uint64_t> alive;       // the lives that were asked; one that comes up meanwhile was not
    std::string away;                  // a server that does not answer, if any
    RegionInfo newest;                 // of the highest epoch; with views: of the highest view
    bool left_in_order = false;        // its copies are alike
    bool misses = false;               // a member, of which others may have copies or not
    std::optional<SealManifest> seal;  // of a region with sealed pages
  };
  absl::StatusOr<Found> FindNamed(const std::string& name, AttachLoss loss, int64_t deadline_ns);
  absl::StatusOr<Found> FindOnce(const std::string& name, AttachLoss loss, int64_t deadline_ns);
  absl::StatusOr<Found> LookFor(const std::string& name, int64_t deadline_ns);
  // Narrows the answers down to one region, if that is whole.
  absl::Status Choose(const std::string& name, RegionId id, AttachLoss loss, Found* found) const;
  static absl::Status CheckWhole(const std::string& name, AttachLoss loss, Found* found);
  // `manifest`: of the new owner's seal. *newest: the newest of the servers' answers about the region after it was
  // taken over.
  absl::Status RaiseEverywhere(const std::vector<RegionInfo>& infos, Epoch epoch, AttachMode mode,
                               const std::string& manifest, RegionInfo* newest);
  absl::StatusOr<RegionInfo> RaiseAt(ServerSession* session, const AttachRegionArgs& args, int64_t deadline_ns);
  absl::Status LoadSpans(Region* region, int64_t deadline_ns);
  absl::Status LoadCopies(Region* region, const Found& found, int64_t deadline_ns);
  // The new owner's first view: of those that are there. `manifest`: of its seal.
  absl::Status TakeOverView(Region* region, const Found& found, const std::string& manifest, int64_t deadline_ns);
  // The handle of an attached region, before its spans are known.
  std::unique_ptr<Region> MakeAttached(const std::string& name, const Found& found, Epoch epoch, CopiesReader reader,
                                       bool read_only, std::unique_ptr<RegionSeal> seal) const;
  std::unique_ptr<Region> MakeRegion(RegionId id, Epoch epoch, const RegionOptions& options, CopiesReader reader,
                                     bool read_only, std::unique_ptr<RegionSeal> seal) const;
  int64_t DeadlineIn(int64_t ms) const { return environment_->NowNs() + ms * kNsPerMs; }

  const RegionHome* const home_;
  Membership* const membership_;
  const NamedSeals* const seals_;
  KeptNames* const names_;
  Sessions* const sessions_;
  Environment* const environment_;
  const PoolOptions* const options_;
  Mutex attaching_;  // one at a time: two would have one epoch
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_NAMED_REGIONS_H_
