#ifndef NRAM_CLIENT_RUN_UNTRACED_START_H_
#define NRAM_CLIENT_RUN_UNTRACED_START_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "client/run/helper.h"

namespace nram {

// Whether this process may trace its children, with all that belongs to it. PERMISSION_DENIED names the call that is
// refused. Makes a child, for a moment: for a process that has one thread.
absl::Status MayTrace();

// Whether the start-up library can be loaded into a program: it is linked dynamically, with the GNU C library, or is a
// script for such a one. FAILED_PRECONDITION says why not.
absl::Status CheckLoads(const std::string& path);

// The start of a program that may not be traced: a library makes the helper in it (adr/0026). Not thread-safe.
class UntracedStart {
 public:
  // `library`: the path of the library that is built from start_library.cc.
  static absl::StatusOr<std::unique_ptr<UntracedStart>> Make(const std::string& library);

  // The environment that the program is to be executed with. Its process calls Inherit first.
  const std::vector<std::string>& environment() const { return environment_; }
  void Inherit() const;
  // The program's end of the socket is its own from here on.
  void CloseIts() { its_.reset(); }

  // Takes the library's report; null: there is none yet. Does not wait for it. An error: it could not make the helper.
  absl::StatusOr<std::unique_ptr<Helper>> TakeHelper();

 private:
  UntracedStart() = default;

  std::vector<std::string> environment_;
  UniqueFd ours_;
  UniqueFd its_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_UNTRACED_START_H_
