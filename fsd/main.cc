// nram-fsd: a filesystem in the RAM of a pool. See FsdOptions::Help.

#include <dirent.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/metrics/metrics_server.h"
#include "base/signals.h"
#include "base/status.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"
#include "fsd/door_figures.h"
#include "fsd/filesystem.h"
#include "fsd/fuse_mount.h"
#include "fsd/hang_proof.h"
#include "fsd/options.h"
#include "fsd/pool_store.h"
#include "fsd/relocating_store.h"

namespace nram {
namespace {

constexpr int64_t kUnmountTimeoutMs = 10'000;
// The kernel gives up a daemon that answers nothing (a frozen one, say) after this many deadlines of an operation, but
// a minute at least. Nothing that keeps its deadlines takes so much time.
constexpr int64_t kSwapRequestDeadlines = 6;
constexpr int64_t kSwapRequestMinS = 60;
// The kernel has fewer requests of data under way than there are threads (background_max), each with at most this many
// messages: a request of 1 MiB that does not begin where a message does.
constexpr size_t kMessagesPerRequest = 5;

int Fail(const absl::Status& status, int fd) {
  const std::string text = absl::StrCat("nram-fsd: ", status.message(), "\n");
  (void)!write(fd, text.data(), text.size());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

// A whole number in a file of /proc; 0: there is none.
int ReadSetting(const char* path) {
  int value = 0;
  const absl::StatusOr<std::string> text = ReadFile(path);
  return text.ok() && absl::SimpleAtoi(*text, &value) ? value : 0;
}

// Whether this kernel writes back so that lseek can find holes. A test may name the release of another one.
bool FindsHoles() {
  if (const char* const release = getenv("NRAM_KERNEL_RELEASE_FOR_TEST")) return KernelFindsHoles(release);
  utsname names{};
  return uname(&names) == 0 && KernelFindsHoles(names.release);
}

// The parts of a running daemon; each stands on those before it.
struct Daemon {
  std::unique_ptr<Pool> pool;
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<Filesystem> filesystem;
  std::unique_ptr<FuseMount> mount;
  std::unique_ptr<MetricsServer> metrics;  // null: no --metrics
};

// Opens the pool and the store on it. Returns the pool's name for mount tables.
absl::StatusOr<std::string> OpenPool(const FsdOptions& options, Daemon* daemon) {
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(options.pool));
  PoolOptions pool;
  NRAM_RETURN_IF_ERROR(UsePool(spec, &pool));
  // A daemon that keeps a machine from hanging allocates nothing later: an area has the servers that it began with.
  if (options.swap) pool.members = nullptr;
  pool.client_name = ClientName(options.swap ? "swap" : "mount", options.directory, getpid());
  pool.io_timeout_ms = options.io_timeout_ms;
  if (options.swap) {
    // The area must find its pages if a server is back in time, wherever between two renewals it went away.
    pool.lease_ttl_min_ms = options.io_timeout_ms * 2;
    pool.fail_fast_after_ms = options.io_timeout_ms;
  }
  if (options.copies > 1) pool.ExpectCopies();
  pool.repair_bytes_per_s = options.repair_bytes_per_s;
  pool.expendable = options.expendable;
  NRAM_ASSIGN_OR_RETURN(pool.seal, ChooseSeal(options.seal));
  if (options.swap && pool.seal == Seal::kAuto) pool.seal = Seal::kYes;  // memory of all of a machine's users
  pool.fast_wake = FastWake::kOff;                                       // the mount counts its requests instead
  pool.spin = options.swap ? SpinOptions{.limit_us = 0} : options.spin;
  NRAM_ASSIGN_OR_RETURN(daemon->pool, Pool::Open(std::move(pool)));
  // Sealers that threads which free memory would else allocate.
  if (options.swap && daemon->pool->seals()) {
    NRAM_RETURN_IF_ERROR(daemon->pool->PrepareSealers(static_cast<size_t>(options.threads) * kMessagesPerRequest));
  }
  const int copies = static_cast<int>(options.copies);
  NRAM_RETURN_IF_ERROR(CheckHosts(*daemon->pool, copies, "--copies"));
  daemon->store = NewPoolStore(daemon->pool.get(), {.gc = options.gc, .copies = copies, .keep_room = options.swap});
  // A region of several copies places lost pages anew by itself.
  if (options.swap && copies == 1) daemon->store = NewRelocatingStore(std::move(daemon->store));
  return spec[0] == '@' ? spec.substr(1) : spec;
}

absl::Status StartMetrics(const FsdOptions& options, Daemon* daemon) {
  if (options.metrics.empty()) return absl::OkStatus();
  const auto tell = [is_swap = options.swap, place = options.directory, filesystem = daemon->filesystem.get(),
                     pool = daemon->pool.get()](Figures* out) {
    AddDoorFigures(is_swap, place, *filesystem, pool, out);
  };
  NRAM_ASSIGN_OR_RETURN(daemon->metrics, MetricsServer::Start(options.metrics, tell));
  LOG(INFO) << "figures on port " << daemon->metrics->port() << ", /metrics";
  return absl::OkStatus();
}

absl::StatusOr<Daemon> StartDaemon(const FsdOptions& options) {
  Daemon daemon;
  std::string source = "nram";
  uint64_t ram_bytes = 4 * kGiB;
  if (const auto memory = ReadHostMemory(); memory.ok()) ram_bytes = memory->total_bytes;
  switch (options.backend) {
    case Backend::kPool: {
      NRAM_ASSIGN_OR_RETURN(source, OpenPool(options, &daemon));
      break;
    }
    case Backend::kMemory:
      daemon.store = NewMemoryStore(options.size_bytes > 0 ? options.size_bytes : ram_bytes / 2);
      break;
    case Backend::kNull:
      daemon.store = NewNullStore();
      break;
  }
  FilesystemOptions filesystem;
  filesystem.free_at_end = options.backend == Backend::kPool && !options.gc;  // else the lease or we end them
  if (options.size_bytes > 0) filesystem.bytes_max = options.size_bytes;
  // The capacity of these never changes, so nothing beyond it need be tried.
  if (options.backend != Backend::kPool) {
    filesystem.bytes_max = std::min(filesystem.bytes_max, daemon.store->Capacity().total_bytes);
  }
  if (!options.swap) {
    filesystem.memory_bytes_max =
        options.memory_bytes > 0 ? options.memory_bytes : std::max(ram_bytes / 2, options.LeastMemoryBytes());
  }
  // The data itself is in this process too.
  if (options.backend == Backend::kMemory) filesystem.memory_bytes_max = 0;
  filesystem.names.inodes_max = options.inodes > 0 ? options.inodes : ram_bytes / kPageBytes / 2;
  filesystem.names.root_mode = options.mode != 0 ? options.mode : geteuid() == 0 ? 01777 : 0755;
  filesystem.names.root_uid = geteuid();
  filesystem.names.root_gid = getegid();
  const std::vector<std::string>& kernel = options.mount_options;
  filesystem.names.touch_files = std::find(kernel.begin(), kernel.end(), "noatime") == kernel.end();
  filesystem.names.touch_directories = filesystem.names.touch_files && options.directory_access_times;
  daemon.filesystem = std::make_unique<Filesystem>(daemon.store.get(), filesystem);

  FuseMountOptions mount;
  mount.directory = options.directory;
  mount.source = source;
  mount.options = options.mount_options;
  if (geteuid() == 0) mount.options.insert(mount.options.begin(), {"suid", "dev"});
  if (options.allow_other) mount.options.emplace_back("allow_other");
  if (options.read_only) mount.options.emplace_back("ro");
  mount.nonempty = options.nonempty;
  mount.threads = static_cast<int>(options.threads);
  mount.readahead_bytes = options.readahead_bytes;
  mount.fast_wake = options.fast_wake;
  if (daemon.pool != nullptr) mount.poller = daemon.pool->poller();
  mount.adapter.background_max = static_cast<unsigned>(std::max<int64_t>(options.threads - 4, 2));
  mount.adapter.writeback = options.writeback && !options.swap;
  mount.adapter.finds_holes = FindsHoles();
  const int request_s =
      static_cast<int>(std::max(options.io_timeout_ms * kSwapRequestDeadlines / 1000, kSwapRequestMinS));
  const int site_max_s = ReadSetting("/proc/sys/fs/fuse/max_request_timeout");
  mount.adapter.request_timeout_s = ChooseRequestTimeout(
      options.swap ? request_s : 0, ReadSetting("/proc/sys/fs/fuse/default_request_timeout"), site_max_s);
  if (site_max_s > 0 && site_max_s < request_s) {
    LOG(WARNING) << "fs.fuse.max_request_timeout is " << site_max_s << " s: the kernel ends this mount if a request "
                 << "takes longer, and slow servers may make it take " << request_s
                 << " s. Raise it (sysctl), or lower --io-timeout-ms";
  }
  // Before the mount: with an address that cannot be had, nothing is mounted.
  NRAM_RETURN_IF_ERROR(StartMetrics(options, &daemon));
  NRAM_ASSIGN_OR_RETURN(daemon.mount, FuseMount::Start(daemon.filesystem.get(), mount));
  return daemon;
}

// The descriptors that the process was started with, beyond standard input, output and error.
std::vector<int> ListInherited() {
  std::vector<int> inherited;
  DIR* const own = opendir("/proc/self/fd");
  if (own == nullptr) return inherited;
  while (const dirent* entry = readdir(own)) {
    int fd = -1;
    // This program's own descriptors are closed on exec.
    if (!absl::SimpleAtoi(entry->d_name, &fd) || fd <= STDERR_FILENO) continue;
    if (const int flags = fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) == 0) inherited.push_back(fd);
  }
  closedir(own);
  return inherited;
}

// Runs until the mount ends or a signal says so. Tells `ready_fd` "ok" or why the start failed.
int Serve(const FsdOptions& options, int ready_fd) {
  sigset_t ending = EndingSignals();
  // No thread is there yet, so all will block them, and only the descriptor gets the signals.
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  if (options.swap) {
    // A machine that goes down sends signals to all processes before it takes its swap off. The pages that are swapped
    // out here would be lost.
    sigemptyset(&ending);
    sigaddset(&ending, kSwapEndSignal);
    pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
  const std::vector<int> inherited = ListInherited();
  const UniqueFd signals(signalfd(-1, &ending, SFD_CLOEXEC));
  if (options.swap) {
    if (const absl::Status status = PrepareHangProof(options.unprotected); !status.ok()) return Fail(status, ready_fd);
  }
  absl::StatusOr<Daemon> daemon = StartDaemon(options);
  if (daemon.ok() && options.swap) {
    if (const absl::Status status = LockMemory(); !status.ok()) daemon = status;
  }
  if (!daemon.ok()) return Fail(daemon.status(), ready_fd);
  LOG(INFO) << "mounted on " << options.directory;
  if (!options.pid_file.empty()) {
    const absl::Status written = WriteFileAtomically(options.pid_file, absl::StrCat(getpid(), "\n"));
    if (!written.ok()) return Fail(written, ready_fd);
  }
  bool is_awaited = true;
  if (ready_fd != STDERR_FILENO) {
    // From here on no path is looked up, and no inherited descriptor is read (--pool may have named one).
    (void)!chdir("/");
    for (const int fd : inherited) close(fd);
    // An end of the command that waits for this, by Ctrl-C say, is its user's wish to have no mount.
    is_awaited = write(ready_fd, "ok", 2) == 2;
    close(ready_fd);
  }
  pollfd waiting[] = {{daemon->mount->ended_fd(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
  while (is_awaited && poll(waiting, 2, -1) < 0) {
  }
  if (!is_awaited) {
    LOG(INFO) << "unmounting, because the command that asked for the mount has ended";
    daemon->mount->Unmount(kUnmountTimeoutMs);
  } else if (waiting[0].revents == 0) {
    signalfd_siginfo info{};
    (void)!read(signals.get(), &info, sizeof info);
    LOG(INFO) << "unmounting on signal " << info.ssi_signo;
    if (!options.swap) daemon->mount->Unmount(kUnmountTimeoutMs);  // with swap, the kernel has nothing to write back
  }
  daemon->mount.reset();
  LOG(INFO) << options.directory << " is unmounted; its files are gone";
  // Another daemon may serve there by now, and have its own pid in the file.
  const absl::StatusOr<std::string> pid = ReadFile(options.pid_file);
  if (pid.ok() && *pid == absl::StrCat(getpid(), "\n")) unlink(options.pid_file.c_str());
  return 0;
}

// Serves from a process in the background; returns when it is ready or has failed.
int ServeInBackground(const FsdOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Fail(ErrnoStatus(errno, "pipe"), STDERR_FILENO);
  const pid_t child = fork();
  if (child < 0) return Fail(ErrnoStatus(errno, "fork"), STDERR_FILENO);
  if (child > 0) {
    close(ends[1]);
    std::string said;
    char buffer[512];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
    if (said == "ok") return 0;
    if (said.empty()) said = absl::StrCat("nram-fsd: the daemon died while starting; see ", options.log_file, "\n");
    std::cerr << said;
    int status = 0;
    // It has closed its end, so it is about to exit, with Fail's code.
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 2 ? 2 : 1;
  }
  // Only the command reads: else the daemon would not see that the command has ended.
  close(ends[0]);
  setsid();
  UniqueFd log(open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.valid()) _exit(Fail(ErrnoStatus(errno, absl::StrCat("log file ", options.log_file)), ends[1]));
  UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
  dup2(nothing.get(), STDOUT_FILENO);
  dup2(log.get(), STDERR_FILENO);
  return Serve(options, ends[1]);
}

int Main(int argc, char** argv) {
  FsdOptions options;
  const std::string program = argv[0];
  if (absl::StartsWith(program.substr(program.rfind('/') + 1), "mount.")) {
    absl::StatusOr<FsdOptions> parsed = FsdOptions::ParseMountHelper({argv + 1, argv + argc});
    if (!parsed.ok()) return Fail(parsed.status(), STDERR_FILENO);
    options = *std::move(parsed);
  } else {
    ArgParser parser("nram-fsd");
    FsdOptions::Register(&options, &parser);
    std::vector<std::string> positional;
    if (const auto code = parser.ParseMain(argc, argv, FsdOptions::Help(), &positional)) return *code;
    if (positional.size() > 1) {
      return Fail(absl::InvalidArgumentError(absl::StrCat("unexpected word \"", positional[1], "\"")), STDERR_FILENO);
    }
    if (!positional.empty()) options.directory = positional[0];
  }
  if (const absl::Status status = options.Validate(); !status.ok()) return Fail(status, STDERR_FILENO);
  // A slash at the end has the kernel ask the daemon of a mount that is there, which may stand still.
  while (options.directory.size() > 1 && options.directory.back() == '/') options.directory.pop_back();
  // The daemon leaves its working directory later.
  char resolved[PATH_MAX];
  if (realpath(options.directory.c_str(), resolved) != nullptr) options.directory = resolved;
  if (!options.pid_file.empty() && options.pid_file[0] != '/' && getcwd(resolved, sizeof resolved) != nullptr) {
    options.pid_file = absl::StrCat(resolved, "/", options.pid_file);
  }
  if (options.log_file.empty()) {
    options.log_file = absl::StrCat(LocalStateDir(), "/fsd-", getpid(), ".log");
    const absl::Status made = options.foreground ? absl::OkStatus() : MakeStateDir();
    if (!made.ok()) return Fail(made, STDERR_FILENO);
  }
  // Inodes are small: with few arenas they lie close together.
  if (!options.swap) mallopt(M_ARENA_MAX, 2);
  return options.foreground ? Serve(options, STDERR_FILENO) : ServeInBackground(options);
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  nram::OpenStandardFds();
  // A server costs about five, and a shell's limit is often 1024. The unit has the same number.
  nram::RaiseDescriptorLimit(65'536);
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  return nram::Main(argc, argv);
}
