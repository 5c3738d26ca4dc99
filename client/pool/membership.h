#ifndef NRAM_CLIENT_POOL_MEMBERSHIP_H_
#define NRAM_CLIENT_POOL_MEMBERSHIP_H_

// The members of named regions of several copies, or with sealed pages (adr/0014, "Regions with a name"): the lives of
// servers that may have a part of the region. Their list, with a number, is the region's view. Every member keeps it
// for clients that attach the region later.

#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/sync.h"
#include "base/units.h"
#include "client/pool/kept_names.h"
#include "client/pool/region.h"
#include "client/pool/repairer.h"

namespace nram {

// Of the regions that this pool owns. Has a thread of its own as soon as there is one. Thread-safe.
class Membership : public RegionKeeper {
 public:
  // All outlive it.
  Membership(const RegionHome* home, Repairer* repairer, KeptNames* names)
      : home_(home), repairer_(repairer), names_(names) {}
  ~Membership();

  // A region as its servers know it. `map` has its members.
  using Members = std::vector<CopyMap::Life>;  // kNoServer: of a life that no server of the pool has
  struct View {
    uint64_t number = 0;  // the highest that was ever sent; each is for one list
    Members members;      // of the last view that counts
    // Lists that some server may have. A new one counts once a server of each of them has it: a client that believes a
    // list asks all its members.
    std::vector<Members> out;
  };
  // The fields of the region that a server gets when the region is created there later.
  struct Told {
    std::string name;
    uint64_t size_bytes = 0;
    std::string seal_manifest;  // "": the region is plain
  };
  // From now on the members of the region are looked after, until Leave. May block as that does.
  void Add(RegionMap* map, Told told, View view);
  // Tells a list of members, with the next number, to those that answer of it and of the lists before. Returns how many
  // of the list have taken it; 0: it does not count. If the region has another owner, the map is fenced. Blocks until
  // `deadline_ns` at most.
  size_t Tell(RegionMap* map, View* view, const Members& members, uint32_t left_in_order, int64_t deadline_ns) const;

  // RegionKeeper: tells that the region is left in good order, if all of it is in sync. Blocks for the pool's
  // io_timeout_ms, a few seconds, and as long as messages to the members of some region are under way: two seconds for
  // each server that is up and does not answer, and six for etcd.
  void Leave(const IoPlace& place) override;
  void NoteDestroyed(const std::string& name, RegionId id) override { names_->NoteDestroyed(name, id); }

 private:
  static constexpr int64_t kLookMs = 250;    // from one look at all regions to the next
  static constexpr int64_t kTellMs = 2'000;  // for one server's answer
  static constexpr int64_t kCreateAgainMs = 10'000;
  static constexpr size_t kOutMax = 16;
  static constexpr int64_t kLetGoMs = 5'000;  // for the repairer to let go of a region

  struct Held {
    RegionMap::Ref map;
    Told told;
    View view;
    std::map<uint64_t, int64_t> refused_ns;  // when a server has refused to create it, by incarnation
    std::set<uint16_t> named;                // servers that the arbiter of its name knows
  };

  void Run();
  void Look(Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the arbiter of a kept region's name the servers of all lists that are out, and of `more`. Blocks for three
  // seconds at most, and not at all if nothing is new.
  void NoteServers(Held* held, const Members& more) const;
  enum class Standing {
    kStays,
    kComesBack,  // it was to be dropped, and is well again
    kGoes,       // nothing of the region is there
    kMissed,     // it is gone, with data that no other has
  };
  Standing StandingOf(const RegionMap& map, const CopyMap::Life& member) const;
  // A list may be sent: whatever its outcome, a server of each list that is out can get the next one.
  bool MayTell(const View& view, const Members& members) const;
  // Creates the region there, to be in the next view. False: the server has refused, or has not answered in time.
  bool Create(const Held& held, ServerSession* session, const Members& members) const;
  bool Settle(const IoPlace& place, int64_t deadline_ns) const;
  int64_t NowNs() const { return home_->environment->NowNs(); }
  int64_t DeadlineNs() const { return NowNs() + kTellMs * kNsPerMs; }
  static std::vector<uint64_t> Incarnations(const Members& members);

  const RegionHome* const home_;
  Repairer* const repairer_;
  KeptNames* const names_;
  Mutex mu_;  // held during messages to servers, since their lists must not change meanwhile; no page waits for it
  std::list<Held> held_ ABSL_GUARDED_BY(mu_);
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  CondVar stopped_;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_MEMBERSHIP_H_
