#ifndef NRAM_MEMSERVER_ANSWER_ROOM_H_
#define NRAM_MEMSERVER_ANSWER_ROOM_H_

#include <atomic>
#include <cstdint>

#include "memserver/tenant.h"

namespace nram {

// Bounds the bytes of large answers that clients have not taken yet. Where there are several tenants, those of one have
// half of it: a tenant that takes no answers stops no other's calls. Thread-safe. Nothing blocks.
class AnswerRoom {
 public:
  explicit AnswerRoom(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // False: there is no room, and nothing is taken.
  bool Take(Tenant* tenant, uint64_t bytes, bool has_several_tenants) {
    const uint64_t all = bytes_.fetch_add(bytes) + bytes;
    const uint64_t own = tenant->answer_bytes.fetch_add(bytes) + bytes;
    const uint64_t share = has_several_tenants ? most_bytes_ / 2 : most_bytes_;
    if (all <= most_bytes_ && own <= share) return true;
    Give(tenant, bytes);
    return false;
  }
  // Once for each Take that was true.
  void Give(Tenant* tenant, uint64_t bytes) {
    bytes_ -= bytes;
    tenant->answer_bytes -= bytes;
  }

 private:
  const uint64_t most_bytes_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_ANSWER_ROOM_H_
