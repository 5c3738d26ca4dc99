#include "tools/nram/swap_area.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"
#include "tools/nram/programs.h"

// Of <linux/swap.h>, which is the kernel's own.
#define NRAM_SWAP_FLAG_DISCARD 0x10000
#define NRAM_SWAP_FLAG_DISCARD_PAGES 0x40000

namespace nram {
namespace {

constexpr uint64_t kSwapBytesMin = 16 * kMiB;
constexpr int64_t kDaemonEndMs = 15'000;
constexpr int64_t kSwapOffMs = 60'000;
constexpr int kGuardFd = 3;     // its daemon
constexpr int kLoopTries = 16;  // others may take the number that was free a moment ago

std::string SwapsDirectory() { return LocalStateDir() + "/swap"; }
std::string DirectoryOf(const std::string& name) { return absl::StrCat(SwapsDirectory(), "/", name); }
std::string MountOf(const std::string& directory) { return directory + "/mount"; }
std::string FileOf(const std::string& directory) { return MountOf(directory) + "/swap"; }

absl::Status CheckName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_';
  });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no name: expected 1 to 32 letters, digits, - and _"));
}

// Runs a program and waits; what it said on standard error is the error's.
absl::Status RunProgram(const std::vector<std::string>& words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    dup2(ends[1], STDERR_FILENO);
    const UniqueFd nothing(open("/dev/null", O_WRONLY));
    dup2(nothing.get(), STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::string said;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(said.empty() ? absl::StrCat(words[0], " failed") : said);
}

uint64_t ReadNumber(const std::string& path, int word) {
  const auto text = ReadFile(path);
  if (!text.ok()) return 0;
  const std::vector<absl::string_view> words = absl::StrSplit(*text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
  uint64_t value = 0;
  if (static_cast<size_t>(word) < words.size()) (void)absl::SimpleAtoi(words[static_cast<size_t>(word)], &value);
  return value;
}

uint64_t DeviceSequence(const std::string& device) {
  return device.empty() ? 0 : ReadNumber(absl::StrCat("/sys/block/", device.substr(5), "/diskseq"), 0);
}

// The kernel's line about the area: size, used and priority. Another that has got the same device is not it.
bool FindActive(SwapArea* area) {
  const auto table = ReadFile("/proc/swaps");
  if (!table.ok() || area->device.empty() || DeviceSequence(area->device) != area->device_sequence) return false;
  for (const absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t used_kib = 0;
    if (words.size() < 5 || words[0] != area->device) continue;
    (void)absl::SimpleAtoi(words[3], &used_kib);
    (void)absl::SimpleAtoi(words[4], &area->priority);
    area->used_bytes = used_kib * kKiB;
    return true;
  }
  return false;
}

// The area's daemon; not valid if it has ended, also when its number belongs to another process by now.
UniqueFd OpenDaemon(const std::string& directory, int* pid) {
  *pid = static_cast<int>(ReadNumber(directory + "/pid", 0));
  if (*pid == 0) return UniqueFd();
  UniqueFd daemon(static_cast<int>(syscall(SYS_pidfd_open, *pid, 0)));
  const auto name = ReadFile(absl::StrCat("/proc/", *pid, "/comm"));
  const auto command = ReadFile(absl::StrCat("/proc/", *pid, "/cmdline"));
  const bool is_it = name.ok() && absl::StartsWith(*name, "nram-fsd") && command.ok() &&
                     absl::StrContains(*command, MountOf(directory));
  return is_it ? std::move(daemon) : UniqueFd();
}

// In the kernel's topmost groups: no limit of the group that this command runs in, and no end of its session, is the
// area's. As far as it may.
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

// Holds back the signals that would end this process, but not those that whoever started it wants ignored.
void HoldSignals() {
  sigset_t held;
  sigemptyset(&held);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&held, number);
  }
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

// Whether one of them has come.
bool Interrupted() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
         sigismember(&pending, SIGHUP) == 1;
}

