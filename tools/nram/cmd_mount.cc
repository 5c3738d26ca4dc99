// nram mount, nram umount: the filesystem.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"
#include "fsd/options.h"
#include "nlohmann/json.hpp"
#include "tools/nram/command.h"
#include "tools/nram/mounts.h"

namespace nram {
namespace {

constexpr int64_t kUmountTimeoutMs = 15'000;
constexpr int64_t kLookForOthersMs = 1'000;
constexpr size_t kNamedMax = 5;  // of many that a message could name
constexpr size_t kStateNameBytes = 100;

// The absolute path, also of a mount point that cannot be looked at because its daemon is gone. DEADLINE_EXCEEDED: the
// path leads through a filesystem whose daemon stands still.
absl::StatusOr<std::string> Resolve(const std::string& directory) {
  std::string path = directory;
  // With a slash at the end, the kernel would ask the daemon of the mount point itself.
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const auto resolved = ResolvePath(path, kAskTimeoutMs);
  if (resolved.ok() || absl::IsDeadlineExceeded(resolved.status())) return resolved;
  const size_t slash = path.rfind('/');
  const auto above =
      ResolvePath(slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1)), kAskTimeoutMs);
  if (absl::IsDeadlineExceeded(above.status())) return above;
  if (!above.ok()) return path;
  return absl::StrCat(*above, *above == "/" ? "" : "/", path.substr(slash + 1));
}

// The log, or the file with the process id, of a mount at `directory`.
std::string StateFile(const std::string& directory, absl::string_view suffix) {
  // The name is for people; the number distinguishes names that look alike.
  std::string name = directory.substr(0, kStateNameBytes);
  std::replace(name.begin(), name.end(), '/', '-');
  const uint32_t crc = Crc32c(0, reinterpret_cast<const std::byte*>(directory.data()), directory.size());
  return absl::StrCat(LocalStateDir(), "/mount", name, ".", absl::Hex(crc, absl::kZeroPad8), ".", suffix);
}

// The daemon of the mount at `directory`, as its file says; 0: unknown.
int DaemonOf(const std::string& directory) {
  int pid = 0;
  if (const auto text = ReadFile(StateFile(directory, "pid")); text.ok()) (void)absl::SimpleAtoi(*text, &pid);
  return pid;
}

std::string KillAdvice(int pid) {
  return pid == 0 ? "" : absl::StrCat("; `kill -9 ", pid, "` ends it, and its files are then gone");
}

// Why a mount's room is not known.
std::string WhyUnknown(const std::string& directory, int error) {
  if (error == ETIMEDOUT) {
    const int pid = DaemonOf(directory);
    return absl::StrCat("its daemon", pid == 0 ? "" : absl::StrCat(" (pid ", pid, ")"), " does not answer",
                        KillAdvice(pid));
  }
  if (error == EACCES || error == EPERM)
    return "no room is visible: it is another user's, or no server of its pool answers";
  if (error == ENOTCONN || error == ECONNABORTED) {
    return absl::StrCat("its daemon is gone; `nram umount ", directory, "` removes it");
  }
  return strerror(error);
}

int ListMounts(bool json) {
  const std::vector<MountPoint> mounts = FindMounts("self");
  nlohmann::json out = nlohmann::json::array();
  if (!json && mounts.empty()) printf("Nothing is mounted. Use `nram mount DIRECTORY`.\n");
  std::vector<std::string> directories;
  for (const MountPoint& mount : mounts) directories.push_back(mount.directory);
  const std::vector<MountRoom> rooms = AskRooms(directories, kAskTimeoutMs);
  for (size_t i = 0; i < mounts.size(); ++i) {
    const std::string& directory = directories[i];
    // A user's mount answers root with zeros.
    const int error = rooms[i].error == 0 && rooms[i].total_bytes == 0 ? EACCES : rooms[i].error;
    if (json) {
      out.push_back({{"directory", directory}, {"pool", mounts[i].source}, {"answers", error == 0}});
      if (error == 0) out.back().update({{"total_bytes", rooms[i].total_bytes}, {"free_bytes", rooms[i].free_bytes}});
      if (error != 0) out.back()["error"] = WhyUnknown(directory, error);
    } else if (error == 0) {
      printf("%s: %s free of %s, pool %s\n", directory.c_str(), FormatByteSize(rooms[i].free_bytes).c_str(),
             FormatByteSize(rooms[i].total_bytes).c_str(), mounts[i].source.c_str());
    } else {
      printf("%s: %s\n", directory.c_str(), WhyUnknown(directory, error).c_str());
    }
  }
  if (json) PrintJson(out);
  return 0;
}

