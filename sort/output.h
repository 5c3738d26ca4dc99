#ifndef NRAM_SORT_OUTPUT_H_
#define NRAM_SORT_OUTPUT_H_

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fd.h"

namespace nram {

// The target of the sorted records. A regular file appears, or is replaced, as a whole by Commit. Until then the
// records are in a file beside it, which is removed if this object ends first. So the output may be one of the inputs.
//
// An output is written directly if it is no regular file (a pipe, a terminal, a device), if nothing may be created in
// its directory, or if only its owner may replace it there.
class Output {
 public:
  // "" is the standard output. A new file gets the rights and extended attributes of the one that it replaces, as far
  // as possible, and gives no user more (sort/file_rights.h). Errors: open's, also for a file that may be replaced
  // but not written to. FAILED_PRECONDITION: the output is one of `inputs` too, and nothing can be created beside it,
  // so that a failure half way would destroy the input.
  static absl::StatusOr<Output> Open(const std::string& path, absl::Span<const std::string> inputs);
  Output(Output&&) = default;
  Output& operator=(Output&&) = delete;
  ~Output();

  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  // Called before the first write, when the inputs are not needed any more.
  absl::Status Begin();
  // Called when all is written. If only the last step fails, the records stay where the message says.
  absl::Status Commit();

  // Unlinks the file beside an output that is not committed; for a signal handler that ends the process.
  static void RemoveTemporaryInSignal();
  // Whether an output was begun that is written directly: after an early end it has only a part of the records.
  static bool WroteInPlace();

 private:
  Output() = default;
  // Creates the file beside target_. `old`: the file that it will replace, if valid. An errno if it cannot be created.
  absl::StatusOr<int> CreateTemporary(const UniqueFd& old);
  void Unlink();

  UniqueFd fd_;
  std::string name_;       // for messages
  std::string temporary_;  // "": written directly
  bool truncates_ = false;
  bool is_input_ = false;  // the only copy of the records being sorted
  std::string target_;     // that it replaces; symbolic links followed
};

}  // namespace nram

#endif  // NRAM_SORT_OUTPUT_H_
