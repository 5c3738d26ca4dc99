#ifndef NRAM_MEMBERS_ETCD_ETCD_CLIENT_H_
#define NRAM_MEMBERS_ETCD_ETCD_CLIENT_H_

// nram's requests to etcd, by etcd's own gRPC API: keys by prefix, changes as they come, a lease and a key under it,
// and one key by compare and swap.
// Nothing above this header sees gRPC.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

// One user at a time, but for Stop. Every call blocks until its deadline (absolute, monotonic) at most. A call goes to
// one host of the cluster. After a call that had no answer, the next one goes to the next host. Codes:
//   UNAVAILABLE, DEADLINE_EXCEEDED  the host does not answer
//   CANCELLED                       Stop
//   others                          as etcd says
class EtcdClient {
 public:
  // `hosts`: as EtcdSpec has them. `tls_dir`: certificates as TlsFiles::In finds a client's, read anew for each
  // connection; "": plain. Connects with the first call. PERMISSION_DENIED: other users may read the private key.
  static std::unique_ptr<EtcdClient> Create(std::vector<std::string> hosts, std::string tls_dir);
  virtual ~EtcdClient() = default;

  struct Pair {
    std::string key;
    std::string value;
  };
  struct Listing {
    std::vector<Pair> pairs;
    int64_t revision = 0;  // of all of etcd's keys
    int64_t count = 0;     // of the keys that there are; more than `pairs` if there are more than the limit
  };
  struct Change {
    std::string key;
    std::optional<std::string> value;  // none: the key is gone
  };

  virtual absl::StatusOr<Listing> List(const std::string& prefix, int64_t limit, int64_t deadline_ns) = 0;
  // Blocks until etcd ends it, nothing comes for `silence_ms`, or Stop; never returns OK. `heard` is called with the
  // changes of each message, and with none when etcd has only said that it is there, which it is asked three times in
  // that time. OUT_OF_RANGE: changes since `from_revision` are not known any more, so a listing must come first.
  virtual absl::Status Watch(const std::string& prefix, int64_t from_revision, int64_t silence_ms,
                             absl::FunctionRef<void(const std::vector<Change>&)> heard) = 0;

  // One key, as it is.
  struct Entry {
    int64_t revision = 0;  // of its last change; 0: there is no such key
    std::string value;
  };
  virtual absl::StatusOr<Entry> Get(const std::string& key, int64_t deadline_ns) = 0;
  struct Swapped {
    bool done = false;
    Entry now;  // its value only if nothing was done
  };
  // If the key's last change is still that of `revision` (0: if there is no such key), puts it without a lease, or
  // deletes it if there is no value. After an error it is unknown whether it was done.
  virtual absl::StatusOr<Swapped> Swap(const std::string& key, int64_t revision,
                                       const std::optional<std::string>& value, int64_t deadline_ns) = 0;

  virtual absl::StatusOr<int64_t> GrantLease(int64_t ttl_s, int64_t deadline_ns) = 0;
  // NOT_FOUND: it has ended.
  virtual absl::Status KeepAlive(int64_t lease, int64_t deadline_ns) = 0;
  virtual absl::Status EndLease(int64_t lease, int64_t deadline_ns) = 0;
  // The key goes when the lease ends. NOT_FOUND: it has ended.
  virtual absl::Status Put(const std::string& key, const std::string& value, int64_t lease, int64_t deadline_ns) = 0;

  // The host that the next call goes to.
  virtual std::string host() const = 0;
  // Ends the call under way, and all later ones at once. Any thread.
  virtual void Stop() = 0;
};

// The certificates with which this process speaks to etcd: $NRAM_ETCD_TLS_DIR, else /etc/nram/etcd-tls if it exists;
// "": it speaks plain ("none" in the variable says so too).
std::string EtcdTlsDir();

// The end of the range of all keys that begin with `prefix`.
std::string EtcdRangeEnd(absl::string_view prefix);

}  // namespace nram

#endif  // NRAM_MEMBERS_ETCD_ETCD_CLIENT_H_
