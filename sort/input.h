#ifndef NRAM_SORT_INPUT_H_
#define NRAM_SORT_INPUT_H_

// The files to be sorted, one after the other.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fd.h"

namespace nram {

// Not thread-safe.
class Input {
 public:
  static constexpr uint64_t kUnknown = UINT64_MAX;

  // Looks at all files, so that a missing one is told before any work is done, but opens only the first: there may be
  // more than a process may have open. "-" is the standard input. Errors: open's; CANCELLED as Next.
  static absl::StatusOr<Input> Open(const std::vector<std::string>& paths);

  // The bytes of all files; kUnknown if one is no regular file (a pipe, a device).
  uint64_t total_bytes() const { return total_bytes_; }
  const std::string& path() const { return paths_[at_]; }  // of the file that is being read

  // Blocks until there is something to read. 0: the end of a file; Next opens the next one. CANCELLED: a signal came.
  absl::StatusOr<size_t> Read(absl::Span<char> to);
  // Opens the next file. False: there is none. CANCELLED: a signal came while a FIFO had no writer.
  absl::StatusOr<bool> Next();

 private:
  absl::Status OpenFile();  // number at_

  std::vector<std::string> paths_;
  UniqueFd fd_;
  size_t at_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace nram

#endif  // NRAM_SORT_INPUT_H_
