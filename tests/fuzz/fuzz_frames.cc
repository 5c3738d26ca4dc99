#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nram::FuzzFrames(data, size);
  return 0;
}
