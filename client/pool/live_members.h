#ifndef NRAM_CLIENT_POOL_LIVE_MEMBERS_H_
#define NRAM_CLIENT_POOL_LIVE_MEMBERS_H_

// Keeps the sessions of an open pool in step with its members, and decides which of them are awake.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/sync.h"
#include "client/pool/environment.h"
#include "client/pool/sessions.h"
#include "members/member_cache.h"
#include "members/member_source.h"
#include "members/roster.h"

namespace nram {

// Thread-safe. One thread watches the source, another one wakes sessions.
class LiveMembers : public ServerSession::Waker {
 public:
  // The pool.
  class Host {
   public:
    virtual ~Host() = default;
    // Whether the server may be a member at all; if not, *why says why not.
    virtual bool Accepts(const Endpoint& server, std::string* why) const = 0;
    // A session, asleep, with the next number.
    virtual ServerSession* AddSession(const Endpoint& server) = 0;
    // The session is driven from now on. One caller at a time. False: that cannot be now.
    virtual bool Drive(ServerSession* session) = 0;
  };

  // All outlive it. `source` may be null: then the sessions that are there are all, and some may sleep. Sessions must
  // have this as their waker.
  LiveMembers(Sessions* sessions, std::shared_ptr<MemberSource> source, Environment* environment, Host* host);
  ~LiveMembers() override;

  // Wakes the first sessions, and begins to watch.
  void Begin();
  // Ends its threads. Blocks for as long as a look at the source takes, 3 s at most.
  void Stop();
  // For calls that concern all servers of the pool.
  void WakeAll();

  // ServerSession::Waker
  void WantAwake(ServerSession* session) override;

 private:
  static constexpr int64_t kLookMs = 3'000;
  static constexpr int64_t kWakeMs = 100;      // from one look at the awake sessions to the next
  static constexpr int64_t kFirstMs = 20;      // the same while no server is up yet
  static constexpr size_t kNeighbours = 16;    // woken along with one that a waiter needs
  static constexpr size_t kRefusedMax = 256;   // names that are remembered
  static constexpr int64_t kWriteMs = 60'000;  // how often the cache's file is written, also without a change

  void Watch();
  void Look();
  void Hear(const std::vector<Member>& members);
  void Apply(const Roster::Step& step);
  std::vector<std::string> NamesOf(const std::vector<size_t>& numbers) const;
  // Former members are removed, except a server that is a member by another name.
  void SetRemoved();
  void Keep(const std::vector<Member>& members);
  void NoteTrouble(const absl::Status& status);
  std::vector<Member> OnlyAccepted(const std::vector<Member>& members);

  void WakeLoop();
  // Returns how long to wait for the next look.
  int64_t WakeSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeLocked(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DriveLocked(ServerSession* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Sessions* const sessions_;
  const std::shared_ptr<MemberSource> source_;
  Environment* const environment_;
  Host* const host_;

  // The watching thread's own.
  Roster roster_;
  std::unique_ptr<MemberCache> cache_;
  std::vector<Member> kept_;
  int64_t kept_ns_ = 0;
  int64_t counted_ns_ = 0;
  std::string trouble_;  // the last that was logged
  bool told_full_ = false;
  absl::flat_hash_set<std::string> refused_;

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<ServerSession*> order_ ABSL_GUARDED_BY(mu_);  // in which sleeping sessions are woken, from the end on
  struct Woken {
    ServerSession* session;
    int64_t since_ns;
  };
  std::vector<Woken> coming_ ABSL_GUARDED_BY(mu_);

  Mutex wanted_mu_;  // taken under sessions' locks; the last of all
  std::vector<ServerSession*> wanted_ ABSL_GUARDED_BY(wanted_mu_);
  CondVar wanted_changed_;
  bool ended_ ABSL_GUARDED_BY(wanted_mu_) = false;

  std::thread watcher_;
  std::thread waker_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_LIVE_MEMBERS_H_
