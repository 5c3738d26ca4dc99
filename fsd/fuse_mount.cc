#include "fsd/fuse_mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t kDirtyPercentMax = 20;  // of the machine's dirty memory, for one mount
constexpr uint64_t kMarginMin = 64 * kMiB;
constexpr uint64_t kMarginPart = 8;  // of a small mount: the margin is no more than this part

// Adds to the reply to the kernel's first message the features that the kernel offers and libfuse 3.14 does not know.
// Only to that reply: later, a worker's buffer may hold another request than the one that is answered.
ssize_t WriteReply(int fd, iovec* pieces, int count, void* adapter) {
  const FuseWorker* const worker = FuseWorker::Current();
  if (static_cast<FuseAdapter*>(adapter)->TakeFirstReply() && worker != nullptr &&
      worker->header().opcode == FUSE_INIT && count == 2 &&
      pieces[1].iov_len >= offsetof(fuse_init_out, flags) + sizeof(uint32_t)) {
    const auto& offered = worker->body<fuse_init_in>();
    auto* const reply = static_cast<fuse_init_out*>(pieces[1].iov_base);
    // The daemon clears set-id bits itself, so that the kernel need not ask for security.capability before each write.
    reply->flags |= offered.flags & FUSE_HANDLE_KILLPRIV_V2;
    const int request_timeout_s = static_cast<FuseAdapter*>(adapter)->options().request_timeout_s;
    constexpr uint32_t kRequestTimeoutFlag2 = 1u << 10;  // FUSE_REQUEST_TIMEOUT, which Debian 12's headers do not know
    const bool has_more = (offered.flags & FUSE_INIT_EXT) != 0 && pieces[1].iov_len >= sizeof(fuse_init_out);
    if (request_timeout_s > 0 && has_more && (offered.flags2 & kRequestTimeoutFlag2) != 0) {
      reply->flags |= FUSE_INIT_EXT;
      reply->flags2 |= kRequestTimeoutFlag2;
      // Behind flags2: 32 bits of max_stack_depth, then 16 of request_timeout.
      reply->unused[1] = static_cast<uint32_t>(request_timeout_s);
    }
  }
  return writev(fd, pieces, count);
}

ssize_t ReadRequest(int fd, void* buffer, size_t size, void*) { return read(fd, buffer, size); }

