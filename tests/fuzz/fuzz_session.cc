#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nram::FuzzSession(data, size);
  return 0;
}
