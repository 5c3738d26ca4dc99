// A libFuzzer program of one target, which NRAM_FUZZ_TARGET names.

#include <glog/logging.h>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // These runs consist of refusals; only an error that ends the process is worth a line.
  FLAGS_minloglevel = google::FATAL;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nram::NRAM_FUZZ_TARGET(data, size);
  return 0;
}
