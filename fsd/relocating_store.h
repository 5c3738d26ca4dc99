#ifndef NRAM_FSD_RELOCATING_STORE_H_
#define NRAM_FSD_RELOCATING_STORE_H_

#include <memory>

#include "fsd/block_file.h"

namespace nram {

// Over a store of the pool: files that outlive the loss of a server, for swap. What the server held is lost, and reads
// of it say so; but a page that is written anew goes to another place, in the next layer, where it stays. Without that,
// the kernel would try to write out the same pages to a dead server for ever.
//
// Whole pages only: offsets and lengths are multiples of 4096. Takes a byte a page of the largest file.
std::unique_ptr<BlockStore> NewRelocatingStore(std::unique_ptr<BlockStore> inner);

}  // namespace nram

#endif  // NRAM_FSD_RELOCATING_STORE_H_
