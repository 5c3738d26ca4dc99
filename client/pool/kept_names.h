#ifndef NRAM_CLIENT_POOL_KEPT_NAMES_H_
#define NRAM_CLIENT_POOL_KEPT_NAMES_H_

// Names of kept regions, in a pool whose source says which client was the first to give a name (adr/0023). In other
// pools these functions ask and remember nothing.

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/environment.h"
#include "client/pool/options.h"
#include "client/pool/sessions.h"
#include "members/name_arbiter.h"

namespace nram {

// Thread-safe. Calls block for three seconds at most, unless they say more. While the source does not answer, they act
// as if there were none. A thread asks it again, and writes the late entries when it answers.
class KeptNames {
 public:
  // All outlive it.
  KeptNames(const Sessions* sessions, Environment* environment, const PoolOptions* options);
  ~KeptNames();

  // A name that is being given to a region.
  struct Claim {
    KeptName name;
    NamedRegion region;
    bool won = false;      // it is the region's
    bool late = false;     // the source has not answered
    int64_t revision = 0;  // if it is won
  };
  // To be called before any server is asked to create the region. ALREADY_EXISTS: another region has the name.
  // UNAVAILABLE: another region had the name, and a server that may have that region does not answer; or the name
  // changes all the time. FAILED_PRECONDITION: the source's answer cannot be read. Blocks until `deadline_ns` and a few
  // seconds more at most.
  absl::StatusOr<Claim> Begin(const std::string& name, RegionId id, std::vector<Endpoint> servers, int64_t deadline_ns);
  // The region was created. ALREADY_EXISTS: another one has got the name meanwhile, and this one must be undone. Blocks
  // for ten seconds at most.
  absl::Status Confirm(Claim claim);
  // Nothing is left of the region.
  void GiveUp(const Claim& claim);
  void NoteDestroyed(const std::string& name, RegionId id);
  // The servers that may have a part of the region are these now, by its owner of that epoch. Returns when the source
  // has them, or does not answer.
  void SetServers(const std::string& name, RegionId id, Epoch epoch, std::vector<Endpoint> servers);

 private:
  static constexpr int64_t kLateMs = 2'000;   // from one attempt to the next
  static constexpr int64_t kIdleMs = 60'000;  // from one look at nothing to the next
  static constexpr int64_t kAwayMs = 5'000;   // after silence, calls that can be late do not wait
  static constexpr size_t kLateMax = 1024;
  static constexpr int64_t kAskMs = 2'000;  // for one server's answer
  static constexpr int kTries = 3;

  struct Late {
    KeptName name;
    NamedRegion region;
    bool has_name = false;  // only its list of servers is late
    uint64_t change = 0;    // of this entry: shows, after it is carried out, whether it has changed meanwhile
  };

  std::string Tenant() const;
  // OK: no server that may have a region of that name has one.
  absl::Status CheckGone(const KeptName& name, const NameArbiter::Standing& standing, int64_t deadline_ns) const;
  // NOT_FOUND: that server has none.
  absl::Status AskServer(const Endpoint& server, const std::string& name, int64_t deadline_ns) const;
  void AddLate(Late late);
  // True: an entry of the region was there.
  bool ChangeLate(const NamedRegion& region);
  void ForgetLate(RegionId id);
  bool IsLate(RegionId id) const;  // and there is still time
  // False: there is no such entry any more.
  bool NoteDone(const Late& done);
  void NoteAway();
  bool IsAway() const;
  void Run();
  // Carries out one entry. False: the source does not answer.
  bool CatchUp(const Late& late);

  const Sessions* const sessions_;
  Environment* const environment_;
  const PoolOptions* const options_;
  const std::unique_ptr<NameArbiter> arbiter_;  // null: the source cannot say it
  mutable Mutex mu_;
  CondVar changed_;
  std::list<Late> late_ ABSL_GUARDED_BY(mu_);
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t away_until_ns_ ABSL_GUARDED_BY(mu_) = INT64_MIN;
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);  // from the first late entry on
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_KEPT_NAMES_H_