struct MountFlags {
  FsdOptions options;
  bool json = false;

  void Register(ArgParser* parser) {
    FsdOptions::Register(&options, parser);
    parser->Switch("json", &json, {"", "print the mount, or the list of mounts, in JSON"});
  }
};

// Whether the daemon seals the files' pages: it chooses as this does. None: this cannot tell.
std::optional<bool> SealsPages(const FsdOptions& options) {
  if (options.backend != Backend::kPool) return std::nullopt;
  const auto spec = ChoosePoolSpec(options.pool);
  if (!spec.ok()) return std::nullopt;
  // A pipe can be read once, and the daemon has read it.
  absl::string_view path = *spec;
  absl::ConsumePrefix(&path, "@");
  struct stat named {};
  if (stat(std::string(path).c_str(), &named) == 0 && !S_ISREG(named.st_mode)) return std::nullopt;
  const auto found = FindPool(*spec);
  const auto seal = ChooseSeal(options.seal);
  if (!found.ok() || !seal.ok()) return std::nullopt;
  PoolOptions pool;
  pool.servers = found->servers;
  pool.members = found->source;
  pool.seal = *seal;
  return Pool::WouldSeal(pool);
}

// The daemon looks into the directory. It would wait for ever if the daemon of a filesystem there stands still.
absl::Status CheckAnswers(const std::string& directory) {
  const int error = AskRooms({directory}, kAskTimeoutMs)[0].error;
  if (error != ETIMEDOUT) return absl::OkStatus();  // other errors are the daemon's to tell
  return absl::UnavailableError(absl::StrCat(directory, ": ", WhyUnknown(directory, error)));
}

// The error of a daemon that did not start, as this command's own: exit codes and messages are the same.
absl::Status WhyNotStarted(const HeardProgram& daemon) {
  absl::string_view said = daemon.said;
  absl::ConsumePrefix(&said, "nram-fsd: ");
  if (daemon.ended.code == 2) return absl::InvalidArgumentError(said);
  return absl::FailedPreconditionError(said.empty() ? "the daemon died while starting" : said);
}

int RunMount(MountFlags& flags, const Invocation& given) {
  auto& [options, json] = flags;
  const std::vector<std::string>& words = given.words;
  if (words.empty()) return ListMounts(json);
  if (words.size() > 1) {
    return ToExitCode(absl::InvalidArgumentError(absl::StrCat("unexpected word \"", words[1], "\"")), "nram mount");
  }
  const absl::StatusOr<std::string> resolved = Resolve(words[0]);
  if (!resolved.ok()) return ToExitCode(resolved.status(), "nram mount");
  const std::string& directory = *resolved;
  if (const absl::Status answers = CheckAnswers(directory); !answers.ok()) return ToExitCode(answers, "nram mount");
  const auto program = FindProgram("nram-fsd", "fsd", "NRAM_FSD");
  if (!program.ok()) return ToExitCode(program.status(), "nram mount");
  if (const absl::Status made = MakeStateDir(); !made.ok()) return ToExitCode(made, "nram mount");
  // The daemon parses the same words again, without --json, which is this command's.
  std::vector<std::string> command = {*program};
  if (!given.parser.given("log-file")) {
    options.log_file = StateFile(directory, "log");
    command.push_back("--log-file=" + options.log_file);
  }
  if (!given.parser.given("pid-file")) command.push_back("--pid-file=" + StateFile(directory, "pid"));
  for (const std::string& arg : given.args) {
    if (arg != "--json" && arg != "--no-json") command.push_back(arg);
  }
  if (options.foreground) {
    // In place of this command, which must not return before the daemon has unmounted.
    const Argv argv(command);
    execv(program->c_str(), argv.get());
    return ToExitCode(ErrnoStatus(errno, *program), "nram mount");
  }
  // It bounds its own start.
  const absl::StatusOr<HeardProgram> daemon = HearProgram(command, Subprocess::kNoDeadline);
  if (!daemon.ok()) return ToExitCode(daemon.status(), "nram mount");
  if (!daemon->ended.ok()) return ToExitCode(WhyNotStarted(*daemon), "nram mount");
  if (!daemon->said.empty()) std::cerr << daemon->said << std::endl;
  const MountRoom room = AskRooms({directory}, kAskTimeoutMs)[0];
  if (room.error != 0) {
    return ToExitCode(absl::UnavailableError(absl::StrCat(directory, ": ", WhyUnknown(directory, room.error))),
                      "nram mount");
  }
  const uint64_t free = room.free_bytes;
  const std::optional<bool> sealed = SealsPages(options);
  if (json) {
    nlohmann::json out = {
        {"directory", directory}, {"free_bytes", free}, {"copies", options.copies}, {"log", options.log_file}};
    if (sealed.has_value()) out["sealed"] = *sealed;
    PrintJson(out);
    return 0;
  }
  const std::string copies = options.copies > 1 ? absl::StrCat(" for files with ", options.copies, " copies") : "";
  printf("%s is mounted: %s of %s%s. Its log: %s\nEnd it with `nram umount %s`; its files are then gone.\n",
         directory.c_str(), FormatByteSize(free).c_str(),
         options.backend == Backend::kPool ? "network RAM" : "this machine's memory", copies.c_str(),
         options.log_file.c_str(), directory.c_str());
  if (room.total_bytes < options.size_bytes) {
    printf("That is less than --size=%s: the pool has no more free now.\n", FormatByteSize(options.size_bytes).c_str());
  }
  if (sealed.has_value()) printf("Its pages are %s.\n", *sealed ? "sealed: servers get only ciphertext" : "not sealed");
  return 0;
}

