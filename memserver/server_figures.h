#ifndef NRAM_MEMSERVER_SERVER_FIGURES_H_
#define NRAM_MEMSERVER_SERVER_FIGURES_H_

#include <cstdint>

#include "base/metrics/figures.h"
#include "proto/control.pb.h"

namespace nram {

// The figures of leases that the control plane does not tell.
struct LeaseFigures {
  uint64_t late = 0;     // live ones with less than half of their time left
  uint64_t expired = 0;  // that have ended for want of a renewal, so far
  int64_t ttl_ms = 0;    // the usual time of one
};

// The figures nram_server_* (docs/watching.md), from GetStatistics.
void AddServerFigures(const v1::Statistics& statistics, const LeaseFigures& leases, Figures* figures);

}  // namespace nram

#endif  // NRAM_MEMSERVER_SERVER_FIGURES_H_
