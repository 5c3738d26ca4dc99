#ifndef NRAM_BASE_TEST_CORE_DUMP_H_
#define NRAM_BASE_TEST_CORE_DUMP_H_

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace nram {

// The bytes of this process's address space that core dumps leave out ("dd" in /proc/self/smaps).
inline size_t UndumpedBytes() {
  std::ifstream smaps("/proc/self/smaps");
  size_t undumped = 0, kib = 0;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Size:") words >> kib;
    if (word != "VmFlags:") continue;
    while (words >> word) undumped += word == "dd" ? kib * 1024 : 0;
  }
  return undumped;
}

}  // namespace nram

#endif  // NRAM_BASE_TEST_CORE_DUMP_H_
