#ifndef NRAM_TESTS_FUZZ_TARGETS_H_
#define NRAM_TESTS_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

namespace nram {

// Everything that parses bytes from outside. Each must survive any input.
void FuzzFrames(const uint8_t* data, size_t size);  // the frame reader and codec; what decodes must encode to itself
void FuzzSession(const uint8_t* data,
                 size_t size);  // a server's session after hello, frames with right checksums and wrong contents
void FuzzText(const uint8_t* data, size_t size);  // sizes, identifiers, pool specifications, host files, flags

}  // namespace nram

#endif  // NRAM_TESTS_FUZZ_TARGETS_H_
