#include "client/run/untraced_start.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "client/run/helper_code.h"
#include "client/run/start_message.h"

namespace nram {
namespace {

constexpr int kScriptsMax = 4;  // as the kernel's: an interpreter may be a script

absl::Status Refused(const char* call) {
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EAGAIN) return ErrnoStatus(errno, call);
  return absl::PermissionDeniedError(absl::StrCat(call, ": ", strerror(errno)));
}

// The calls that tracing needs, on a child.
absl::Status TryTracing(pid_t child, int descriptor) {
  static char mark = 0;
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  if (!pidfd.valid()) return Refused("pidfd_open(2)");
  const UniqueFd copy(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), descriptor, 0)));
  if (!copy.valid()) return Refused("pidfd_getfd(2)");
  if (syscall(SYS_kcmp, getpid(), child, KCMP_VM, 0, 0) < 0) return Refused("kcmp(2)");
  if (ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0) return Refused("ptrace(2)");
  char read = 0;
  const iovec local = {&read, 1};
  const iovec remote = {&mark, 1};
  if (process_vm_readv(child, &local, 1, &remote, 1, 0) != 1) return Refused("process_vm_readv(2)");
  if (process_vm_writev(child, &local, 1, &remote, 1, 0) != 1) return Refused("process_vm_writev(2)");
  return absl::OkStatus();
}

absl::Status DoesNotLoad(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": ", why,
                   ". Programs may not be traced here, so nram run needs a library that such a program does not load"));
}

// The program that reads a script, by the script's first line. Nothing: it is no script.
std::optional<std::string> InterpreterOf(absl::string_view head) {
  if (!absl::ConsumePrefix(&head, "#!")) return std::nullopt;
  head = head.substr(0, head.find('\n'));
  head.remove_prefix(std::min(head.size(), head.find_first_not_of(" \t")));
  head = head.substr(0, head.find_first_of(" \t\r"));
  if (head.empty()) return std::nullopt;
  return std::string(head);
}

// The program that loads a program's libraries; empty: there is none.
std::string LoaderOf(int file, const Elf64_Ehdr& header) {
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    const auto at = static_cast<off_t>(header.e_phoff + static_cast<uint64_t>(i) * header.e_phentsize);
    if (pread(file, &part, sizeof(part), at) != sizeof(part)) break;
    if (part.p_type != PT_INTERP) continue;
    char name[256] = {};
    const size_t bytes = std::min<size_t>(part.p_filesz, sizeof(name) - 1);
    return pread(file, name, bytes, static_cast<off_t>(part.p_offset)) > 0 ? std::string(name) : std::string();
  }
  return std::string();
}

}  // namespace

absl::Status MayTrace() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  // Not a Subprocess: this is about tracing it.
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    // Until the other process ends it, or has ended.
    char none;
    out.reset();
    (void)!read(in.get(), &none, 1);
    _exit(0);
  }
  const absl::Status may = TryTracing(child, in.get());
  kill(child, SIGKILL);
  while (waitpid(child, nullptr, __WALL) < 0 && errno == EINTR) {
  }
  return may;
}

absl::Status CheckLoads(const std::string& path) {
  std::string at = path;
  for (int scripts = 0; scripts <= kScriptsMax; ++scripts) {
    const UniqueFd file(open(at.c_str(), O_RDONLY | O_CLOEXEC));
    char head[256] = {};
    ssize_t got = 0;
    if (!file.valid() || (got = pread(file.get(), head, sizeof(head), 0)) < 0) return ErrnoStatus(errno, at);
    struct stat info;
    if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, at);
    if ((info.st_mode & (S_ISUID | S_ISGID)) != 0 || fgetxattr(file.get(), "security.capability", nullptr, 0) > 0) {
      return DoesNotLoad(at, "a program with its own privileges (setuid, file capabilities)");
    }
    if (const auto interpreter = InterpreterOf({head, static_cast<size_t>(got)}); interpreter.has_value()) {
      at = *interpreter;
      continue;
    }
    Elf64_Ehdr header;
    memcpy(&header, head, sizeof(header));
    if (got < static_cast<ssize_t>(sizeof(header)) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64) {
      return DoesNotLoad(at, "not a program for x86-64");
    }
    const std::string loader = LoaderOf(file.get(), header);
    if (loader.empty()) return DoesNotLoad(at, "a static program");
    if (!absl::StrContains(loader, "/ld-linux-x86-64.so")) {
      return DoesNotLoad(at, absl::StrCat("a program of another C library (", loader, ")"));
    }
    return absl::OkStatus();
  }
  return DoesNotLoad(path, "a script of a script of a script");
}

