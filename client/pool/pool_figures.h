#ifndef NRAM_CLIENT_POOL_POOL_FIGURES_H_
#define NRAM_CLIENT_POOL_POOL_FIGURES_H_

#include "base/metrics/figures.h"
#include "client/pool/pool.h"

namespace nram {

// The figures nram_client_* (docs/watching.md): the pool as this client sees it. Takes each session's lock for a
// moment.
void AddPoolFigures(const Pool& pool, Figures* figures);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_FIGURES_H_
