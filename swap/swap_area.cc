#include "swap/swap_area.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/poll_until.h"
#include "base/signals.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/sync.h"
#include "base/tls/tls_dir.h"
#include "base/units.h"
#include "fsd/options.h"
#include "nlohmann/json.hpp"
#include "swap/swap_device.h"
#include "swap/swap_guard.h"
#include "swap/swap_room.h"

// Of <linux/swap.h>, which is the kernel's own.
#define NRAM_SWAP_FLAG_DISCARD 0x10000
#define NRAM_SWAP_FLAG_DISCARD_PAGES 0x40000

namespace nram {
namespace {

constexpr uint64_t kSwapBytesMin = 16 * kMiB;
constexpr int64_t kDaemonEndMs = 45'000;  // longer than the longest deadline of an operation, for which it may wait
constexpr int64_t kProgramMs = 120'000;   // the most for a program that this one runs, the daemon's start among them
constexpr int64_t kLockMs = 200;          // longer than a look whether it is locked
// A daemon that is silent for this many deadlines of an operation is no use any more.
constexpr int64_t kSilenceFactor = 6;

// The path by which the daemon and the kernel know it.
std::string SwapsDirectory() {
  char resolved[PATH_MAX];
  const std::string state = LocalStateDir();
  return absl::StrCat(realpath(state.c_str(), resolved) != nullptr ? resolved : state, "/swap");
}
std::string DirectoryOf(const std::string& name) { return absl::StrCat(SwapsDirectory(), "/", name); }
std::string MountOf(const std::string& directory) { return directory + "/mount"; }
std::string FileOf(const std::string& directory) { return MountOf(directory) + "/swap"; }

absl::Status CheckName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_';
  });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is not a valid name: expected 1 to 32 letters, digits, - and _"));
}

bool IsDaemon(int pid, const std::string& directory) {
  const auto command = ReadFile(absl::StrCat("/proc/", pid, "/cmdline"));
  // The last word of the command line is the mount point.
  return absl::StartsWith(ProcessName(pid), "nram-fsd") && command.ok() &&
         absl::EndsWith(*command,
                        absl::StrCat(absl::string_view("\0", 1), MountOf(directory), absl::string_view("\0", 1)));
}

// The area's daemon. Not valid if it has ended, also if another process has its number by now.
UniqueFd OpenDaemon(const std::string& directory, int* pid) {
  const auto text = ReadFile(directory + "/pid");
  if (!text.ok() || !absl::SimpleAtoi(*text, pid)) return UniqueFd();
  UniqueFd daemon = OpenProcess(*pid);
  return IsDaemon(*pid, directory) ? std::move(daemon) : UniqueFd();
}