absl::StatusOr<std::unique_ptr<UntracedStart>> UntracedStart::Make(const std::string& library) {
  if (library.find_first_of(": ") != std::string::npos) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, ": this path cannot be in $LD_PRELOAD, as it has a colon or a space"));
  }
  if (access(library.c_str(), R_OK) != 0) return ErrnoStatus(errno, library);
  auto start = std::unique_ptr<UntracedStart>(new UntracedStart());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return ErrnoStatus(errno, "socketpair");
  start->ours_ = UniqueFd(ends[0]);
  start->its_ = UniqueFd(ends[1]);
  StartOrder order;
  order.base = HelperPlace::kBase;
  order.bytes = HelperPlace::kBytes;
  order.message = HelperPlace::kMessage;
  order.stack_top = HelperPlace::kStackTop;
  order.entry = HelperEntry();
  order.code_bytes = HelperCode().size();
  static_assert(StartOrder::kCodeMax <= 4096);
  if (HelperCode().size() > sizeof(order.code)) return absl::InternalError("the helper's code is too large");
  memcpy(order.code, HelperCode().data(), HelperCode().size());
  if (send(start->ours_.get(), &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order)) {
    return ErrnoStatus(errno, "a socket to the program");
  }
  const std::string preload = absl::StrCat(kPreloadVariable, "=");
  const std::string socket = absl::StrCat(kStartVariable, "=");
  std::string loaded = absl::StrCat(preload, library);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    absl::string_view others = *variable;
    if (absl::StartsWith(others, socket)) continue;  // of another command
    if (!absl::ConsumePrefix(&others, preload)) {
      start->environment_.emplace_back(*variable);
    } else if (!others.empty()) {
      absl::StrAppend(&loaded, ":", others);
    }
  }
  start->environment_.push_back(std::move(loaded));
  start->environment_.push_back(absl::StrCat(socket, ends[1]));
  return start;
}

void UntracedStart::Inherit() const {
  fcntl(its_.get(), F_SETFD, 0);
  // As long as there is no helper, and for a program that this one executes.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

absl::StatusOr<std::unique_ptr<Helper>> UntracedStart::TakeHelper() {
  StartReport report;
  const ssize_t got = recv(ours_.get(), &report, sizeof(report), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return nullptr;
  if (got <= 0) return absl::UnavailableError("the program has closed a descriptor that its start-up library needs");
  if (got != sizeof(report) || report.magic != kStartMagic) return absl::InternalError("invalid report of the start");
  if (report.step == kStartMap && report.error == EEXIST) {
    return absl::FailedPreconditionError("the program uses the address that the helper needs");
  }
  static constexpr const char* kSteps[] = {"start", "mmap", "mprotect", "madvise", "pidfd_open", "clone"};
  if (report.error != 0) {
    const auto step = static_cast<size_t>(report.step);
    return ErrnoStatus(report.error, absl::StrCat(kSteps[step < std::size(kSteps) ? step : 0], " in the program"));
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, report.helper, 0)));
  if (!pidfd.valid()) return ErrnoStatus(errno, "pidfd_open of the helper");
  auto helper = std::make_unique<Helper>(report.helper, std::move(pidfd), std::move(ours_), report.socket,
                                         Helper::Reach::kByHelper);
  NRAM_RETURN_IF_ERROR(helper->Settle(report.pidfd));
  return helper;
}

}  // namespace nram
