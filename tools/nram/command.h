#ifndef NRAM_TOOLS_NRAM_COMMAND_H_
#define NRAM_TOOLS_NRAM_COMMAND_H_

// The common part of the subcommands of `nram`: how one is defined, exit codes, finding the pool.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/args.h"
#include "base/endpoint.h"
#include "client/transport/control_client.h"
#include "members/find_members.h"
#include "nlohmann/json_fwd.hpp"

namespace nram {

// Exit codes: 0 done; 1 it failed; 2 the command line is wrong. ToExitCode prints the message and chooses.
int ToExitCode(const absl::Status& status, absl::string_view program);

// Prints the message of an error, for commands with other exit codes.
void PrintError(absl::string_view message, absl::string_view program);

// Prints the command's result in JSON: on standard output, or on standard error if the command says so
// (CommandText::json_on_stderr). `indent` as nlohmann's dump(); -1: one line. Bytes that are no UTF-8 are replaced:
// names may have any bytes.
void PrintJson(const nlohmann::json& result, int indent = 2);

// Writes out the command's output. A command that was asked for JSON, and has failed before it printed any, prints the
// first error as {"error": ...}. Returns `code`, or 1 with a message if a part of the output could not be written (a
// full disk): a reader of the output must not take a part for the whole. Called once, at the end.
int FinishOutput(int code, absl::string_view program);

// A subcommand. DefineCommand makes one of a single registration of its flags.
struct Command {
  std::string name;
  std::string summary;           // one line
  std::string help;              // the whole text of --help
  std::vector<FlagShape> flags;  // for completion
  bool takes_words = false;      // beside flags
  // Takes the words after the name; returns the exit code.
  std::function<int(const std::vector<std::string>& args)> run;
};

const std::vector<Command>& Commands();

// The texts of --help around the table of flags.
struct CommandText {
  const char* name;
  const char* summary;
  const char* before;
  const char* after;        // from the blank line after the table on
  size_t table_width = 22;  // see ArgParser::Table
  bool json_on_stderr = false;  // standard output is for data
};

// The words of one run, for commands that need more than flags.
struct Invocation {
  std::vector<std::string> words;        // those that are not flags
  const std::vector<std::string>& args;  // all
  const ArgParser& parser;
};

enum class Words { kNone, kAny };

// To be called before the words of a command with the flag --json are parsed. FinishOutput then knows whether they ask
// for JSON, and PrintJson the stream of it.
void ExpectJson(const std::vector<std::string>& args, bool on_stderr);

// Parses into `given`; prints help or the error. Nothing: go on. Else exit with that code.
std::optional<int> ParseOrExit(ArgParser* parser, const std::string& help, Words words, Invocation* given);

// `Flags` is a struct with the flags' defaults and a method Register(ArgParser*), which registers each with its text;
// `run` gets the words of the command line.
template <typename Flags>
Command DefineCommand(const CommandText& text, Words words, int (*run)(Flags& flags, const Invocation& given)) {
  const std::string program = std::string("nram ") + text.name;
  Flags defaults;
  ArgParser registered(program);
  defaults.Register(&registered);
  Command command;
  command.name = text.name;
  command.summary = text.summary;
  command.help = text.before + registered.Table(text.table_width) + text.after;
  command.flags = registered.shapes();
  command.takes_words = words == Words::kAny;
  const bool has_json = std::any_of(command.flags.begin(), command.flags.end(),
                                    [](const FlagShape& flag) { return flag.name == "json"; });
  command.run = [program, help = command.help, words, run, has_json,
                 on_stderr = text.json_on_stderr](const std::vector<std::string>& args) {
    Flags flags;
    ArgParser parser(program);
    flags.Register(&parser);
    if (has_json) ExpectJson(args, on_stderr);
    Invocation given{{}, args, parser};
    const std::optional<int> code = ParseOrExit(&parser, help, words, &given);
    return FinishOutput(code.has_value() ? *code : run(flags, given), program);
  };
  return command;
}

// The flag --pool of most commands; OpenMembers reads it.
inline constexpr FlagHelp kPoolFlag = {"POOL",
                                       "host:port,..., a host file, dns:NAME[:PORT] or\n"
                                       "etcd:HOST[:PORT],.../NAME (default: see nram --help)"};

// The flag --tls-dir of commands that ask servers. It sets NRAM_TLS_DIR, which this process and its children look for.
void RegisterTlsDir(ArgParser* parser);

// For commands without flags of their own.
struct NoFlags {
  void Register(ArgParser*) {}
};

// One server of the pool that a command asks.
struct PoolMember {
  Endpoint endpoint;
  std::unique_ptr<ControlClient> control;
};

inline constexpr int64_t kAskTimeoutMs = 3'000;

// The servers of the pool that `spec` (a --pool flag, may be empty) names. Nothing is asked yet.
// `tls_dir`: certificates for it; "": the usual ones.
// *where: the source of the list of members, and when it was last heard, for people; "" for servers by name.
absl::StatusOr<std::vector<PoolMember>> OpenMembers(const std::string& spec, const std::string& tls_dir = "",
                                                    FoundMembers* where = nullptr);

// The statistics of all members, which are asked at once; an error for a member that does not answer within
// kAskTimeoutMs. `took_ns`: how long each took; may be null.
std::vector<absl::StatusOr<ServerStatistics>> AskStatistics(absl::Span<const PoolMember> members,
                                                            std::vector<int64_t>* took_ns = nullptr);

// The regions of all members, which are asked at once; an error for a member that does not answer within `timeout_ms`.
struct RegionsWish {
  bool orphans_only = false;
  bool all_tenants = false;
  int64_t timeout_ms = kAskTimeoutMs;
};
std::vector<absl::StatusOr<std::vector<RegionInfo>>> AskRegions(absl::Span<const PoolMember> members,
                                                                const RegionsWish& wish);

// Whether the two ends do not trust each other: the text says which lacks what.
inline bool IsOfTrust(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

// The subcommands, each in its own file.
Command UpCommand();
Command DownCommand();
Command DfCommand();
Command MountCommand();
Command UmountCommand();
Command StatusCommand();
Command TopCommand();
Command RegionsCommand();
Command DrainCommand();
Command SortCommand();
Command RunCommand();
Command SwaponCommand();
Command SwapoffCommand();
Command SwapsCommand();
Command DoctorCommand();
Command BundleCommand();
Command BenchCommand();
Command KeygenCommand();
Command VersionsCommand();
Command CheckpointCommand();
Command RestoreCommand();
Command SnapshotCommand();
Command CompletionCommand();

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_COMMAND_H_