// Nobody else sets this area up or takes it down meanwhile.
absl::StatusOr<UniqueFd> LockArea(const std::string& directory) {
  UniqueFd lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid()) return ErrnoStatus(errno, "open " + directory);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError("another nram swapon or swapoff is at work on this area; try again");
  }
  struct stat locked {
  }, there{};
  if (fstat(lock.get(), &locked) != 0 || stat(directory.c_str(), &there) != 0 || locked.st_ino != there.st_ino) {
    return absl::FailedPreconditionError("another nram swapoff has just taken this area away; try again");
  }
  return lock;
}

// The loop device whose file is this area's, also when no note of it was left.
std::string FindLoop(const std::string& directory) {
  DIR* const devices = opendir("/sys/block");
  if (devices == nullptr) return "";
  std::string found;
  while (const dirent* device = readdir(devices)) {
    const auto file = ReadFile(absl::StrCat("/sys/block/", device->d_name, "/loop/backing_file"));
    // A file whose mount is gone is shown without the path before it, or as deleted.
    if (file.ok() && absl::StartsWith(*file, FileOf(directory))) found = absl::StrCat("/dev/", device->d_name);
  }
  closedir(devices);
  return found;
}

// What the loop device has been told so far that nobody needs, for whomever it was.
uint64_t DiscardedBytes(const std::string& device) {
  constexpr int kDiscardSectors = 13;  // Documentation/block/stat.rst
  return ReadNumber(absl::StrCat("/sys/block/", device.substr(5), "/stat"), kDiscardSectors) * kChunkBytes;
}

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
      discarded_before = note.value("discarded_before", uint64_t{0});
    }
  }
  if (area.device.empty() || DeviceSequence(area.device) != area.device_sequence) {
    area.device = FindLoop(area.directory);
    area.device_sequence = DeviceSequence(area.device);
  }
  area.daemon_alive = OpenDaemon(area.directory, &area.daemon_pid).valid();
  area.active = FindActive(&area);
  if (!area.device.empty()) {
    const uint64_t bytes = DiscardedBytes(area.device);
    area.discarded_bytes = bytes - std::min(bytes, discarded_before);
  }
  return area;
}

absl::StatusOr<std::string> AttachLoop(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "open " + path);
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("/dev/loop-control: ", strerror(errno), "; load the kernel's module with `modprobe loop`"));
  }
  for (int i = 0; i < kLoopTries; ++i) {
    const int number = ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return ErrnoStatus(errno, "find a free loop device");
    const std::string device = absl::StrCat("/dev/loop", number);
    const UniqueFd loop(open(device.c_str(), O_RDWR | O_CLOEXEC));
    if (!loop.valid()) return ErrnoStatus(errno, "open " + device);
    loop_config config{};
    config.fd = static_cast<uint32_t>(file.get());
    config.block_size = kPageBytes;
    config.info.lo_flags = LO_FLAGS_DIRECT_IO;
    if (ioctl(loop.get(), LOOP_CONFIGURE, &config) == 0) return device;
    if (errno != EBUSY) return ErrnoStatus(errno, "attach " + path + " to " + device);
  }
  return absl::ResourceExhaustedError("no loop device is free");
}

absl::Status DetachLoop(const std::string& device, uint64_t sequence) {
  if (DeviceSequence(device) != sequence) return absl::OkStatus();  // it is somebody else's by now
  const UniqueFd loop(open(device.c_str(), O_RDWR | O_CLOEXEC));
  if (!loop.valid()) return ErrnoStatus(errno, "open " + device);
  if (ioctl(loop.get(), LOOP_CLR_FD) != 0 && errno != ENXIO) return ErrnoStatus(errno, "detach " + device);
  return absl::OkStatus();
}

