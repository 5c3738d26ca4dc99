#ifndef NRAM_FSD_POOL_STORE_H_
#define NRAM_FSD_POOL_STORE_H_

#include <memory>

#include "client/pool/pool.h"
#include "fsd/block_file.h"

namespace nram {

// A region of the pool for each file. With `gc` the servers collect them when this process's lease ends; without, they
// stay until they are destroyed. With `keep_room`, room that a file has reserved or used stays its own when holes are
// made. `pool` must outlive the store.
std::unique_ptr<BlockStore> NewPoolStore(Pool* pool, bool gc, bool keep_room = false);

}  // namespace nram

#endif  // NRAM_FSD_POOL_STORE_H_
