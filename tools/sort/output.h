#ifndef NRAM_TOOLS_SORT_OUTPUT_H_
#define NRAM_TOOLS_SORT_OUTPUT_H_

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fd.h"

namespace nram {

// Where the sorted records go. A regular file appears, or is replaced, whole, when Commit is called: until then the
// records are in a file beside it, which goes if this goes first. So the output may be one of the inputs. What is no
// regular file (a pipe, a terminal, a device), or has a directory that nothing may be created in, or where nobody but
// its owner may replace it, is written directly.
class Output {
 public:
  // "" is the standard output. What replaces a file has its rights and extended attributes as far as may be, and gives
  // nobody more (tools/sort/file_rights.h). Errors: as open's, also for a file that may not be written to, although it
  // could be replaced. FAILED_PRECONDITION: it is one of `inputs` too, and there is no room beside it, so that what
  // fails half way would have destroyed it.
  static absl::StatusOr<Output> Open(const std::string& path, absl::Span<const std::string> inputs);
  Output(Output&&) = default;
  Output& operator=(Output&&) = delete;
  ~Output();

  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  // Before the first write, when the inputs are not needed any more.
  absl::Status Begin();
  // When all is written. If just the last step fails, the records stay where the message says.
  absl::Status Commit();

  // For a signal's handler that ends the process: unlinks what stands beside an output that is not committed.
  static void RemoveTemporaryInSignal();
  // Whether a Begin has let any output be written to in place: what ends early leaves it in part.
  static bool WroteInPlace();

 private:
  Output() = default;
  // Creates the file beside target_; `old`: what it is to replace, if valid. An errno if it cannot be created.
  absl::StatusOr<int> CreateTemporary(const UniqueFd& old);
  void Unlink();

  UniqueFd fd_;
  std::string name_;       // for messages
  std::string temporary_;  // "": written directly
  bool truncates_ = false;
  bool is_input_ = false;  // the only copy of what is being sorted
  std::string target_;     // that it replaces; symbolic links followed
};

}  // namespace nram

#endif  // NRAM_TOOLS_SORT_OUTPUT_H_
