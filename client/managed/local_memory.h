#ifndef NRAM_CLIENT_MANAGED_LOCAL_MEMORY_H_
#define NRAM_CLIENT_MANAGED_LOCAL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mapping.h"
#include "client/managed/extents.h"

namespace nram {

// Addresses and pages for blocks. Buffers of blocks that may move are used again as they are, because fresh pages cost
// more than the network. Fixed blocks keep their addresses and give their pages back. Fresh memory is zeros; a buffer
// that is used again holds what another block of this program had. Lengths are multiples of 4096. Not thread-safe.
class LocalMemory {
 public:
  // Null: the process has no addresses left (ulimit -v, overcommit).
  std::byte* TakeBuffer(uint64_t bytes);
  // Keeps it for the next block of that size if it keeps no more than `keep_bytes` then.
  void GiveBuffer(std::byte* data, uint64_t bytes, uint64_t keep_bytes);
  // Gives pages back until it keeps no more than that.
  void Shrink(uint64_t keep_bytes);

  std::byte* TakeFixed(uint64_t bytes);
  static void DropPages(std::byte* data, uint64_t bytes);
  void GiveFixed(std::byte* data, uint64_t bytes);

  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  std::vector<Mapping> mappings_;
  Extents addresses_;
  std::map<uint64_t, std::vector<std::byte*>> kept_;  // by size, with their pages
  uint64_t kept_bytes_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_LOCAL_MEMORY_H_
