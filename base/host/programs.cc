#include "base/host/programs.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace nram {

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& folder, const char* variable) {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return ErrnoStatus(errno, "readlink /proc/self/exe");
  const std::string directory = std::string(self, n).substr(0, std::string(self, n).rfind('/'));
  // A library that programs do not link with is in lib/nram. Tests are one or two folders below the build tree's top,
  // as this command is.
  std::vector<std::string> places = {absl::StrCat(directory, "/", name), absl::StrCat(directory, "/../lib/nram/", name),
                                     absl::StrCat(directory, "/../../", folder, "/", name)};
  if (const char* given = std::getenv(variable)) places.insert(places.begin(), given);
  for (const std::string& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place;
  }
  return absl::NotFoundError(
      absl::StrCat(name, " is not beside ", std::string(self, n), "; set its path in $", variable));
}

std::vector<int> ListProcesses() {
  std::vector<int> pids;
  for (const std::string& name : ListDirectory("/proc")) {
    int pid = 0;
    if (absl::SimpleAtoi(name, &pid)) pids.push_back(pid);
  }
  return pids;
}

std::string ProcessName(int pid) { return ReadLine(absl::StrCat("/proc/", pid, "/comm")); }

}  // namespace nram
