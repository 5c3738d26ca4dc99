#ifndef NRAM_CLIENT_RUN_START_MESSAGE_H_
#define NRAM_CLIENT_RUN_START_MESSAGE_H_

// The messages between `nram run` and its start-up library (adr/0026), by a socket of SOCK_SEQPACKET that the program
// inherits. The library has nothing but this and the C library.

#include <cstddef>
#include <cstdint>

namespace nram {

// Holds the number of the socket. The library removes it, and its own path from $LD_PRELOAD.
constexpr char kStartVariable[] = "NRAM_RUN_START";
constexpr char kPreloadVariable[] = "LD_PRELOAD";
inline constexpr uint64_t kStartMagic = 0x3130'7472'6174'536E;

// To the library; it is there before the program begins. The helper's place and code: helper_code.h.
struct StartOrder {
  static constexpr size_t kCodeMax = 2048;

  uint64_t magic = kStartMagic;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t message = 0;
  uint64_t stack_top = 0;
  uint64_t entry = 0;  // of the helper, in the code
  uint64_t code_bytes = 0;
  uint8_t code[kCodeMax] = {};
};

// From the library. The helper waits for its first message by then. The library makes a brk(2) after this, which is
// answered when the program's memory is looked after.
struct StartReport {
  uint64_t magic = kStartMagic;
  int32_t error = 0;  // the errno of the failure; 0: none
  int32_t step = 0;   // that failed: a StartStep
  int32_t helper = 0;
  int32_t socket = 0;  // the helper's numbers
  int32_t pidfd = 0;   // of the program
};

enum StartStep : int32_t { kStartMap = 1, kStartProtect, kStartAdvise, kStartPidfd, kStartClone };

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_START_MESSAGE_H_
