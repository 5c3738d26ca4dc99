#include "tools/nram/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace nram {
namespace {

constexpr int64_t kKilledMs = 1'000;  // a child ends in this time, unless the daemon has read its request

// Octal escapes, as /proc has them for blanks.
std::string Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// A child that asks, and the pipe with its answer.
struct Asker {
  Subprocess child;
  UniqueFd answer;
};

// The child calls `look`, which writes its answer to standard output in one piece.
Asker Ask(absl::FunctionRef<int()> look) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  Asker asker{{}, UniqueFd(ends[0])};
  const UniqueFd write_end(ends[1]);
  SubprocessOptions how;
  how.in = how.err = null.get();  // a child that is left behind keeps no stream of this command open
  how.out = write_end.get();
  how.close_others = true;
  absl::StatusOr<Subprocess> child = Subprocess::StartFunction(look, how);
  if (child.ok()) asker.child = *std::move(child);
  return asker;
}

// 0 if `answer` has the child's answer, ETIMEDOUT if the child does not answer, EAGAIN if there is none, else EIO.
int Hear(Asker* asker, int64_t deadline_ns, void* answer, size_t bytes) {
  if (asker->child.pid() < 0) return EAGAIN;
  const auto ended = asker->child.WaitUntil(deadline_ns);
  if (!ended.has_value()) {
    asker->child.Signal(SIGKILL);
    // Until its end, an umount would find the filesystem in use.
    if (!asker->child.WaitUntil(DeadlineAfterMs(kKilledMs)).has_value()) asker->child.Release();
    return ETIMEDOUT;
  }
  return ended->ok() && read(asker->answer.get(), answer, bytes) == static_cast<ssize_t>(bytes) ? 0 : EIO;
}

// A child's answer about a path.
struct ResolvedPath {
  int error = 0;  // realpath's
  char path[PATH_MAX] = "";
};
static_assert(sizeof(ResolvedPath) < 64 << 10);  // a pipe has room for it, so the child waits for no reader

}  // namespace

std::vector<MountRoom> AskRooms(const std::vector<std::string>& paths, int64_t timeout_ms) {
  const int64_t deadline_ns = DeadlineAfterMs(timeout_ms);
  std::vector<Asker> askers;
  for (const std::string& path : paths) {
    askers.push_back(Ask([&path] {
      struct statvfs room {};
      MountRoom answer;
      if (statvfs(path.c_str(), &room) != 0) {
        answer.error = errno;
      } else {
        answer.total_bytes = room.f_blocks * room.f_frsize;
        answer.free_bytes = room.f_bavail * room.f_frsize;
      }
      return write(STDOUT_FILENO, &answer, sizeof answer) == sizeof answer ? 0 : 1;
    }));
  }
  std::vector<MountRoom> rooms(paths.size());
  for (size_t i = 0; i < askers.size(); ++i) {
    if (const int error = Hear(&askers[i], deadline_ns, &rooms[i], sizeof rooms[i]); error != 0) {
      rooms[i] = {.error = error};
    }
  }
  return rooms;
}

absl::StatusOr<std::string> ResolvePath(const std::string& path, int64_t timeout_ms) {
  Asker asker = Ask([&path] {
    ResolvedPath answer;
    if (realpath(path.c_str(), answer.path) == nullptr) answer.error = errno;
    return write(STDOUT_FILENO, &answer, sizeof answer) == sizeof answer ? 0 : 1;
  });
  ResolvedPath answer;
  const int error = Hear(&asker, DeadlineAfterMs(timeout_ms), &answer, sizeof answer);
  if (error == ETIMEDOUT) {
    return absl::DeadlineExceededError(absl::StrCat(path, ": a filesystem on this path does not answer"));
  }
  if (error != 0 || answer.error != 0) return ErrnoStatus(error != 0 ? error : answer.error, path);
  return std::string(answer.path);
}

std::vector<MountPoint> FindMounts(absl::string_view who) {
  std::vector<MountPoint> mounts;
  const auto table = ReadFile(absl::StrCat("/proc/", who, "/mountinfo"));
  if (!table.ok()) return mounts;
  for (const absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<absl::string_view> mount = absl::StrSplit(halves.first, ' ');
    const std::vector<absl::string_view> system = absl::StrSplit(halves.second, ' ');
    if (mount.size() < 5 || system.size() < 2 || system[0] != "fuse.nram") continue;
    mounts.push_back({Unescape(mount[4]), Unescape(system[1]), std::string(mount[2])});
  }
  return mounts;
}

}  // namespace nram
