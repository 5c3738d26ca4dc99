#include "tools/nram/command.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/tls/tls_dir.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"

namespace nram {
namespace {

// Calls `ask` for each number below `count`, many at the same time.
void ForAllAtOnce(size_t count, absl::FunctionRef<void(size_t)> ask) {
  // A thread for each member could be thousands; a few threads take turns.
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < std::min<size_t>(count, 32); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < count; i = next++) ask(i);
    });
  }
  for (auto& thread : threads) thread.join();
}

// The JSON of this run.
struct JsonOutput {
  bool wanted = false;
  bool on_stderr = false;
  bool printed = false;
  std::string error;  // the first that was printed
};

JsonOutput& Json() {
  static JsonOutput* const output = new JsonOutput;
  return *output;
}

}  // namespace

void PrintError(absl::string_view message, absl::string_view program) {
  std::cerr << program << ": " << message << std::endl;
  if (Json().error.empty()) Json().error = std::string(message);
}

int ToExitCode(const absl::Status& status, absl::string_view program) {
  if (status.ok()) return 0;
  PrintError(status.message(), program);
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

void ExpectJson(const std::vector<std::string>& args, bool on_stderr) {
  Json().on_stderr = on_stderr;
  for (const std::string& arg : args) {
    if (arg == "--") return;
    if (arg == "--json" || arg == "--no-json") Json().wanted = arg == "--json";
  }
}

void PrintJson(const nlohmann::json& result, int indent) {
  (Json().on_stderr ? std::cerr : std::cout)
      << result.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  Json().printed = true;
}

int FinishOutput(int code, absl::string_view program) {
  if (Json().wanted && !Json().printed && code != 0 && !Json().error.empty()) {
    const nlohmann::json failure = {{"error", Json().error}};
    PrintJson(failure, Json().on_stderr ? -1 : 2);
  }
  std::cout.flush();
  errno = 0;
  // The same stream below; an earlier failure has left its mark there.
  bool failed = fflush(stdout) != 0 || ferror(stdout) != 0 || !std::cout;
  int error = errno;
  // Some filesystems say only at the end that they could not write.
  if (!failed) {
    const int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    failed = copy >= 0 && close(copy) != 0;
    error = errno;
  }
  if (!failed) return code;
  std::cerr << program << ": the standard output could not be written"
            << (error != 0 ? absl::StrCat(": ", strerror(error)) : " completely") << std::endl;
  return code != 0 ? code : 1;
}

const std::vector<Command>& Commands() {
  static const std::vector<Command>* const commands = new std::vector<Command>{
      UpCommand(),     DownCommand(),    MountCommand(),    UmountCommand(),   DfCommand(),         StatusCommand(),
      TopCommand(),    RegionsCommand(), SnapshotCommand(), DrainCommand(),    SwaponCommand(),     SwapoffCommand(),
      SwapsCommand(),  SortCommand(),    RunCommand(),      VersionsCommand(), CheckpointCommand(), RestoreCommand(),
      KeygenCommand(), DoctorCommand(),  BundleCommand(),   BenchCommand(),    CompletionCommand()};
  return *commands;
}

std::optional<int> ParseOrExit(ArgParser* parser, const std::string& help, Words words, Invocation* given) {
  const absl::Status status = parser->Parse(given->args, &given->words);
  if (!status.ok()) {
    absl::string_view message = status.message();
    absl::ConsumePrefix(&message, parser->program() + ": ");
    PrintError(message, parser->program());
    return 2;
  }
  if (parser->help()) {
    std::cout << help;
    return 0;
  }
  if (words == Words::kNone && !given->words.empty()) {
    return ToExitCode(absl::InvalidArgumentError(absl::StrCat("unexpected word \"", given->words[0], "\"\nTry '",
                                                              parser->program(), " --help'.")),
                      parser->program());
  }
  return std::nullopt;
}

void RegisterTlsDir(ArgParser* parser) {
  parser->Custom("tls-dir", &SetTlsDir,
                 {"DIR",
                  "certificates (nram keygen), for servers that require them (default:\n"
                  "$NRAM_TLS_DIR, else /etc/nram/tls); none: no certificates"});
}

absl::StatusOr<std::vector<PoolMember>> OpenMembers(const std::string& flag, const std::string& tls_dir,
                                                    FoundMembers* where) {
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(flag));
  NRAM_ASSIGN_OR_RETURN(FoundMembers found, FindPool(spec));
  std::vector<PoolMember> members;
  NRAM_ASSIGN_OR_RETURN(const std::shared_ptr<TlsContext> tls, FindClientTls(found.servers, tls_dir));
  constexpr uint64_t kDescriptorsEach = 3, kOthers = 256;  // of a control connection
  RaiseDescriptorLimit(kDescriptorsEach * found.servers.size() + kOthers);
  for (const Endpoint& endpoint : found.servers) members.push_back({endpoint, ControlClient::Create(endpoint, tls)});
  if (where != nullptr) *where = std::move(found);
  return members;
}

std::vector<absl::StatusOr<ServerStatistics>> AskStatistics(absl::Span<const PoolMember> members,
                                                            std::vector<int64_t>* took_ns) {
  if (took_ns != nullptr) took_ns->assign(members.size(), 0);
  std::vector<absl::StatusOr<ServerStatistics>> answers(members.size(), absl::UnknownError("not asked"));
  const int64_t deadline_ns = DeadlineAfterMs(kAskTimeoutMs);
  ForAllAtOnce(members.size(), [&](size_t i) {
    const int64_t began_ns = MonotonicNs();
    answers[i] = members[i].control->GetStatistics(deadline_ns);
    if (took_ns != nullptr) (*took_ns)[i] = MonotonicNs() - began_ns;
  });
  return answers;
}

std::vector<absl::StatusOr<std::vector<RegionInfo>>> AskRegions(absl::Span<const PoolMember> members,
                                                                const RegionsWish& wish) {
  std::vector<absl::StatusOr<std::vector<RegionInfo>>> answers(members.size(), absl::UnknownError("not asked"));
  const int64_t deadline_ns = DeadlineAfterMs(wish.timeout_ms);
  ForAllAtOnce(members.size(), [&](size_t i) {
    answers[i] = members[i].control->ListRegions(wish.orphans_only, wish.all_tenants, deadline_ns);
  });
  return answers;
}

}  // namespace nram
