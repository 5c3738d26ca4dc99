#ifndef NRAM_FSD_POOL_STORE_H_
#define NRAM_FSD_POOL_STORE_H_

#include <memory>

#include "client/pool/pool.h"
#include "fsd/block_file.h"

namespace nram {

// A store with a region of the pool for each file. With `gc`, the servers collect the regions when this process's lease
// ends; without, regions stay until they are destroyed. With `keep_room`, a file keeps the room that it has reserved or
// used when holes are made in it. `pool` must outlive the store.
std::unique_ptr<BlockStore> NewPoolStore(Pool* pool, bool gc, bool keep_room = false);

}  // namespace nram

#endif  // NRAM_FSD_POOL_STORE_H_
