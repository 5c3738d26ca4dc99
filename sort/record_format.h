#ifndef NRAM_SORT_RECORD_FORMAT_H_
#define NRAM_SORT_RECORD_FORMAT_H_

#include <cstdint>

namespace nram {

// The boundaries of records.
struct RecordFormat {
  uint32_t record_bytes = 0;  // fixed-size records; 0: lines
  char terminator = '\n';     // of lines
};

}  // namespace nram

#endif  // NRAM_SORT_RECORD_FORMAT_H_