// Moves this process to the kernel's topmost groups, as far as it may: limits of the group that it was started in, and
// the end of its session, must not reach the area.
void LeaveCgroups() {
  const auto groups = ReadFile("/proc/self/cgroup");
  std::vector<std::string> mounts = {"", "unified"};  // of v2; the others are v1's
  for (const absl::string_view line : absl::StrSplit(groups.ok() ? *groups : "", '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() == 3 && !parts[1].empty()) mounts.emplace_back(absl::StripPrefix(parts[1], "name="));
  }
  for (const std::string& mount : mounts) {
    const UniqueFd processes(
        open(absl::StrCat("/sys/fs/cgroup/", mount, "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (processes.valid()) (void)!write(processes.get(), "0", 1);
  }
}

// Holds back the signals that would end this process.
void HoldSignals() {
  const sigset_t held = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

// Whether one of these signals has come.
bool Interrupted() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
         sigismember(&pending, SIGHUP) == 1;
}

// While the lock is held, no other process sets this area up or takes it down.
absl::StatusOr<UniqueFd> LockArea(const std::string& directory) {
  UniqueFd lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid()) return ErrnoStatus(errno, "open " + directory);
  // flock(2) knows no deadline.
  if (!PollUntil(DeadlineAfterMs(kLockMs), 10, [&] { return flock(lock.get(), LOCK_EX | LOCK_NB) == 0; })) {
    return absl::FailedPreconditionError("another nram swapon or swapoff is working on this area; try again");
  }
  struct stat locked {
  }, there{};
  if (fstat(lock.get(), &locked) != 0 || stat(directory.c_str(), &there) != 0 || locked.st_ino != there.st_ino) {
    return absl::FailedPreconditionError("another nram swapoff has just removed this area; try again");
  }
  return lock;
}

bool IsLocked(const std::string& directory) {
  const UniqueFd lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return lock.valid() && flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

SwapDevice DeviceOf(const SwapArea& area) { return {area.device, area.device_sequence}; }

SwapArea Describe(const std::string& name) {
  SwapArea area;
  uint64_t discarded_before = 0;
  area.name = name;
  area.directory = DirectoryOf(name);
  const auto text = ReadFile(area.directory + "/area.json");
  if (text.ok()) {
    const auto note = nlohmann::json::parse(*text, nullptr, false);
    if (note.is_object()) {
      area.device = note.value("device", "");
      area.device_sequence = note.value("device_sequence", uint64_t{0});
      area.size_bytes = note.value("size_bytes", uint64_t{0});
      area.pool = note.value("pool", "");
      area.tls_dir = note.value("tls_dir", "");
      area.copies = note.value("copies", 1);
      discarded_before = note.value("discarded_before", uint64_t{0});
    }
  }
  if (!IsPresent(DeviceOf(area))) {
    area.device = FindLoop(FileOf(area.directory));
    area.device_sequence = PresentDevice(area.device).sequence;
  }
  area.daemon_alive = OpenDaemon(area.directory, &area.daemon_pid).valid();
  area.busy = IsLocked(area.directory);
  if (const std::optional<SwapUse> use = FindUse(DeviceOf(area))) {
    area.active = true;
    area.used_bytes = use->used_bytes;
    area.priority = use->priority;
  }
  if (!area.device.empty()) {
    const uint64_t bytes = DiscardedBytes(area.device);
    area.discarded_bytes = bytes - std::min(bytes, discarded_before);
  }
  return area;
}

// Unmounts, and waits until the daemon has given the memory back and ended. The area must not be in use any more.
absl::Status EndDaemon(const std::string& directory) {
  int pid = 0;
  const UniqueFd daemon = OpenDaemon(directory, &pid);
  umount2(MountOf(directory).c_str(), MNT_DETACH);
  if (!daemon.valid()) return absl::OkStatus();
  // The mount may go on elsewhere: a mount namespace that was made meanwhile (a container's) has a copy.
  (void)syscall(SYS_pidfd_send_signal, daemon.get(), kSwapEndSignal, nullptr, 0);
  if (AwaitEnd(daemon.get(), DeadlineAfterMs(kDaemonEndMs))) return absl::OkStatus();
  (void)syscall(SYS_pidfd_send_signal, daemon.get(), SIGKILL, nullptr, 0);
  return absl::DeadlineExceededError(absl::StrCat("the area's daemon, pid ", pid, ", did not end and was killed"));
}

std::string MountNamespaceOf(const std::string& process) {
  char target[64];
  const ssize_t n = readlink(absl::StrCat("/proc/", process, "/ns/mnt").c_str(), target, sizeof target);
  return std::string(target, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

// Ends a daemon that a killed `nram swapon` was still starting, so that its number is not written down.
absl::Status EndStarting(const std::string& directory) {
  // Sends the signal to all that are left; false if none is. Each may start another one, so one look is not enough.
  const auto signal_all = [&directory](int number) {
    bool any = false;
    for (const int pid : ListProcesses()) {
      if (!IsDaemon(pid, directory)) continue;
      if (MountNamespaceOf(absl::StrCat(pid)) != MountNamespaceOf("self")) continue;  // a container's, of the same name
      any = true;
      kill(pid, number);
    }
    return any;
  };
  const bool ended = PollUntil(DeadlineAfterMs(kDaemonEndMs), 20, [&] {
    if (!signal_all(kSwapEndSignal)) return true;
    umount2(MountOf(directory).c_str(), MNT_DETACH);
    return false;
  });
  if (ended || !signal_all(SIGKILL)) return absl::OkStatus();
  return absl::DeadlineExceededError("a daemon that was just starting did not end and was killed");
}

// While it lives, a thread of its own says twice a second how much the kernel still has on the device.
class ProgressReports {
 public:
  ProgressReports(const SwapDevice& device, void (*report)(uint64_t left_bytes)) : device_(device), report_(report) {
    if (report_ != nullptr) thread_ = std::thread([this] { Run(); });
  }
  ~ProgressReports() {
    if (report_ == nullptr) return;
    {
      MutexLock lock(&mu_);
      done_ = true;
      changed_.Signal();
    }
    thread_.join();
  }
  ProgressReports(const ProgressReports&) = delete;
  ProgressReports& operator=(const ProgressReports&) = delete;

 private:
  static constexpr int64_t kEveryMs = 500;

  void Run() {
    MutexLock lock(&mu_);
    while (true) {
      const int64_t next_ns = DeadlineAfterMs(kEveryMs);
      while (!done_ && changed_.WaitUntil(&mu_, next_ns)) {
      }
      if (done_) return;
      if (const std::optional<SwapUse> use = FindUse(device_)) report_(use->used_bytes);
    }
  }

  const SwapDevice device_;
  void (*const report_)(uint64_t left_bytes);
  Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Removes the directory with all files that a crash may have left.
absl::Status RemoveDirectory(const std::string& directory) {
  rmdir(MountOf(directory).c_str());
  for (const std::string& file : ListDirectory(directory)) unlink(absl::StrCat(directory, "/", file).c_str());
  if (rmdir(directory.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, "remove " + directory);
  return absl::OkStatus();
}

// Makes the file and reserves room for all of it, so that a page that is swapped out later is never refused. The mount
// says how much room is usable: the pool's, divided by the number of copies.
absl::Status MakeFile(const std::string& path, uint64_t bytes, const std::string& mount, int copies) {
  const UniqueFd file(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "create " + path);
  // It reserves in steps: each of them has the time of one operation.
  int error = 0;
  uint64_t reserved = 0;
  while (reserved < bytes && error == 0) {
    const uint64_t step = std::min(kGiB, bytes - reserved);
    if (Interrupted()) return absl::CancelledError("interrupted; the area is removed");
    if (fallocate(file.get(), 0, static_cast<off_t>(reserved), static_cast<off_t>(step)) != 0) {
      error = errno;
    } else {
      reserved += step;
    }
  }
  if (error == 0) return absl::OkStatus();
  if (error == EIO) {
    return absl::UnavailableError(
        absl::StrCat("no room for ", FormatByteSize(bytes),
                     " could be reserved: a memory server does not answer (`nram df` says which)"));
  }
  if (error != ENOSPC) return ErrnoStatus(error, absl::StrCat("reserve ", FormatByteSize(bytes)));
  struct statvfs room {};
  (void)statvfs(mount.c_str(), &room);
  const uint64_t usable = reserved + uint64_t{room.f_bavail} * room.f_frsize;
  const std::string text = absl::StrCat("the pool does not have ", FormatByteSize(bytes), " free");
  if (copies == 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, ": ", FormatByteSize(usable), " are free (`nram df` says where)"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(text, " in each of ", copies, " copies on different hosts: ",
                   FormatByteSize(usable * static_cast<uint64_t>(copies)), " are free on all hosts together (`nram df`",
                   " says where); with --copies=1 the area takes ", FormatByteSize(bytes)));
}

// Makes the area's directory, which takes the name, and locks it. After an error the directory is as it was.
absl::StatusOr<UniqueFd> TakeName(const std::string& name) {
  const std::string directory = DirectoryOf(name);
  NRAM_RETURN_IF_ERROR(MakeStateDir());
  mkdir(SwapsDirectory().c_str(), 0755);
  if (mkdir(directory.c_str(), 0700) != 0) {
    if (errno != EEXIST) return ErrnoStatus(errno, "create " + directory);
    const SwapArea there = Describe(name);
    return absl::AlreadyExistsError(absl::StrCat(
        "there is a swap area named ", name,
        there.active ? "; choose another --name, or end it with `nram swapoff " + name + "`"
        : there.busy ? ", which another process is setting up or removing"
                     : ", or the remains of one after a crash; `nram swapoff --force " + name + "` removes it"));
  }
  absl::StatusOr<UniqueFd> lock = LockArea(directory);
  if (!lock.ok()) rmdir(directory.c_str());
  return lock;
}

// Returns when the daemon has mounted its filesystem.
absl::Status StartDaemon(const std::string& fsd, const std::string& directory, const SwapOptions& options) {
  if (mkdir(MountOf(directory).c_str(), 0700) != 0) return ErrnoStatus(errno, "create " + MountOf(directory));
  std::vector<std::string> command = {fsd,
                                      "--swap",
                                      "--inodes=8",
                                      "--no-allow-other",
                                      absl::StrCat("--copies=", options.copies),
                                      absl::StrCat("--io-timeout-ms=", options.io_timeout_ms),
                                      "--log-file=" + directory + "/log",
                                      "--pid-file=" + directory + "/pid"};
  command.insert(command.end(), options.fsd_flags.begin(), options.fsd_flags.end());
  if (!options.pool.empty()) command.push_back("--pool=" + options.pool);
  command.push_back(MountOf(directory));
  const absl::Status status = RunProgram(command, DeadlineAfterMs(kProgramMs));
  absl::string_view said = status.message();
  absl::ConsumePrefix(&said, "nram-fsd: ");  // the caller's name is the one that its user knows
  return absl::Status(status.code(), said);
}

// The directory of certificates that this command was given, which the area's daemon has too.
std::string GivenTlsDir() {
  const char* const named = std::getenv(kTlsDirVariable);
  std::error_code error;
  if (named != nullptr && std::string(named) == kNoTls) return kNoTls;
  return named == nullptr || *named == '\0' ? "" : std::filesystem::absolute(named, error).string();
}

// Writes the note that Describe reads.
absl::Status WriteNote(const std::string& directory, const SwapOptions& options, const SwapDevice& device) {
  const nlohmann::json note = {{"device", device.path},
                               {"device_sequence", device.sequence},
                               {"size_bytes", options.size_bytes},
                               {"tls_dir", GivenTlsDir()},
                               {"pool", options.pool},
                               {"copies", options.copies},
                               {"discarded_before", DiscardedBytes(device.path)}};
  return WriteFileAtomically(directory + "/area.json",
                             note.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

absl::Status CheckSwapOptions(const SwapOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckName(options.name));
  if (options.size_bytes < kSwapBytesMin || options.size_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a swap area of ", options.size_bytes, " bytes: expected at least ",
                                                   FormatByteSize(kSwapBytesMin), " and whole pages of 4096"));
  }
  if (geteuid() != 0) return absl::PermissionDeniedError("swap needs root: try sudo");
  return absl::OkStatus();
}

absl::StatusOr<SwapArea> AddSwap(const SwapOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckSwapOptions(options));
  NRAM_ASSIGN_OR_RETURN(const std::string fsd, FindProgram("nram-fsd", "fsd", "NRAM_FSD"));
  const std::string directory = DirectoryOf(options.name);
  NRAM_ASSIGN_OR_RETURN(const UniqueFd lock, TakeName(options.name));
  SwapDevice device;
  auto undo = absl::MakeCleanup([&] {
    if (!device.path.empty()) (void)DetachLoop(device);
    (void)EndDaemon(directory);
    (void)RemoveDirectory(directory);
  });
  HoldSignals();
  LeaveCgroups();
  NRAM_RETURN_IF_ERROR(StartDaemon(fsd, directory, options));
  NRAM_RETURN_IF_ERROR(MakeFile(FileOf(directory), options.size_bytes, MountOf(directory), options.copies));
  NRAM_ASSIGN_OR_RETURN(const std::string path, AttachLoop(FileOf(directory)));
  device = PresentDevice(path);
  NRAM_RETURN_IF_ERROR(RunProgram({"mkswap", "--label", "nram-" + options.name, path}, DeadlineAfterMs(kProgramMs)));
  NRAM_RETURN_IF_ERROR(WriteNote(directory, options, device));
  // The guard starts before the kernel has the area: there is no moment without one.
  NRAM_RETURN_IF_ERROR(
      StartGuard({.device = device,
                  .daemon_pid = Describe(options.name).daemon_pid,
                  .mount = MountOf(directory),
                  .silence_ms = std::max(options.io_timeout_ms * kSilenceFactor, options.silence_min_ms)}));
  if (Interrupted()) return absl::CancelledError("interrupted; the area is removed");
  int flags = NRAM_SWAP_FLAG_DISCARD | NRAM_SWAP_FLAG_DISCARD_PAGES;
  if (options.priority >= 0) flags |= SWAP_FLAG_PREFER | (options.priority & SWAP_FLAG_PRIO_MASK);
  if (swapon(path.c_str(), flags) != 0) return ErrnoStatus(errno, "swapon " + path);
  SwapArea area = Describe(options.name);
  if (!area.daemon_alive) {
    // The guard may have looked when the kernel did not have the area yet.
    (void)SwapOffWhole(device, /*insist=*/true);
    return absl::UnavailableError("the area's daemon died during the setup");
  }
  std::move(undo).Cancel();
  return area;
}

absl::Status RemoveSwap(const std::string& name, bool force, void (*on_progress)(uint64_t left_bytes)) {
  NRAM_RETURN_IF_ERROR(CheckName(name));
  if (geteuid() != 0) return absl::PermissionDeniedError("swap needs root: try sudo");
  if (access(DirectoryOf(name).c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no swap area named ", name, "; `nram swaps` lists them"));
  }
  // Without these, the kernel's devices are unknown.
  if (access("/proc/swaps", R_OK) != 0 || access("/sys/block", R_OK) != 0) {
    return absl::FailedPreconditionError("/proc and /sys must be mounted here, to list the swap areas of the kernel");
  }
  NRAM_ASSIGN_OR_RETURN(const UniqueFd lock, LockArea(DirectoryOf(name)));
  const SwapArea area = Describe(name);
  // If neither the kernel nor a device has the area any more, nothing is lost: an nram swapoff was interrupted.
  if (!force && !area.daemon_alive && (area.active || !area.device.empty())) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": its daemon is gone, and the swapped-out pages are lost; programs that touch them get ",
                     "SIGBUS. --force removes the rest of the area"));
  }
  if (area.active && !force) {
    NRAM_RETURN_IF_ERROR(Annotate(CheckRoomForSwap(area.size_bytes, area.used_bytes), name));
  }
  if (area.active) {
    // The guard of a dead daemon may be at it too, or another swapoff.
    int error = 0;
    {
      const ProgressReports reports(DeviceOf(area), on_progress);
      error = SwapOffWhole(DeviceOf(area), /*insist=*/!area.daemon_alive);
    }
    if (error == ENOMEM) {
      return absl::ResourceExhaustedError(absl::StrCat(
          name, ": not enough memory to take ", FormatByteSize(area.used_bytes), " back; the area is still in use"));
    }
    if (error != 0) return ErrnoStatus(error, absl::StrCat("swapoff ", area.device, "; the area is still in use"));
  }
  absl::Status status = area.device.empty() ? absl::OkStatus() : DetachLoop(DeviceOf(area));
  status.Update(EndDaemon(area.directory));
  if (!area.active && !area.daemon_alive) status.Update(EndStarting(area.directory));
  status.Update(RemoveDirectory(area.directory));
  return status;
}

std::vector<SwapArea> FindSwaps() {
  std::vector<SwapArea> areas;
  for (const std::string& name : ListDirectory(SwapsDirectory())) {
    if (name[0] != '.') areas.push_back(Describe(name));
  }
  std::sort(areas.begin(), areas.end(), [](const SwapArea& a, const SwapArea& b) { return a.name < b.name; });
  return areas;
}

}  // namespace nram
