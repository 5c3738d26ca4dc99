#ifndef NRAM_CLIENT_RUN_HELPER_CODE_H_
#define NRAM_CLIENT_RUN_HELPER_CODE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace nram {

// The helper's part of a program's memory: a few pages at an address that no program uses by itself, and the machine
// code that runs there. x86-64.
//
//   page 0        code
//   pages 1..16   the message that the helper works on
//   page 17       its stack
struct HelperPlace {
  static constexpr uint64_t kBase = 0x6E72'616D'0000;
  static constexpr uint64_t kBytes = 18 * 4096;
  static constexpr uint64_t kMessage = kBase + 4096;
  static constexpr uint64_t kMessageBytes = 16 * 4096;
  static constexpr uint64_t kStackTop = kBase + kBytes - 64;
};

// A message to the helper is a header, the calls, and bytes that the calls may point to. The helper makes the calls one
// after the other and sends all of it back.
struct HelperHeader {
  uint64_t calls = 0;
  uint64_t unused[7] = {};
};
struct HelperCall {
  uint64_t number = 0;
  uint64_t arguments[6] = {};
  int64_t result = 0;  // as the kernel's: -errno
};
static_assert(sizeof(HelperHeader) == 64 && sizeof(HelperCall) == 64);

// The code. It begins with a `syscall` for the clone(2) that makes the helper; the thread that makes that call stops
// behind it, by a breakpoint. If rbx is not 0, the new task makes the same call again, and ends: the task made last is
// the helper, an orphan. The helper finds in r12 its socket, in r13 kMessage, in r14 the program's process id, at rsp a
// pollfd of the program's pidfd. When the socket ends it kills the program and waits for its end. Then it unmaps all
// memory but its own, so that no process that shares it goes on with zeros when the last userfaultfd is closed.
absl::Span<const std::byte> HelperCode();
// Where in it the helper begins that another clone(2) than the code's own has made, with rbx 0 and the others as above.
uint64_t HelperEntry();

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_HELPER_CODE_H_