// Calls `run`, and returns the text that this process and the programs that it starts write to standard error
// meanwhile. The text goes there as well, afterwards. "": nothing, or there is no descriptor for a pipe.
std::string HearStderr(absl::FunctionRef<void()> run) {
  int ends[2];
  const UniqueFd before(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  // The pipe is read afterwards. Does not block: a full pipe loses text, and holds up no thread that writes to its log.
  const bool hears = before.valid() && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0;
  if (hears) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  run();
  if (!hears) return "";
  dup2(before.get(), STDERR_FILENO);
  const UniqueFd from(ends[0]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(from.get(), buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
  (void)!write(STDERR_FILENO, said.data(), said.size());
  return said;
}

// The reason that fusermount3 gives in its last line, among others' lines; "": it gives none.
std::string ReasonOfFusermount(absl::string_view said) {
  std::string reason;
  for (absl::string_view line : absl::StrSplit(said, '\n')) {
    if (absl::ConsumePrefix(&line, "fusermount3: ")) reason = std::string(line);
  }
  return reason;
}

// libfuse prints the reason when a mount fails. All of it goes to the log, and the last line into the error.
thread_local std::string last_fuse_message;
void LogFuse(fuse_log_level level, const char* format, va_list args) {
  char text[1024];
  vsnprintf(text, sizeof text, format, args);
  last_fuse_message = text;
  while (!last_fuse_message.empty() && last_fuse_message.back() == '\n') last_fuse_message.pop_back();
  LOG(WARNING) << last_fuse_message;
}

// Unknown parts are 0. Does not ask the daemon behind the directory.
DirectoryPlace PlaceOf(const std::string& directory) {
  struct statx attr;
  if (statx(AT_FDCWD, directory.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_MNT_ID, &attr) != 0) return {};
  return {.device = makedev(attr.stx_dev_major, attr.stx_dev_minor),
          .mount = (attr.stx_mask & STATX_MNT_ID) != 0 ? attr.stx_mnt_id : 0};
}

// The most of this machine's memory that may be dirty: vm.dirty_bytes, or vm.dirty_ratio of all memory.
uint64_t DirtyBytesMax() {
  uint64_t bytes = 0, percent = 20;
  std::ifstream("/proc/sys/vm/dirty_bytes") >> bytes;
  std::ifstream("/proc/sys/vm/dirty_ratio") >> percent;
  const auto memory = ReadHostMemory();
  return bytes > 0 ? bytes : memory.ok() ? memory->total_bytes / 100 * percent : 0;
}

void WriteSetting(const std::string& path, uint64_t value) {
  std::ofstream file(path);
  file << value;
}

}  // namespace

bool IsMountedOn(const DirectoryPlace& directory, const DirectoryPlace& above) {
  const bool same_mount = directory.mount != 0 && directory.mount == above.mount;
  return directory.device != above.device && !same_mount;
}

FuseMount::FuseMount(Filesystem* filesystem, const FuseMountOptions& options)
    : options_(options), filesystem_(filesystem), adapter_(filesystem, options.adapter) {}

absl::StatusOr<std::unique_ptr<FuseMount>> FuseMount::Start(Filesystem* filesystem, const FuseMountOptions& options) {
  fuse_set_log_func(&LogFuse);
  std::unique_ptr<FuseMount> mount(new FuseMount(filesystem, options));
  NRAM_RETURN_IF_ERROR(mount->CheckDirectory());
  NRAM_RETURN_IF_ERROR(mount->Mount());
  mount->WatchRoom();
  mount->workers_ =
      std::make_unique<FuseWorkers>(&mount->adapter_, mount->session_, options.fast_wake, options.poller);
  if (const absl::Status started = mount->workers_->Start(options.threads); !started.ok()) {
    // A look at the mounted directory would have no answer, so it is taken away without one.
    mount->workers_ = nullptr;
    mount->adapter_.StopWriteThrough();
    fuse_session_unmount(mount->session_);
    mount->mounted_ = false;
    return started;
  }
  mount->TuneDevice();
  return mount;
}

absl::Status FuseMount::CheckDirectory() const {
  const std::string& path = options_.directory;
  const auto failed = [&](int error) {
    const char* const advice = error == ENOENT ? "; make the directory first"
                               : error == ENOTCONN
                                   ? "; the daemon of the filesystem mounted there is gone: `nram umount` "
                                     "removes the mount"
                                   : "";
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(error), advice));
  };
  // A daemon that serves the mount may stand still, and is not asked: by a look-up of ".." it would be. A btrfs
  // subvolume has a device of its own, and is no mount.
  const DirectoryPlace place = PlaceOf(path), above = PlaceOf(path.substr(0, std::max<size_t>(path.rfind('/'), 1)));
  if (place.device != 0 && above.device != 0 && IsMountedOn(place, above)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": something is mounted there already; unmount it first, with `nram umount` if it is nram's"));
  }
  struct stat attr;
  if (stat(path.c_str(), &attr) != 0) return failed(errno);
  if (!S_ISDIR(attr.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, ": is not a directory"));
  DIR* const directory = opendir(path.c_str());
  if (directory == nullptr) return failed(errno);
  int entries = 0;
  while (readdir(directory) != nullptr) ++entries;
  closedir(directory);
  if (entries > 2 && !options_.nonempty) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is not empty, and a mount would hide its files; choose another or add --nonempty"));
  }
  return absl::OkStatus();
}

