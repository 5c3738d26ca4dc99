#include "tools/nram/local_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/poll_until.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path);
constexpr int64_t kLookMs = 5;         // whether a server has written that it is ready
constexpr int64_t kKilledMs = 60'000;  // the kernel frees all of a killed server's memory first

// Field 22 of /proc/PID/stat; 0 if there is no such process, or only its zombie.
uint64_t StartTime(pid_t pid) {
  const auto text = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) return 0;
  // The name in parentheses may hold spaces.
  const std::vector<std::string> fields = absl::StrSplit(text->substr(text->rfind(')') + 2), ' ');
  uint64_t start = 0;
  if (fields.size() < 20 || fields[0] == "Z" || !absl::SimpleAtoi(fields[19], &start)) return 0;
  return start;
}

bool Alive(const LocalServer& server) { return StartTime(server.pid) == server.start_time && server.start_time != 0; }

std::string PathOf(const std::string& directory, int number, absl::string_view suffix) {
  return absl::StrCat(directory, "/", number, ".", suffix);
}

std::string LogTail(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return "";
  return text->size() > 1000 ? "..." + text->substr(text->size() - 1000) : *text;
}

bool Interrupted(const LocalPoolOptions& options) { return options.interrupted != nullptr && *options.interrupted; }

// Removes all files of StartLocalPool and its servers, and nothing else.
void RemoveFiles(const std::string& directory) {
  for (const std::string& name : ListDirectory(directory)) {
    for (const char* suffix : {".pid", ".log", ".ready", ".socket", ".socket.data"}) {
      int number = 0;
      if (absl::EndsWith(name, suffix) && absl::SimpleAtoi(name.substr(0, name.size() - strlen(suffix)), &number)) {
        unlink((directory + "/" + name).c_str());
      }
    }
  }
  unlink((directory + "/pool").c_str());
  unlink((directory + "/lock").c_str());
  rmdir(directory.c_str());
}

absl::StatusOr<LocalServer> Spawn(const std::string& program, const LocalPoolOptions& options, int number) {
  const std::string ready = PathOf(options.directory, number, "ready");
  unlink(ready.c_str());
  const std::string socket = PathOf(options.directory, number, "socket");
  // The machine's own certificates are for its servers, not for a user's.
  std::vector<std::string> words = {program, "--port=0", "--tls-dir=" + options.tls_dir,
                                    absl::StrCat("--ready-file=", ready)};
  const bool has_socket = socket.size() + strlen(".data") < kSocketPathMax;
  if (has_socket) words.push_back("--socket=" + socket);
  if (!options.tcp) words.push_back("--listen=none");
  if (!has_socket && !options.tcp) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path ", options.directory, " is too long for sockets: set a shorter NRAM_STATE_DIR"));
  }
  if (options.pretend_hosts) words.push_back(absl::StrCat("--pretend-host=pretended-", number));
  words.insert(words.end(), options.server_flags.begin(), options.server_flags.end());
  const std::string log_path = PathOf(options.directory, number, "log");
  UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!log.valid()) return ErrnoStatus(errno, absl::StrCat("create ", log_path));
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  SubprocessOptions how;
  how.in = null.get();
  how.out = how.err = log.get();
  how.close_others = true;  // no reader waits for the server to close a descriptor that was meant for this command
  how.new_session = !options.die_with_parent;
  how.death_signal = options.die_with_parent ? SIGKILL : 0;
  how.processor = options.processor;
  NRAM_ASSIGN_OR_RETURN(Subprocess server, Subprocess::Start(words, how));
  // The server outlives this command, and StopLocalPool finds it by its number.
  const pid_t pid = server.Release();
  return LocalServer{number, pid, StartTime(pid), has_socket ? socket : "", 0};
}

absl::Status WritePidFile(const LocalPoolOptions& options, const LocalServer& server) {
  const nlohmann::json pid = {{"pid", server.pid},
                              {"start_time", server.start_time},
                              {"socket", server.socket},
                              {"control_port", server.control_port}};
  return WriteFileAtomically(PathOf(options.directory, server.number, "pid"), pid.dump() + "\n");
}

absl::Status AwaitReady(const LocalPoolOptions& options, int64_t deadline_ns, LocalServer* server) {
  const std::string ready = PathOf(options.directory, server->number, "ready");
  const std::string log = PathOf(options.directory, server->number, "log");
  absl::StatusOr<std::string> text;
  bool ended = false;
  const bool in_time = PollUntil(deadline_ns, kLookMs, [&] {
    text = ReadFile(ready);
    ended = !text.ok() && waitpid(server->pid, nullptr, WNOHANG) == server->pid;
    return text.ok() || ended || Interrupted(options);
  });
  if (Interrupted(options)) return absl::CancelledError("interrupted; no server was left");
  if (ended) {
    return absl::UnavailableError(absl::StrCat("memory server ", server->number, " did not start:\n", LogTail(log)));
  }
  if (!in_time) {
    return absl::DeadlineExceededError(absl::StrCat("memory server ", server->number, " is not ready; see ", log));
  }
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  server->control_port = json.value("control_port", 0);
  unlink(ready.c_str());
  return absl::OkStatus();
}

