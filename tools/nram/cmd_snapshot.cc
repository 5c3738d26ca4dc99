// nram snapshot: a copy of a file of a mount as it is at one moment.

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fd.h"
#include "base/units.h"
#include "sort/file_rights.h"
#include "tools/nram/command.h"
#include "tools/nram/mounts.h"

namespace nram {
namespace {

constexpr int64_t kAnswerTimeoutMs = 15'000;

absl::Status FailedAt(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(text) : absl::FailedPreconditionError(text);
}

// FILE@2026-01-31T12:00:00Z.
std::string NameNow(const std::string& file) {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  strftime(text, sizeof text, "@%Y-%m-%dT%H:%M:%SZ", &parts);
  return file + text;
}

// Whether the file is on a mount of nram.
bool IsOnMount(const struct stat& file) {
  const std::string device = absl::StrCat(major(file.st_dev), ":", minor(file.st_dev));
  for (const MountPoint& mount : FindMounts("self")) {
    if (mount.device == device) return true;
  }
  return false;
}

absl::Status Fill(const UniqueFd& from, const UniqueFd& to, const std::string& file, uint64_t size) {
  const ssize_t copied = copy_file_range(from.get(), nullptr, to.get(), nullptr, size, 0);
  if (copied < 0) return FailedAt(file, errno);
  if (static_cast<uint64_t>(copied) == size) return absl::OkStatus();
  // A second call would be of another moment.
  constexpr uint64_t kCallBytesMax = (uint64_t{1} << 32) - kPageBytes;
  if (size > kCallBytesMax) {
    return absl::UnimplementedError(absl::StrCat(file, ": has ", FormatByteSize(size), ", and Linux copies less than 4",
                                                 " GiB atomically; stop its writers and use cp"));
  }
  return absl::AbortedError(absl::StrCat(file,
                                         ": could not be copied atomically: it became shorter, or it has the",
                                         " maximum of 64 snapshots; stop its writers and use cp"));
}

absl::Status Snapshot(const std::string& file, const std::string& name) {
  // A daemon that stands still must not hold this command for ever.
  if (AskRooms({file}, kAnswerTimeoutMs)[0].error == ETIMEDOUT) {
    return absl::DeadlineExceededError(
        absl::StrCat(file, ": the daemon of its filesystem does not answer; `nram mount` shows which"));
  }
  const UniqueFd from(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat attr {};
  if (!from.valid() || fstat(from.get(), &attr) != 0) return FailedAt(file, errno);
  if (!S_ISREG(attr.st_mode)) return absl::InvalidArgumentError(absl::StrCat(file, ": is not a regular file"));
  if (!IsOnMount(attr)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is not on a mount of nram: use cp"));
  }
  const UniqueFd to(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct stat made {};
  if (!to.valid()) return FailedAt(name, errno);
  absl::Status status;
  if (fstat(to.get(), &made) != 0) {
    status = FailedAt(name, errno);
  } else if (made.st_dev != attr.st_dev) {
    status = absl::InvalidArgumentError(absl::StrCat(name, ": is not on the same mount as ", file));
  } else {
    // No user may write to it; the same users may read it as the file.
    status = GiveRightsOf(from.get(), to.get(), name, 0444);
  }
  if (status.ok() && attr.st_size > 0) {
    status = Fill(from, to, file, static_cast<uint64_t>(attr.st_size));
  }
  if (!status.ok()) unlink(name.c_str());
  return status;
}

int RunSnapshot(NoFlags&, const Invocation& given) {
  if (given.words.empty() || given.words.size() > 2) {
    std::cerr << "nram snapshot: give a file and, optionally, the name of the copy\nTry 'nram snapshot --help'.\n";
    return 2;
  }
  const std::string name = given.words.size() == 2 ? given.words[1] : NameNow(given.words[0]);
  const absl::Status status = Snapshot(given.words[0], name);
  if (status.ok()) std::cout << name << std::endl;
  return ToExitCode(status, "nram snapshot");
}

}  // namespace

Command SnapshotCommand() {
  return DefineCommand<NoFlags>({"snapshot", "make a snapshot of a file on a mount",
                                 R"(usage: nram snapshot FILE [NAME]

Copies the current contents of FILE to NAME (default: FILE@ and the time) on the same mount,
and prints NAME. The copy has all earlier writes and may have some of the writes made
meanwhile. At first the copy takes no room; later changes of FILE take new room. The copy is
read-only, has the readers of FILE, and exists until you delete it. Files of up to 1 MiB are
copied in full.

)",
                                 R"(
example: nram snapshot /mnt/nram/table.db
         nram snapshot /mnt/nram/table.db /mnt/nram/before-the-update
)"},
                                Words::kAny, &RunSnapshot);
}

}  // namespace nram
