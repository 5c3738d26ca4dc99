#ifndef NRAM_CLIENT_MANAGED_PENDING_H_
#define NRAM_CLIENT_MANAGED_PENDING_H_

#include <memory>

#include "client/managed/manager.h"

namespace nram {

// An operation of the store, with what it is about. Belongs to whoever starts it, and then to its callback.
struct Manager::Pending {
  std::unique_ptr<ManagedStore::Op> op;
  Manager* manager = nullptr;
  Block* block = nullptr;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_PENDING_H_
