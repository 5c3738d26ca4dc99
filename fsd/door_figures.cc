#include "fsd/door_figures.h"

#include <sys/statvfs.h>

#include "base/version.h"
#include "client/pool/pool_figures.h"

namespace nram {

void AddDoorFigures(bool is_swap, const std::string& place, const Filesystem& filesystem, const Pool* pool,
                    Figures* figures) {
  struct statvfs stat {};
  filesystem.StatFs(&stat);
  const auto bytes = [&](fsblkcnt_t blocks) {
    return static_cast<double>(blocks) * static_cast<double>(stat.f_frsize);
  };
  figures->Gauge("nram_door_info", "1; the labels identify the mount or swap area.", 1,
                 {{"version", kVersion}, {"door", is_swap ? "swap" : "mount"}, {"place", place}});
  figures->Gauge("nram_door_size_bytes", "Size in bytes, as df shows it.", bytes(stat.f_blocks));
  figures->Gauge("nram_door_free_bytes", "Free bytes.", bytes(stat.f_bavail));
  figures->Gauge("nram_door_inodes", "Maximum of files and directories.", static_cast<double>(stat.f_files));
  figures->Gauge("nram_door_inodes_free", "Free inodes.", static_cast<double>(stat.f_ffree));
  if (filesystem.memory().max() > 0) {
    figures->Gauge("nram_door_memory_bytes", "This daemon's own memory: names, bookkeeping and buffers.",
                   static_cast<double>(HeapBytes()));
    figures->Gauge("nram_door_memory_max_bytes", "Its limit (--memory); beyond it, new files and pages are refused.",
                   static_cast<double>(filesystem.memory().max()));
  }
  if (pool != nullptr) AddPoolFigures(*pool, figures);
}

}  // namespace nram
