// nram bundle: collects the files and figures that a report of a bug needs.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/version.h"
#include "tools/nram/bundle.h"
#include "tools/nram/command.h"

extern char** environ;

namespace nram {
namespace {

constexpr size_t kLogBytesMax = 256 << 10;  // the end of each
constexpr size_t kLogsMax = 50;
constexpr size_t kFactBytesMax = 64 << 10;
constexpr int64_t kProgramMs = 30'000;
constexpr char kConfiguration[] = "/etc/nram";

struct BundleFlags {
  std::string pool;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
  }
};

// A folder that goes away with this object.
class Folder {
 public:
  static absl::StatusOr<Folder> Make() {
    const char* const given = std::getenv("TMPDIR");
    const std::string place = given == nullptr || *given == '\0' ? "/tmp" : given;
    std::string pattern = place + "/nram-bundle.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) return ErrnoStatus(errno, "create a directory in " + place);
    return Folder(pattern);
  }
  Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

struct Output {
  std::string out;
  std::string errors;  // with the program's end, if that was not a good one
};

// The output of a program, which has kProgramMs.
Output OutputOf(const std::vector<std::string>& words, const std::string& scratch) {
  const std::string scratch_errors = scratch + ".errors";
  const UniqueFd out(open(scratch.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const UniqueFd err(open(scratch_errors.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const UniqueFd in(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!out.valid() || !err.valid() || !in.valid()) return {"", "(it could not be run)\n"};
  SubprocessOptions how;
  how.in = in.get();
  how.out = out.get();
  how.err = err.get();
  how.close_others = true;
  auto program = Subprocess::Start(words, how);
  if (!program.ok()) return {"", absl::StrCat("(it could not be run: ", program.status().message(), ")\n")};
  const auto ended = program->WaitUntil(DeadlineAfterMs(kProgramMs));
  Output output{ReadFile(scratch).value_or(""), ReadFile(scratch_errors).value_or("")};
  unlink(scratch.c_str());
  unlink(scratch_errors.c_str());
  if (!ended.has_value()) {
    absl::StrAppend(&output.errors, "(it did not end in ", kProgramMs / 1000, " s)\n");
  } else if (!ended->ok()) {
    absl::StrAppend(&output.errors, "(exit code ", ended->code, ", signal ", ended->signal, ")\n");
  }
  return output;
}

// The output of this program's commands about the pool and this machine's doors.
absl::Status AddCommands(const BundleFlags& flags, const std::string& folder) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"status", "--json"}, {"df", "--json"}, {"doctor", "--json"}, {"swaps", "--json"}}) {
    std::vector<std::string> command = {"/proc/self/exe"};
    command.insert(command.end(), words.begin(), words.end());
    if (!flags.pool.empty() && words[0] != "doctor" && words[0] != "swaps") command.push_back("--pool=" + flags.pool);
    const Output output = OutputOf(command, folder + "/scratch");
    const std::string name = absl::StrCat("commands/", words[0]);
    NRAM_RETURN_IF_ERROR(AddFile(folder, name + ".json", output.out));
    if (!output.errors.empty()) NRAM_RETURN_IF_ERROR(AddFile(folder, name + ".errors.txt", output.errors));
  }
  return absl::OkStatus();
}

std::string ProgramsOfNram() {
  std::string text;
  for (const int pid : ListProcesses()) {
    const std::string name = ProcessName(pid);
    const std::string base = absl::StrCat("/proc/", pid);
    std::string line = ReadFile(base + "/cmdline").value_or("");
    // A swap area's daemon has an @ in front of its name.
    if (!absl::StrContains(name, "nram") && !absl::StrContains(line.substr(0, 200), "nram-fsd")) continue;
    std::replace(line.begin(), line.end(), '\0', ' ');
    absl::StrAppend(&text, "pid ", pid, " (", name, "): ", line, "\n");
    for (const absl::string_view of_status : absl::StrSplit(ReadFile(base + "/status").value_or(""), '\n')) {
      for (const char* const field : {"State:", "Uid:", "VmRSS:", "VmLck:", "VmSwap:", "Threads:"}) {
        if (absl::StartsWith(of_status, field)) absl::StrAppend(&text, "  ", of_status, "\n");
      }
    }
    absl::StrAppend(&text, "  oom_score_adj: ", ReadLine(base + "/oom_score_adj"),
                    "\n  cgroup: ", ReadLine(base + "/cgroup"), "\n");
  }
  return text.empty() ? "no process of nram runs here\n" : text;
}

absl::Status AddOptions(const std::string& folder) {
  NRAM_RETURN_IF_ERROR(AddFile(folder, "options/processes.txt", ProgramsOfNram()));
  std::string variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (absl::StartsWith(*variable, "NRAM_")) absl::StrAppend(&variables, *variable, "\n");
  }
  NRAM_RETURN_IF_ERROR(AddFile(folder, "options/environment.txt", variables));
  for (const std::string& name : ListDirectory(kConfiguration)) {
    const std::string path = absl::StrCat(kConfiguration, "/", name);
    struct stat stat {};
    if (MayBeSecret(path) || lstat(path.c_str(), &stat) != 0 || !S_ISREG(stat.st_mode)) continue;
    const auto text = ReadFile(path);
    NRAM_RETURN_IF_ERROR(AddFile(folder, "options/etc-" + name,
                                 text.ok() ? LastOf(*text, kFactBytesMax) : std::string(text.status().message())));
  }
  return absl::OkStatus();
}

// The end of a file, or why it cannot be had. Links are not followed.
std::string EndOf(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat stat {};
  if (!fd.valid() || fstat(fd.get(), &stat) != 0) return std::string(ErrnoStatus(errno, path).message()) + "\n";
  if (!S_ISREG(stat.st_mode)) return absl::StrCat(path, " is not a regular file\n");
  const auto size = static_cast<size_t>(stat.st_size);
  std::string text(std::min(size, kLogBytesMax), '\0');
  const ssize_t n = pread(fd.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return size <= kLogBytesMax ? text
                              : absl::StrCat("(", size - text.size(), " bytes before this are left out)\n", text);
}

absl::Status AddLogs(const std::string& folder) {
  // Not deeper: a swap area's directory has its daemon's mount, and a look there may wait for it.
  const std::string state = LocalStateDir();
  std::vector<std::string> logs;
  for (const std::string& name : ListDirectory(state)) {
    const std::string path = absl::StrCat(state, "/", name);
    if (absl::EndsWith(name, ".log")) logs.push_back(path);
  }
  for (const std::string& name : ListDirectory(state + "/swap")) {
    logs.push_back(absl::StrCat(state, "/swap/", name, "/log"));
  }
  std::sort(logs.begin(), logs.end());
  logs.resize(std::min(logs.size(), kLogsMax));
  for (const std::string& path : logs) {
    const std::string name = absl::StrReplaceAll(path.substr(state.size() + 1), {{"/", "-"}});
    NRAM_RETURN_IF_ERROR(AddFile(folder, "logs/" + name, EndOf(path)));
  }
  if (access("/run/systemd/system", F_OK) != 0) return absl::OkStatus();
  const Output journal = OutputOf({"journalctl", "--no-pager", "-n", "2000", "-u", "nram-*"}, folder + "/scratch");
  return AddFile(folder, "logs/journal.txt", LastOf(journal.out + journal.errors, kLogBytesMax));
}

absl::Status AddFacts(const std::string& folder) {
  struct utsname kernel {};
  uname(&kernel);
  NRAM_RETURN_IF_ERROR(AddFile(folder, "kernel/version.txt",
                               absl::StrCat(kernel.sysname, " ", kernel.release, " ", kernel.version, " ",
                                            kernel.machine, "\n", ReadFile("/etc/os-release").value_or(""))));
  for (const char* const path :
       {"/proc/meminfo", "/proc/vmstat", "/proc/swaps", "/proc/loadavg", "/proc/uptime", "/proc/pressure/memory",
        "/proc/pressure/cpu", "/proc/pressure/io", "/proc/net/sockstat", "/proc/net/snmp", "/proc/self/cgroup",
        "/proc/self/limits", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
        "/sys/kernel/mm/transparent_hugepage/enabled"}) {
    const auto text = ReadFile(path);
    if (!text.ok()) continue;
    const std::string name = absl::StrReplaceAll(std::string(path).substr(1), {{"/", "-"}});
    NRAM_RETURN_IF_ERROR(AddFile(folder, absl::StrCat("kernel/", name, ".txt"), LastOf(*text, kFactBytesMax)));
  }
  std::string settings;
  for (const char* const directory : {"vm", "net/core", "net/ipv4"}) {
    std::vector<std::string> names = ListDirectory(absl::StrCat("/proc/sys/", directory));
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const std::string path = absl::StrCat("/proc/sys/", directory, "/", name);
      struct stat stat {};
      // Some of these are secrets, or make the kernel do something.
      if (MayBeSecret(path) || ::stat(path.c_str(), &stat) != 0 || !S_ISREG(stat.st_mode)) continue;
      if ((stat.st_mode & 0444) == 0444) absl::StrAppend(&settings, directory, "/", name, " = ", ReadLine(path), "\n");
    }
  }
  NRAM_RETURN_IF_ERROR(AddFile(folder, "kernel/settings.txt", LastOf(settings, kFactBytesMax)));
  std::string mounts;
  for (const absl::string_view line : absl::StrSplit(ReadFile("/proc/self/mountinfo").value_or(""), '\n')) {
    if (absl::StrContains(line, "fuse.nram")) absl::StrAppend(&mounts, line, "\n");
  }
  return AddFile(folder, "kernel/mounts.txt", mounts);
}

absl::Status Collect(const BundleFlags& flags, const std::string& folder) {
  NRAM_RETURN_IF_ERROR(AddFile(folder, "version.txt", absl::StrCat("nram ", kVersion, "\n")));
  NRAM_RETURN_IF_ERROR(AddCommands(flags, folder));
  NRAM_RETURN_IF_ERROR(AddOptions(folder));
  NRAM_RETURN_IF_ERROR(AddLogs(folder));
  return AddFacts(folder);
}

std::string UsualName() {
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  const time_t now = time(nullptr);
  struct tm utc {};
  gmtime_r(&now, &utc);
  char when[32];
  strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &utc);
  return absl::StrCat("nram-bundle-", host, "-", when, ".tar.gz");
}

