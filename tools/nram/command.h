#ifndef NRAM_TOOLS_NRAM_COMMAND_H_
#define NRAM_TOOLS_NRAM_COMMAND_H_

// What the subcommands of `nram` share: a table of them, exit codes, finding the pool.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/args.h"
#include "client/transport/control_client.h"
#include "client/transport/endpoint.h"

namespace nram {

// Exit codes: 0 done; 1 it failed; 2 the command line is wrong. ToExitCode prints the message and chooses.
int ToExitCode(const absl::Status& status, absl::string_view program);

struct Command {
  const char* name;
  const char* summary;  // one line
  const char* help;     // the whole text of --help
  // Registers the flags, so that --help and completion can be held against them; `run` is called with the words after
  // the name.
  int (*run)(const std::vector<std::string>& args);
  std::vector<std::string> (*flags)();
};

absl::Span<const Command> Commands();

// Parses; prints help or the error. True: go on. False: exit with *code.
bool ParseOrExit(ArgParser* parser, const Command& command, const std::vector<std::string>& args,
                 std::vector<std::string>* positional, int* code);
const Command& FindCommand(absl::string_view name);

// One server of the pool that a command asks, and what it said.
struct PoolMember {
  Endpoint endpoint;
  std::unique_ptr<ControlClient> control;
};

inline constexpr int64_t kAskTimeoutMs = 3'000;

// The pool that `spec` (a --pool flag, may be empty) means. Nothing is asked yet.
absl::StatusOr<std::vector<PoolMember>> OpenMembers(const std::string& spec);

// Statistics of all members, asked at once; an error for those that do not answer within kAskTimeoutMs.
std::vector<absl::StatusOr<ServerStatistics>> AskStatistics(absl::Span<const PoolMember> members);

// The subcommands, each in its own file.
const Command& UpCommand();
const Command& DownCommand();
const Command& DfCommand();
const Command& MountCommand();
const Command& UmountCommand();
const Command& StatusCommand();
const Command& RegionsCommand();
const Command& DrainCommand();
const Command& SortCommand();
const Command& SwaponCommand();
const Command& SwapoffCommand();
const Command& SwapsCommand();
const Command& DoctorCommand();
const Command& BenchCommand();
const Command& CompletionCommand();

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_COMMAND_H_
