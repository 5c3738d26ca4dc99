#ifndef NRAM_FSD_POOL_STORE_H_
#define NRAM_FSD_POOL_STORE_H_

#include <memory>

#include "absl/status/status.h"
#include "client/pool/pool.h"
#include "fsd/block_file.h"

namespace nram {

struct PoolStoreOptions {
  bool gc = true;           // servers collect the files when this process's lease ends; else they stay until destroyed
  int copies = 1;           // of each page, on servers of different hosts; 1 to 4
  Seal seal = Seal::kAuto;  // whether donors see only ciphertext; then the store's unit is the page
  bool keep_room = false;   // a file keeps the room that it has reserved or used when holes are made in it
};

// A store with a region of the pool for each file. Its capacity is in usable bytes: the pool's, less the index of
// the pages and the pieces that are no room for a span, divided by the number of copies. As much as is free can be
// reserved, while nothing else takes room. If one host lends more than all others, less than that may fit. `pool` must
// outlive the store.
std::unique_ptr<BlockStore> NewPoolStore(Pool* pool, const PoolStoreOptions& options);

}  // namespace nram

#endif  // NRAM_FSD_POOL_STORE_H_
