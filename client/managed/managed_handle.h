#ifndef NRAM_CLIENT_MANAGED_MANAGED_HANDLE_H_
#define NRAM_CLIENT_MANAGED_MANAGED_HANDLE_H_

// The object behind an nram_managed_t.

#include <memory>

#include "client/managed/manager.h"
#include "client/managed/nram/managed.h"

struct nram_managed {
  std::unique_ptr<nram::Manager> manager;
};

#endif  // NRAM_CLIENT_MANAGED_MANAGED_HANDLE_H_
