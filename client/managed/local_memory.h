#ifndef NRAM_CLIENT_MANAGED_LOCAL_MEMORY_H_
#define NRAM_CLIENT_MANAGED_LOCAL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mapping.h"
#include "client/managed/extents.h"

namespace nram {

// Addresses and pages for blocks. Buffers of blocks that may move are kept with their pages, because fresh pages cost
// more than the network; a part of one, or neighbours together, may be the next buffer. Fixed blocks keep their
// addresses and give their pages back. Fresh memory is zeros; a kept buffer holds another block's data of this program.
// Lengths are multiples of 4096. Not thread-safe.
class LocalMemory {
 public:
  // Null: the process has no addresses left (ulimit -v, overcommit).
  std::byte* TakeBuffer(uint64_t bytes);
  // Gives back a buffer or a part of one, and keeps it as far as no more than `keep_bytes` are kept then.
  void GiveBuffer(std::byte* data, uint64_t bytes, uint64_t keep_bytes);
  // Gives pages back until it keeps no more than that.
  void Shrink(uint64_t keep_bytes);

  std::byte* TakeFixed(uint64_t bytes);
  static void DropPages(std::byte* data, uint64_t bytes);
  void GiveFixed(std::byte* data, uint64_t bytes);

  uint64_t kept_bytes() const { return kept_.free(); }
  // The longest buffer that has its pages already.
  uint64_t longest_kept_bytes() const { return kept_.longest(); }

 private:
  std::vector<Mapping> mappings_;
  Extents addresses_;  // without pages
  Extents kept_;       // with pages
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_LOCAL_MEMORY_H_
