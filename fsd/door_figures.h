#ifndef NRAM_FSD_DOOR_FIGURES_H_
#define NRAM_FSD_DOOR_FIGURES_H_

#include <string>

#include "base/metrics/figures.h"
#include "client/pool/pool.h"
#include "fsd/filesystem.h"

namespace nram {

// The figures nram_door_* and nram_client_* (docs/watching.md) of a mount or a swap area. `pool`: null: its files are
// in none. `place`: its directory, for people.
void AddDoorFigures(bool is_swap, const std::string& place, const Filesystem& filesystem, const Pool* pool,
                    Figures* figures);

}  // namespace nram

#endif  // NRAM_FSD_DOOR_FIGURES_H_