absl::Status FuseMount::Mount() {
  if (access("/dev/fuse", F_OK) != 0) {
    return absl::FailedPreconditionError("there is no /dev/fuse: load the kernel's module with `modprobe fuse`");
  }
  if (access("/dev/fuse", R_OK | W_OK) != 0) {
    return absl::FailedPreconditionError(
        "this user may not open /dev/fuse: mount as root, or allow users to mount with `chmod 666 /dev/fuse`, as "
        "Debian's udev rule does");
  }
  std::vector<std::string> words = {"nram-fsd", "-o"};
  std::vector<std::string> options = options_.options;
  // A comma would end the option. libfuse accepts one behind a backslash.
  std::string source;
  for (const char c : options_.source)
    source += c == ',' || c == '\\' ? absl::StrCat("\\", std::string(1, c)) : std::string(1, c);
  options.push_back(absl::StrCat("fsname=", source));
  options.push_back("subtype=nram");
  options.push_back("default_permissions");
  words.push_back(absl::StrJoin(options, ","));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args args = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  last_fuse_message.clear();
  session_ = fuse_session_new(&args, &FuseAdapter::Operations(), sizeof(fuse_lowlevel_ops), &adapter_);
  fuse_opt_free_args(&args);
  if (session_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown or invalid mount options: ", last_fuse_message));
  }
  int result = 0;
  const std::string said = HearStderr([&] { result = fuse_session_mount(session_, options_.directory.c_str()); });
  if (result != 0) {
    const std::string reason = ReasonOfFusermount(said);
    if (!reason.empty()) last_fuse_message = "fusermount3: " + reason;
    const std::string advice = geteuid() == 0 || access("/usr/bin/fusermount3", X_OK) == 0
                                   ? ""
                                   : "; users other than root need fusermount3 (Debian's package fuse3)";
    return absl::FailedPreconditionError(
        absl::StrCat("cannot mount on ", options_.directory, ": ",
                     last_fuse_message.empty() ? "fusermount3 refused" : last_fuse_message, advice));
  }
  mounted_ = true;
  device_ = PlaceOf(options_.directory).device;
  adapter_.set_session(session_);
  filesystem_->set_on_set_id_dropped([session = session_](InodeNumber inode) {
    // Drops the attributes only. The writer has the file open and waits, so the inode lives.
    fuse_lowlevel_notify_inval_inode(session, inode, -1, 0);
  });
  const fuse_custom_io io{
      .writev = &WriteReply, .read = &ReadRequest, .splice_receive = nullptr, .splice_send = nullptr};
  if (fuse_session_custom_io(session_, &io, fuse_session_fd(session_)) != 0) {
    return absl::InternalError("libfuse refuses its own file descriptor");
  }
  return absl::OkStatus();
}