// Unmounts, and waits until the daemon has given the memory back and ended.
absl::Status EndDaemon(const std::string& directory) {
  int pid = 0;
  const UniqueFd daemon = OpenDaemon(directory, &pid);
  umount2(MountOf(directory).c_str(), MNT_DETACH);
  if (!daemon.valid()) return absl::OkStatus();
  pollfd ended{daemon.get(), POLLIN, 0};
  const int64_t deadline_ns = DeadlineAfterMs(kDaemonEndMs);
  while (MonotonicNs() < deadline_ns) {
    if (poll(&ended, 1, 1'000) > 0) return absl::OkStatus();
  }
  (void)syscall(SYS_pidfd_send_signal, daemon.get(), SIGKILL, nullptr, 0);
  return absl::DeadlineExceededError(absl::StrCat("the area's daemon, pid ", pid, ", did not end and was killed"));
}

void RemoveDirectory(const std::string& directory) {
  rmdir(MountOf(directory).c_str());
  for (const char* name : {"area.json", "pid", "log"}) unlink(absl::StrCat(directory, "/", name).c_str());
  rmdir(directory.c_str());
}

// swapoff(2) until the area is gone: the kernel gives up half way when a page cannot be had or the process gets a
// signal, and says EINVAL to all but one of those who try at the same time. Other errors are tried again only if
// `insist`: where the daemon is alive they may mean that there is too little RAM. Blocks until `deadline_ns` or longer,
// as the kernel does. 0 or errno; after an error the area is as it was.
int SwapOffWhole(SwapArea* area, bool insist, int64_t deadline_ns) {
  int error = 0;
  while (true) {
    error = swapoff(area->device.c_str()) == 0 ? 0 : errno;
    if (error == 0 || !FindActive(area)) return 0;
    if (MonotonicNs() >= deadline_ns || (error != EINVAL && !insist)) return error;
    poll(nullptr, 0, 20);
  }
}

// Takes the area from the kernel if its daemon dies: a device that fails every write is one that the kernel would try
// to write to for ever, and programs with it. Then they are told (SIGBUS, or the OOM killer). A process of its own,
// since nobody else is sure to be there; and each swapoff(2) in a child of that: whoever is in it is the kernel's first
// choice when a machine is out of memory, whatever its score.
absl::Status StartGuard(const SwapArea& area) {
  const UniqueFd daemon(static_cast<int>(syscall(SYS_pidfd_open, area.daemon_pid, 0)));
  if (!daemon.valid()) return ErrnoStatus(errno, "watch the area's daemon");
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child > 0) return absl::OkStatus();
  setsid();
  const UniqueFd nothing(open("/dev/null", O_RDWR));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing.get(), fd);
  // Nothing that it was started with is kept from its owners, this command's locks least of all.
  dup3(daemon.get(), kGuardFd, O_CLOEXEC);
  if (syscall(SYS_close_range, kGuardFd + 1, ~0u, 0) != 0) {  // before Linux 5.9
    for (int fd = kGuardFd + 1; fd < 1024; ++fd) close(fd);
  }
  program_invocation_name[0] = '@';  // as the daemon's, fsd/hang_proof.cc
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) (void)signal(number, SIG_IGN);
  (void)!chdir("/");
  prctl(PR_SET_NAME, "nram-guard");
  // As far as it may: it must not need what it is to take away.
  (void)WriteOomScore(-1000);
  (void)mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
  const sched_param priority{.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_RR, &priority);
  SwapArea look = area;
  (void)FindActive(&look);  // once, so that its memory is there
  pollfd waiting{kGuardFd, POLLIN, 0};
  while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  // Ended by `nram swapoff`, it has no area any more.
  while (FindActive(&look)) {
    const pid_t trying = fork();
    if (trying == 0) _exit(SwapOffWhole(&look, /*insist=*/true, DeadlineAfterMs(kSwapOffMs)) == 0 ? 0 : 1);
    // Without a child, itself: better at risk than not at all.
    if (trying < 0) (void)swapoff(look.device.c_str());
    while (trying > 0 && waitpid(trying, nullptr, 0) < 0 && errno == EINTR) {
    }
    poll(nullptr, 0, 20);
  }
  _exit(0);
}

