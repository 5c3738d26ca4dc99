#ifndef NRAM_FSD_RELOCATING_STORE_H_
#define NRAM_FSD_RELOCATING_STORE_H_

#include <memory>

#include "fsd/block_file.h"

namespace nram {

// A store over another one, the pool's, for swap with one copy of each page: its files outlive the loss of a server.
// Pages that the server held are lost, and reads of them say so. A page that is written anew goes to another place, in
// the file's next layer, and stays there. Without that, the kernel would try for ever to write the same pages out to a
// dead server.
//
// Whole pages only: offsets and lengths are multiples of 4096. Only pages of a range that was reserved before its first
// use can go elsewhere. Takes a byte a page of the largest file.
std::unique_ptr<BlockStore> NewRelocatingStore(std::unique_ptr<BlockStore> inner);

}  // namespace nram

#endif  // NRAM_FSD_RELOCATING_STORE_H_