void FuseMount::TuneDevice() {
  // The kernel asks once whether files need opening. This file makes it ask now.
  const UniqueFd unnamed(open(options_.directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (unnamed.valid()) UniqueFd(open(absl::StrCat("/proc/self/fd/", unnamed.get()).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat attr;
  // The kernel answers this when the session has been set up.
  if (geteuid() != 0 || stat(options_.directory.c_str(), &attr) != 0) return;
  const std::string device = absl::StrCat("/sys/class/bdi/", major(attr.st_dev), ":", minor(attr.st_dev), "/");
  WriteSetting(device + "read_ahead_kb", options_.readahead_bytes / 1024);
  // The kernel gives FUSE a hundredth of its dirty memory, in fear of a daemon that does not write. A small mount gets
  // no more than about its margin.
  const uint64_t dirty_bytes = std::max<uint64_t>(DirtyBytesMax(), 100);
  WriteSetting(device + "max_ratio", std::clamp<uint64_t>(margin_bytes_ / (dirty_bytes / 100), 1, kDirtyPercentMax));
}

void FuseMount::WatchRoom() {
  FileStore* const store = filesystem_->store();
  const uint64_t dirty_bytes = std::max(DirtyBytesMax() / 100 * kDirtyPercentMax, kMarginMin);
  margin_bytes_ = std::min(dirty_bytes, store->Capacity().total_bytes / kMarginPart);
  if (geteuid() != 0 || !options_.adapter.writeback) return;
  adapter_.cache()->set_write_through(std::make_unique<WriteThrough>(
      margin_bytes_, [store] { return store->Capacity().free_bytes; },
      [this](bool through) { return SetSync(through); }));
}

bool FuseMount::SetSync(bool on) const {
  const char* const what = on ? "little room is left: writes now wait for the pool, and say if it is full"
                              : "there is room again: the kernel collects writes";
  // This waits for the mount itself. If the process dies meanwhile, the kernel ends the mount with the last use of
  // /dev/fuse: this thread must have none, so it has descriptors of its own from now on, the standard ones alone.
  if (close_range(3, ~0u, CLOSE_RANGE_UNSHARE) != 0) {
    LOG(WARNING) << "a full pool is told at fsync and close only: close_range: " << strerror(errno);
    return false;
  }
  // The mount must not be held, or it could not be unmounted.
  if (PlaceOf(options_.directory).device != device_) return false;
  const UniqueFd context(fspick(AT_FDCWD, options_.directory.c_str(), FSPICK_CLOEXEC | FSPICK_NO_AUTOMOUNT));
  if (!context.valid() || fsconfig(context.get(), FSCONFIG_SET_FLAG, on ? "sync" : "async", nullptr, 0) != 0 ||
      fsconfig(context.get(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) != 0) {
    LOG(WARNING) << "a full pool is told at fsync and close only: cannot change the mount's option sync: "
                 << strerror(errno);
    return false;
  }
  LOG(INFO) << options_.directory << ": " << what;
  return true;
}

bool FuseMount::ended() const {
  pollfd waiting{ended_fd(), POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

void FuseMount::Detach() {
  // Another process may have detached the mount, and mounted something else there since.
  if (std::exchange(detached_, true) || PlaceOf(options_.directory).device != device_) return;
  if (geteuid() == 0) {
    umount2(options_.directory.c_str(), MNT_DETACH);
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", options_.directory.c_str(), nullptr);
    _exit(127);
  }
  if (child > 0) waitpid(child, nullptr, 0);
}

void FuseMount::Unmount(int64_t timeout_ms) {
  const int64_t deadline_ns = DeadlineAfterMs(timeout_ms);
  const auto wait_for = [&](int fd) {
    pollfd waiting{fd, POLLIN, 0};
    for (int64_t left_ns = deadline_ns - MonotonicNs(); left_ns > 0; left_ns = deadline_ns - MonotonicNs()) {
      if (poll(&waiting, 1, static_cast<int>(left_ns / kNsPerMs) + 1) == 1) return true;
    }
    return false;
  };
  if (!ended()) {
    // A thread of its own waits for the kernel. If servers do not answer, it is left behind: the process is about to
    // end.
    const auto synced = std::make_shared<UniqueFd>(eventfd(0, EFD_CLOEXEC));
    std::thread([directory = options_.directory, device = device_, synced] {
      if (PlaceOf(directory).device == device) {
        UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (fd.valid()) syncfs(fd.get());
      }
      const uint64_t one = 1;
      (void)!write(synced->get(), &one, sizeof one);
    }).detach();
    if (!wait_for(synced->get())) LOG(WARNING) << "data that the kernel did not write back in time is lost";
    Detach();
    LOG(INFO) << options_.directory << " is detached; processes keep the files that they have open";
  }
  if (!wait_for(ended_fd())) {
    LOG(WARNING) << "ending the access of processes with open files on " << options_.directory;
  }
}

FuseMount::~FuseMount() {
  if (workers_ != nullptr && !ended()) Detach();
  adapter_.StopAside();
  workers_ = nullptr;
  if (session_ == nullptr) return;
  // Small requests under way reply through the session. Each ends by its deadline.
  adapter_.AwaitSmall();
  if (mounted_) {
    // The kernel ends the connection with the last use of its descriptor. libfuse gets a dead pipe instead: it then
    // takes the mount for gone, and does not unmount whatever is at the path by now.
    int ends[2];
    PCHECK(pipe2(ends, O_CLOEXEC) == 0);
    PCHECK(dup2(ends[1], fuse_session_fd(session_)) >= 0);
    close(ends[0]);
    close(ends[1]);
    adapter_.StopWriteThrough();
    fuse_session_unmount(session_);
  }
  fuse_session_destroy(session_);
}

}  // namespace nram
