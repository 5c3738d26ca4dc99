#ifndef NRAM_CLIENT_MANAGED_PENDING_H_
#define NRAM_CLIENT_MANAGED_PENDING_H_

#include <memory>
#include <vector>

#include "client/managed/manager.h"

namespace nram {

// An operation of the store, with the run of blocks that it moves. Belongs to the function that starts it, and then to
// its callback.
struct Manager::Pending {
  std::unique_ptr<ManagedStore::Op> op;
  Manager* manager = nullptr;
  std::vector<Block*> blocks;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_PENDING_H_
