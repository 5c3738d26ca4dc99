#ifndef NRAM_MEMSERVER_REGISTRATION_H_
#define NRAM_MEMSERVER_REGISTRATION_H_

// Tells etcd that this server is there: a key under a lease of etcd's, which clients watch (adr/0023). The key is a
// name in a list and nothing else: if etcd is away, or the key is gone, the server serves all the same.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/sync.h"
#include "members/etcd/etcd_client.h"
#include "members/etcd/etcd_spec.h"
#include "members/etcd/server_record.h"

namespace nram {

// Thread-safe. Has a thread of its own.
class Registration {
 public:
  struct Options {
    EtcdSpec spec;
    ServerRecord record;                 // but for its state
    std::function<std::string()> state;  // now: "serves", "drains" or "leaves"
    int64_t ttl_s = 10;                  // the key's time after the last sign of life
  };

  Registration(Options options, std::unique_ptr<EtcdClient> client);
  // Takes the key away. Blocks for a second at most.
  ~Registration();

 private:
  static constexpr int64_t kCallMs = 2'000;
  static constexpr int64_t kEndMs = 500;          // for a call under way at the end, and for the lease's end
  static constexpr int64_t kLookMs = 200;         // at the state
  static constexpr int64_t kPutAgainMs = 30'000;  // in case the key was deleted
  static constexpr int64_t kAgainMinMs = 200;
  static constexpr int64_t kAgainMaxMs = 2'000;

  void Run();
  void PutAgainAndAgain();
  // Does the work that is due. An error: etcd has not done it.
  absl::Status Step();
  void Remark(const absl::Status& status);

  const Options options_;
  const std::string key_;
  const std::unique_ptr<EtcdClient> client_;

  // The thread's own.
  int64_t lease_ = 0;  // 0: none
  int64_t kept_ns_ = 0;
  int64_t put_ns_ = 0;
  std::string put_;  // the value that etcd has
  bool failed_ = false;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the thread makes no call any more
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_REGISTRATION_H_
