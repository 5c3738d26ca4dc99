#ifndef NRAM_MEMSERVER_TENANT_LIMITS_H_
#define NRAM_MEMSERVER_TENANT_LIMITS_H_

#include <cstdint>

namespace nram {

// A tenant's number on this server; the same as long as the server runs.
using TenantNumber = uint16_t;

// The most that a tenant may have on one server.
struct TenantLimits {
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t bytes = kNone;        // frames and index of its regions, and its reservations
  uint64_t connections = kNone;  // of the data plane
  uint64_t leases = kNone;
  uint64_t regions = kNone;
  uint64_t calls = kNone;  // control calls under way
  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_TENANT_LIMITS_H_
