#ifndef NRAM_CLIENT_MEMORY_MEMORY_FIGURES_H_
#define NRAM_CLIENT_MEMORY_MEMORY_FIGURES_H_

#include "base/metrics/figures.h"
#include "client/memory/memory.h"

namespace nram {

// The figures nram_memory_* (docs/watching.md), which are those of nram_get_stats.
void AddMemoryFigures(const Memory& memory, Figures* figures);

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_MEMORY_FIGURES_H_