// A process's name in messages.
std::string Describe(int pid) {
  const std::string name = ProcessName(pid);
  return absl::StrCat(pid, name.empty() ? "" : " (" + name + ")");
}

// The processes that have something open there, for a message.
std::string UsersOf(const std::string& directory) {
  std::vector<std::string> users;
  for (const int pid : ListProcesses()) {
    if (users.size() >= kNamedMax) break;
    if (pid == getpid()) continue;
    const std::string base = absl::StrCat("/proc/", pid);
    std::vector<std::string> links = {base + "/cwd", base + "/root", base + "/exe"};
    for (const std::string& fd : ListDirectory(base + "/fd")) links.push_back(absl::StrCat(base, "/fd/", fd));
    for (const std::string& link : links) {
      char target[PATH_MAX];
      const ssize_t n = readlink(link.c_str(), target, sizeof target - 1);
      if (n <= 0) continue;
      const absl::string_view at(target, static_cast<size_t>(n));
      if (at != directory && !absl::StartsWith(at, directory + "/")) continue;
      users.push_back(Describe(pid));
      break;
    }
  }
  return users.empty() ? "" : " by " + absl::StrJoin(users, ", ");
}

// Unmounts, in a process that is left behind if it does not end: it writes the kernel's cache to the daemon first.
absl::Status Detach(const std::string& directory, bool lazy, int daemon) {
  absl::StatusOr<Subprocess> program;
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  SubprocessOptions how;
  how.in = how.out = null.get();  // left behind, it keeps no stream of this command open
  how.close_others = true;
  if (geteuid() == 0) {
    how.err = null.get();  // fusermount3 says there what fails
    program = Subprocess::StartFunction(
        [&] { return umount2(directory.c_str(), lazy ? MNT_DETACH : 0) == 0 ? 0 : errno; }, how);
  } else {
    std::vector<std::string> command = {"fusermount3", "-u", "--", directory};
    if (lazy) command.insert(command.begin() + 2, "-z");
    program = Subprocess::Start(command, how);
  }
  if (!program.ok()) return Annotate(program.status(), "unmount " + directory);
  const auto ended = program->WaitUntil(DeadlineAfterMs(kUmountTimeoutMs));
  if (!ended.has_value()) {
    program->Signal(SIGKILL);
    program->Release();
    return absl::DeadlineExceededError(
        absl::StrCat(directory, ": its daemon", daemon == 0 ? "" : absl::StrCat(" (pid ", daemon, ")"),
                     " does not take the files that the kernel still has; wait, or end it and lose them",
                     daemon == 0 ? "" : absl::StrCat(": kill -9 ", daemon)));
  }
  if (ended->ok()) return absl::OkStatus();
  if (geteuid() == 0 && ended->code == EBUSY) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is in use", UsersOf(directory),
                     "; end these programs, or add --lazy to unmount now (they keep their open files)"));
  }
  if (geteuid() == 0) return ErrnoStatus(ended->code, absl::StrCat("unmount ", directory));
  return absl::FailedPreconditionError(absl::StrCat("fusermount3 could not unmount ", directory));
}

