#ifndef NRAM_MEMSERVER_ACCESS_H_
#define NRAM_MEMSERVER_ACCESS_H_

// Decides which identity may do what (adr/0015). Both planes ask here, and decide nothing themselves.
//
// An identity has a voucher: an authority for "cn:NAME" and "spiffe://...", by a certificate; the kernel for "uid:N";
// none for the one of TCP without TLS (adr/0015). Rules make an identity a principal.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/sync.h"
#include "memserver/tenant_limits.h"

namespace nram {

enum class Role : uint8_t {
  kNobody,    // no rule lets it in, or one keeps it out
  kMonitor,   // hello, and figures without names
  kUser,      // and leases, room and regions, of its own tenant
  kOperator,  // and lists and destroys regions of all tenants, and drains
};

// Things that an identity may ask for.
enum class Action : uint8_t {
  kHello,
  kStatistics,
  kLease,       // all that a lease is named in, and the data plane
  kRegion,      // of one tenant: list, attach, spans, destroy
  kAllRegions,  // list and destroy those of other tenants
  kDrain,
};

// Longer identities fit no rule.
inline constexpr size_t kIdentityBytesMax = 255;

struct Principal {
  std::string identity;
  TenantNumber tenant = 0;
  Role role = Role::kNobody;
};

// One rule, in the order of the file.
struct AccessRule {
  std::string identity;  // a "*" at its end stands for any rest
  std::string tenant;    // "-": none, for monitors and for identities that are kept out
  Role role = Role::kNobody;
  TenantLimits limits;
};

// INVALID_ARGUMENT names the line and its error, or says that there is no rule.
absl::StatusOr<std::vector<AccessRule>> ParseAccessRules(absl::string_view text);

// Thread-safe.
class Access {
 public:
  struct Options {
    std::string file;             // empty: the default rules
    uid_t uid = 0;                // the server's
    bool lets_anyone_in = false;  // --allow-unauthenticated: an identity without a voucher counts
    // All that the server has. If rules name several tenants, one without a limit of its own may have half of it, so
    // that none takes all; but all of the bytes.
    TenantLimits whole;
    // Told of each tenant before a rule can name it: numbers from 0 on, in order, and again when rules change. May be
    // null.
    std::function<void(TenantNumber number, const std::string& name, const TenantLimits& limits)> declare;
  };

  // INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED: the file cannot be used; the message names it.
  static absl::StatusOr<std::unique_ptr<Access>> Create(const Options& options);

  // Call it once a second or so. Changed text is taken when two calls have found the same, since a file may be
  // read while it is written. A mistake in it goes to the log once, and the rules stay.
  void Reload();
  // Changes with the rules: a caller that has judged a principal before asks again.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // The principal of an identity, as the rules are now. kNobody: no rule fits.
  Principal Judge(absl::string_view identity) const;
  // UNAUTHENTICATED: no rule lets it in; PERMISSION_DENIED: its role may not. Messages say which.
  static absl::Status Check(const Principal& principal, Action action);

  TenantLimits limits(TenantNumber tenant) const;
  // Whether the present rules name several tenants, so that none may take all of a thing.
  bool has_several_tenants() const {
    MutexLock lock(&mu_);
    return has_several_;
  }
  std::string TenantName(TenantNumber tenant) const;
  static absl::string_view RoleName(Role role);

 private:
  explicit Access(const Options& options) : options_(options) {}
  // RESOURCE_EXHAUSTED: too many tenants since the server started.
  absl::Status Use(std::vector<AccessRule> rules);
  TenantLimits LimitsLocked(TenantNumber tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<AccessRule> DefaultRules() const;

  const Options options_;
  std::atomic<uint64_t> version_{1};
  mutable Mutex mu_;
  std::vector<AccessRule> rules_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, TenantNumber> numbers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);  // by number
  absl::flat_hash_map<TenantNumber, TenantLimits> limits_ ABSL_GUARDED_BY(mu_);
  bool has_several_ ABSL_GUARDED_BY(mu_) = false;  // tenants in the present rules
  std::string looked_ ABSL_GUARDED_BY(mu_);        // the file's text, as the last call has found it
  std::string judged_ ABSL_GUARDED_BY(mu_);        // the last that was taken, or had a mistake
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_ACCESS_H_