absl::Status Make(const BundleFlags& flags, const std::string& file) {
  // It says much of a machine, so only its maker reads it, and nothing is written over.
  const UniqueFd out(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!out.valid()) return ErrnoStatus(errno, absl::StrCat("create ", file));
  absl::Status status;
  {
    absl::StatusOr<Folder> folder = Folder::Make();
    status = folder.status();
    if (status.ok()) status = Collect(flags, folder->path());
    if (status.ok()) {
      SubprocessOptions how;
      how.out = out.get();
      how.close_others = true;
      auto tar =
          Subprocess::Start({"tar", "-czf", "-", "-C", folder->path(), "--transform=s,^\\.,nram-bundle,", "."}, how);
      status = tar.status();
      if (status.ok()) {
        const auto ended = tar->WaitUntil(DeadlineAfterMs(kProgramMs));
        if (!ended.has_value() || !ended->ok()) status = absl::FailedPreconditionError("tar has failed");
      }
    }
  }
  if (!status.ok()) unlink(file.c_str());
  return status;
}

int Run(BundleFlags& flags, const Invocation& given) {
  if (given.words.size() > 1) {
    return ToExitCode(absl::InvalidArgumentError(absl::StrCat("unexpected word \"", given.words[1], "\"")),
                      "nram bundle");
  }
  const std::string file = given.words.empty() ? UsualName() : given.words[0];
  if (const absl::Status made = Make(flags, file); !made.ok()) return ToExitCode(made, "nram bundle");
  printf("%s: look through it before you send it: it names hosts, users' directories and processes of nram.\n",
         file.c_str());
  return 0;
}

}  // namespace

Command BundleCommand() {
  return DefineCommand<BundleFlags>(
      {"bundle", "collect data for a bug report", R"(usage: nram bundle [FILE] [flags]

Writes a new FILE (default: nram-bundle-HOST-TIME.tar.gz here) with the version; the output of
nram status, df, doctor and swaps; the command lines of nram's processes, the variables NRAM_*
and the files of /etc/nram; the ends of the logs in the state directory and in the journal; and
facts about the kernel: memory, pressure, settings, nram's mounts.

The bundle has no keys, certificates or page contents: their files are not read, and text that
looks like a key is left out of the rest. Only this user can read FILE. A server's logs are on
its host: run this command there too. A pool that does not answer is no error: the bundle says so.

)",
       R"(
example: sudo nram bundle && tar -tzf nram-bundle-*.tar.gz
)"},
      Words::kAny, &Run);
}

}  // namespace nram