void End(const std::vector<LocalServer>& servers, int64_t timeout_ms) {
  for (const LocalServer& server : servers) {
    if (Alive(server)) kill(server.pid, SIGTERM);
  }
  const int64_t deadline_ns = DeadlineAfterMs(timeout_ms);
  for (const LocalServer& server : servers) {
    const UniqueFd process = OpenProcess(server.pid);
    if (process.valid() && Alive(server) && !AwaitEnd(process.get(), deadline_ns)) {
      kill(server.pid, SIGKILL);
      AwaitEnd(process.get(), DeadlineAfterMs(kKilledMs));
    }
    waitpid(server.pid, nullptr, WNOHANG);  // if it is this process's child
  }
}

}  // namespace

std::string LocalServer::Address() const {
  return control_port != 0 ? absl::StrCat("127.0.0.1:", control_port) : absl::StrCat("unix:", socket);
}

std::vector<LocalServer> FindLocalPool(const std::string& directory) {
  std::vector<LocalServer> servers;
  for (const std::string& name : ListDirectory(directory)) {
    if (!absl::EndsWith(name, ".pid")) continue;
    const auto text = ReadFile(directory + "/" + name);
    LocalServer server;
    if (!text.ok() || !absl::SimpleAtoi(name.substr(0, name.size() - 4), &server.number)) continue;
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    server.pid = json.value("pid", 0);
    server.start_time = json.value("start_time", uint64_t{0});
    server.socket = json.value("socket", "");
    server.control_port = json.value("control_port", 0);
    if (Alive(server)) servers.push_back(server);
  }
  return servers;
}

absl::StatusOr<std::vector<LocalServer>> StartLocalPool(const LocalPoolOptions& given) {
  NRAM_ASSIGN_OR_RETURN(const std::string program, FindProgram("nram-memserver", "memserver", "NRAM_MEMSERVER"));
  NRAM_RETURN_IF_ERROR(MakeStateDir(given.directory));
  // Clients are elsewhere, and see through links.
  LocalPoolOptions options = given;
  char resolved[PATH_MAX];
  if (realpath(given.directory.c_str(), resolved) != nullptr) options.directory = resolved;
  // One `nram up` or `nram down` at a time.
  UniqueFd lock(open((options.directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid()) return ErrnoStatus(errno, absl::StrCat("create ", options.directory, "/lock"));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("another nram up or down is working in ", options.directory));
  }
  if (const auto running = FindLocalPool(options.directory); !running.empty()) {
    return absl::AlreadyExistsError(absl::StrCat("a local pool of ", running.size(), " servers is already running (",
                                                 options.directory, "/pool); `nram down` ends it"));
  }
  const int64_t deadline_ns = DeadlineAfterMs(options.timeout_ms);
  std::vector<LocalServer> servers;
  absl::Status status;
  for (int i = 0; i < options.servers && status.ok(); ++i) {
    absl::StatusOr<LocalServer> server = Spawn(program, options, i);
    status = server.status();
    if (!server.ok()) break;
    servers.push_back(*server);
    // Written before the server is ready: after an interruption `nram down` finds all servers.
    status = WritePidFile(options, *server);
  }
  std::string hosts = "# Written by nram up.\n";
  for (LocalServer& server : servers) {
    if (status.ok()) status = AwaitReady(options, deadline_ns, &server);
    if (!status.ok()) break;
    absl::StrAppend(&hosts, server.Address(), "\n");
    status = WritePidFile(options, server);
  }
  if (status.ok()) status = WriteFileAtomically(options.directory + "/pool", hosts);
  if (!status.ok()) {
    End(servers, 2'000);
    for (const LocalServer& server : servers) unlink(PathOf(options.directory, server.number, "pid").c_str());
    // The logs of servers that failed stay, for the message names them.
    if (absl::IsCancelled(status)) RemoveFiles(options.directory);
    return status;
  }
  return servers;
}

absl::StatusOr<int> StopLocalPool(const std::string& directory, int64_t timeout_ms) {
  NRAM_RETURN_IF_ERROR(CheckStateDir(directory));
  UniqueFd lock(open((directory + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  if (!lock.valid()) return 0;
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("another nram up or down is working in ", directory));
  }
  const std::vector<LocalServer> servers = FindLocalPool(directory);
  End(servers, timeout_ms);
  RemoveFiles(directory);
  return static_cast<int>(servers.size());
}

}  // namespace nram