// The processes that still see the device mounted, in mount namespaces of their own (containers), for a message.
std::string NamespacesWith(const std::string& device) {
  for (const MountPoint& mount : FindMounts("self")) {
    if (mount.device == device) return absl::StrCat(", because it is also mounted on ", mount.directory);
  }
  std::vector<std::string> seers;
  for (const int pid : ListProcesses()) {
    if (seers.size() >= kNamedMax) break;
    const std::vector<MountPoint> mounts = FindMounts(absl::StrCat(pid));
    if (std::any_of(mounts.begin(), mounts.end(), [&](const MountPoint& mount) { return mount.device == device; })) {
      seers.push_back(Describe(pid));
    }
  }
  if (seers.empty()) return "";
  return absl::StrCat(", because it is still mounted for ", absl::StrJoin(seers, ", "),
                      ", in other mount namespaces");
}

absl::Status Umount(const std::string& directory, bool lazy) {
  const std::vector<MountPoint> mounts = FindMounts("self");
  // The last one, if several lie on top of each other.
  const auto mount = std::find_if(mounts.rbegin(), mounts.rend(),
                                  [&](const MountPoint& candidate) { return candidate.directory == directory; });
  if (mount == mounts.rend()) {
    return absl::FailedPreconditionError(absl::StrCat(directory, ": nram is not mounted there"));
  }
  const std::string pid_file = StateFile(directory, "pid");
  const int pid = DaemonOf(directory);
  const UniqueFd daemon = OpenProcess(pid);
  const bool is_daemon = daemon.valid() && absl::StartsWith(ProcessName(pid), "nram-fsd");
  NRAM_RETURN_IF_ERROR(Detach(directory, lazy, is_daemon ? pid : 0));
  if (pid == 0 || lazy) return absl::OkStatus();
  // Waits until the daemon has given the memory back, which is soon, unless others keep the mount.
  const int64_t deadline_ns = DeadlineAfterMs(kUmountTimeoutMs);
  std::string others;
  while (others.empty() && MonotonicNs() < deadline_ns) {
    if (!is_daemon || AwaitEnd(daemon.get(), std::min(deadline_ns, DeadlineAfterMs(kLookForOthersMs)))) {
      unlink(pid_file.c_str());
      return absl::OkStatus();
    }
    others = NamespacesWith(mount->device);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(directory, " is unmounted, but its daemon (pid ", pid, ") has not ended yet", others, "; `kill ",
                   pid, "` ends it and closes its open files, `kill -9 ", pid, "` if it stands still"));
}

struct UmountFlags {
  bool lazy = false;

  void Register(ArgParser* parser) {
    parser->Switch("lazy", &lazy,
                   {"",
                    "unmount it although it is in use; programs keep their open files\n"
                    "until they close them"});
  }
};

int RunUmount(UmountFlags& flags, const Invocation& given) {
  if (given.words.empty()) {
    return ToExitCode(absl::InvalidArgumentError("which directory? `nram mount` lists them"),
                      "nram umount");
  }
  int code = 0;
  for (const std::string& word : given.words) {
    const absl::StatusOr<std::string> directory = Resolve(word);
    const absl::Status status = directory.ok() ? Umount(*directory, flags.lazy) : directory.status();
    code = std::max(code, ToExitCode(status, "nram umount"));
  }
  return code;
}

}  // namespace

Command MountCommand() {
  // The flags are the daemon's, so its help stands here under this command's name.
  const std::string daemon = FsdOptions::Help();
  const size_t flags = daemon.find("\nWhat\n");
  const size_t end = daemon.find("  --help ");
  const std::string before = absl::StrCat(R"(usage: nram mount [DIRECTORY] [flags]

Mounts a temporary filesystem on DIRECTORY whose files are in the RAM of the pool: any
program can use it like /tmp. Returns when it is mounted; a daemon, nram-fsd, serves it in the
background. Without DIRECTORY, lists the mounts.
)",
                                          daemon.substr(flags, end - flags));
  return DefineCommand<MountFlags>({"mount", "mount a filesystem on the pool", before.c_str(), R"(
example: nram up && nram mount /mnt/nram && df -h /mnt/nram
)",
                                    23},
                                   Words::kAny, &RunMount);
}

Command UmountCommand() {
  return DefineCommand<UmountFlags>({"umount", "unmount a filesystem", R"(usage: nram umount DIRECTORY... [flags]

Unmounts filesystems of `nram mount`, also if the daemon has died, and waits until the memory
is given back. The files are then gone.

)",
                                     R"(
example: nram umount /mnt/nram
)"},
                                    Words::kAny, &RunUmount);
}

}  // namespace nram