// The file, with room for all of it: what is swapped out later can never be refused for lack of it.
absl::Status MakeFile(const std::string& path, uint64_t bytes, const std::string& mount) {
  const UniqueFd file(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "create " + path);
  // In steps, each of which has an operation's time.
  int error = 0;
  for (uint64_t at = 0; at < bytes && error == 0; at += kGiB) {
    const uint64_t step = std::min(kGiB, bytes - at);
    if (Interrupted()) return absl::CancelledError("interrupted; nothing is left of it");
    if (fallocate(file.get(), 0, static_cast<off_t>(at), static_cast<off_t>(step)) != 0) error = errno;
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
  return absl::ResourceExhaustedError(absl::StrCat(
      "the pool has not ", FormatByteSize(bytes),
      " to spare: ", FormatByteSize(uint64_t{room.f_bavail} * room.f_frsize), " are free (`nram df` says where)"));
}

}  // namespace

absl::StatusOr<SwapArea> AddSwap(const SwapOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckName(options.name));
  if (options.size_bytes < kSwapBytesMin || options.size_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a swap area of ", options.size_bytes, " bytes: expected at least ",
                                                   FormatByteSize(kSwapBytesMin), " and whole pages of 4096"));
  }
  if (geteuid() != 0) return absl::PermissionDeniedError("swap needs root: try sudo");
  NRAM_ASSIGN_OR_RETURN(const std::string fsd, FindProgram("nram-fsd", "fsd", "NRAM_FSD"));
  const std::string directory = DirectoryOf(options.name);
  NRAM_RETURN_IF_ERROR(MakeStateDir());
  mkdir(SwapsDirectory().c_str(), 0755);
  // Making the directory is what takes the name.
  if (mkdir(directory.c_str(), 0700) != 0) {
    if (errno != EEXIST) return ErrnoStatus(errno, "create " + directory);
    const SwapArea there = Describe(options.name);
    return absl::AlreadyExistsError(absl::StrCat(
        "there is a swap area named ", options.name,
        there.active ? "; choose another --name, or end it with `nram swapoff " + options.name + "`"
        : there.daemon_alive
            ? ", which somebody else is just setting up or taking down"
            : ", or what a crash has left of one; `nram swapoff --force " + options.name + "` takes it away"));
  }
  const absl::StatusOr<UniqueFd> lock = LockArea(directory);
  if (!lock.ok()) {
    rmdir(directory.c_str());
    return lock.status();
  }
  std::string device;
  uint64_t sequence = 0;
  auto undo = absl::MakeCleanup([&] {
    if (!device.empty()) (void)DetachLoop(device, sequence);
    (void)EndDaemon(directory);
    RemoveDirectory(directory);
  });
  HoldSignals();
  LeaveCgroups();
  if (mkdir(MountOf(directory).c_str(), 0700) != 0) return ErrnoStatus(errno, "create " + MountOf(directory));
  std::vector<std::string> command = {fsd,
                                      "--swap",
                                      "--inodes=8",
                                      "--no-allow-other",
                                      "--log-file=" + directory + "/log",
                                      "--pid-file=" + directory + "/pid"};
  command.insert(command.end(), options.fsd_flags.begin(), options.fsd_flags.end());
  if (!options.pool.empty()) command.push_back("--pool=" + options.pool);
  command.push_back(MountOf(directory));
  NRAM_RETURN_IF_ERROR(RunProgram(command));
  NRAM_RETURN_IF_ERROR(MakeFile(FileOf(directory), options.size_bytes, MountOf(directory)));
  NRAM_ASSIGN_OR_RETURN(device, AttachLoop(FileOf(directory)));
  sequence = DeviceSequence(device);
  NRAM_RETURN_IF_ERROR(RunProgram({"mkswap", "--label", "nram-" + options.name, device}));
  NRAM_RETURN_IF_ERROR(WriteFileAtomically(directory + "/area.json",
                                           nlohmann::json{{"device", device},
                                                          {"device_sequence", sequence},
                                                          {"size_bytes", options.size_bytes},
                                                          {"pool", options.pool},
                                                          {"discarded_before", DiscardedBytes(device)}}
                                                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                                               "\n"));
  // Before the kernel has the area: there is no moment without it.
  NRAM_RETURN_IF_ERROR(StartGuard(Describe(options.name)));
  if (Interrupted()) return absl::CancelledError("interrupted; nothing is left of it");
  int flags = NRAM_SWAP_FLAG_DISCARD | NRAM_SWAP_FLAG_DISCARD_PAGES;
  if (options.priority >= 0) flags |= SWAP_FLAG_PREFER | (options.priority & SWAP_FLAG_PRIO_MASK);
  if (swapon(device.c_str(), flags) != 0) return ErrnoStatus(errno, "swapon " + device);
  SwapArea area = Describe(options.name);
  if (!area.daemon_alive) {
    // The guard may have looked when the kernel did not have the area yet.
    (void)SwapOffWhole(&area, /*insist=*/true, DeadlineAfterMs(kSwapOffMs));
    return absl::UnavailableError("the area's daemon died while it was set up");
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
  NRAM_ASSIGN_OR_RETURN(const UniqueFd lock, LockArea(DirectoryOf(name)));
  const SwapArea area = Describe(name);
  if (!force && !area.daemon_alive) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": its daemon is gone, and with it what was swapped out; programs that touch that get ",
                     "SIGBUS. --force takes away what is left of the area"));
  }
  if (area.active && !force) {
    // The machine's, since each page goes back to whoever owns it.
    NRAM_ASSIGN_OR_RETURN(const MachineMemory memory, ReadMachineMemory());
    const uint64_t own_free = area.size_bytes - std::min(area.size_bytes, area.used_bytes);
    const uint64_t room = memory.available_bytes + memory.swap_free_bytes - std::min(memory.swap_free_bytes, own_free);
    if (room < area.used_bytes + area.used_bytes / 16) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name, ": ", FormatByteSize(area.used_bytes), " must go back to RAM, and ", FormatByteSize(room),
                       " are available there and in other swap. End some programs, or add other swap first; --force ",
                       "tries all the same"));
    }
  }
  if (area.active) {
    std::atomic<bool> done{false};
    SwapArea look = area;
    std::thread watcher([&, look]() mutable {
      for (int64_t next_ns = MonotonicNs() + kNsPerSecond / 2; !done; poll(nullptr, 0, 20)) {
        if (on_progress == nullptr || MonotonicNs() < next_ns || !FindActive(&look)) continue;
        on_progress(look.used_bytes);
        next_ns = MonotonicNs() + kNsPerSecond / 2;
      }
    });
    // The guard of a dead daemon may be at it too, or another swapoff.
    SwapArea mine = area;
    const int error = SwapOffWhole(&mine, !area.daemon_alive, DeadlineAfterMs(kSwapOffMs));
    done = true;
    watcher.join();
    if (error == ENOMEM) {
      return absl::ResourceExhaustedError(absl::StrCat(
          name, ": not enough memory to take ", FormatByteSize(area.used_bytes), " back; the area is still in use"));
    }
    if (error != 0) return ErrnoStatus(error, absl::StrCat("swapoff ", area.device, "; the area is still in use"));
  }
  absl::Status status = area.device.empty() ? absl::OkStatus() : DetachLoop(area.device, area.device_sequence);
  status.Update(EndDaemon(area.directory));
  RemoveDirectory(area.directory);
  return status;
}

std::vector<SwapArea> FindSwaps() {
  std::vector<SwapArea> areas;
  DIR* const directory = opendir(SwapsDirectory().c_str());
  if (directory == nullptr) return areas;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') areas.push_back(Describe(entry->d_name));
  }
  closedir(directory);
  std::sort(areas.begin(), areas.end(), [](const SwapArea& a, const SwapArea& b) { return a.name < b.name; });
  return areas;
}

}  // namespace nram
