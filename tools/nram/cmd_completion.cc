// nram completion: for shells.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

std::string Bash() {
  std::vector<std::string> names;
  std::string cases;
  for (const Command& command : Commands()) {
    names.push_back(command.name);
    const auto dashed = [](std::string* out, const std::string& flag) { absl::StrAppend(out, "--", flag); };
    const std::string words = absl::StrJoin(command.flags, " ", dashed);
    absl::StrAppend(&cases, "    ", command.name, ") words=\"", words, words.empty() ? "" : " ", "--help\" ;;\n");
  }
  return absl::StrCat(R"(_nram() {
  local current="${COMP_WORDS[COMP_CWORD]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W ")",
                      absl::StrJoin(names, " "), R"( help --help --version" -- "$current"))
    return
  fi
  case "${COMP_WORDS[1]}" in
)",
                      cases, R"(    help) words=")", absl::StrJoin(names, " "), R"(" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _nram nram
)");
}

int Run(NoFlags&, const Invocation& given) {
  const std::vector<std::string>& words = given.words;
  if (words.size() != 1 || (words[0] != "bash" && words[0] != "zsh")) {
    return ToExitCode(absl::InvalidArgumentError("which shell? Expected bash or zsh"), "nram completion");
  }
  if (words[0] == "zsh") std::cout << "autoload -U +X bashcompinit && bashcompinit\n";
  std::cout << Bash();
  return 0;
}

}  // namespace

Command CompletionCommand() {
  return DefineCommand<NoFlags>(
      {"completion", "print a completion script for a shell", R"(usage: nram completion bash|zsh

Prints a script that makes the shell complete nram's commands and flags.

)",
       R"(
example: source <(nram completion bash)
)"},
      Words::kAny, &Run);
}

}  // namespace nram
