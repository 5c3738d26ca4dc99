// nram completion: for shells.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

// COMMANDS, FLAGS and CHOICES are put in. In zsh, compopt may be missing.
constexpr char kScript[] = R"(_nram() {
  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"
  local commands="COMMANDS" flags="" negations="" words="" flag="" prefix="" takes_words="" line kind i
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "$commands help --help --version" -- "$current"))
    return
  fi
  # After --, `nram run` takes a program, and then that program's words.
  for ((i = 2; i < COMP_CWORD; ++i)); do
    [ "${COMP_WORDS[i]}" = -- ] || continue
    if [ "$command" = run ] && [ "$before" = -- ] && [[ "$current" != */* ]]; then
      COMPREPLY=($(compgen -c -- "$current"))
    fi
    return
  done
  # Bash takes --flag=value apart, zsh does not.
  case "$current" in
    --*=*) flag=${current%%=*}; prefix=$flag=; current=${current#*=} ;;
    =) flag=$before; current="" ;;
    *) [ "$before" != = ] || flag=${COMP_WORDS[COMP_CWORD-2]} ;;
  esac
  case "$command ${flag:-$before}" in
CHOICES  esac
  if [ -n "$flag$words" ]; then
    [ -z "$words" ] || COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$current"))
    return
  fi
  case "$command" in
FLAGS  esac
  # Other benches than these have scripts with flags of their own.
  case "$command ${COMP_WORDS[2]}" in
    "bench pool"|"bench load"|"bench tls") ;;
    "bench report") flags=$("${COMP_WORDS[0]}" bench report --help 2> /dev/null | grep -oE '^  --[a-z-]+=?') ;;
    bench*) flags=$("${COMP_WORDS[0]}" bench --help 2> /dev/null | grep -oE '^  --[a-z-]+=?') ;;
  esac
  case "$current" in
    --no*) words="$flags $negations" ;;
    -*) words=$flags ;;
    *)
      [ -n "$takes_words" ] || words=$flags
      case "$command" in
        bench) [ "$COMP_CWORD" -gt 2 ] || words="pool load tls report" ;;
        completion) words="bash zsh" ;;
        doctor) words=swap ;;
        help) words=$commands ;;
        umount)
          while read -r i line kind i; do
            [ "$kind" = fuse.nram ] || continue
            printf -v line %b "$line"
            [[ "$line" != "$current"* ]] || COMPREPLY+=("$line")
          done < /proc/self/mounts
          compopt -o filenames 2> /dev/null
          return
          ;;
      esac
      ;;
  esac
  [ -z "$words" ] || COMPREPLY=($(compgen -W "$words" -- "$current"))
  # Nothing yet: the shell completes file names.
  [[ "${#COMPREPLY[@]}" -ne 1 || "${COMPREPLY[0]}" != *= ]] || compopt -o nospace 2> /dev/null
}
complete -o default -F _nram nram
)";

std::string Bash() {
  std::vector<std::string> names;
  std::string cases, choices;
  for (const Command& command : Commands()) {
    names.push_back(command.name);
    std::string flags, negations;
    for (const FlagShape& flag : command.flags) {
      absl::StrAppend(&flags, "--", flag.name, flag.is_switch ? " " : "= ");
      if (flag.is_switch) absl::StrAppend(&negations, " --no-", flag.name);
      if (flag.choices.empty()) continue;
      absl::StrAppend(&choices, "    \"", command.name, " --", flag.name, "\") words=\"", flag.choices, "\" ;;\n");
    }
    absl::StrAppend(&cases, "    ", command.name, ") flags=\"", flags, "--help\" negations=\"", negations, "\"",
                    command.takes_words ? " takes_words=yes" : "", " ;;\n");
  }
  return absl::StrReplaceAll(kScript,
                             {{"COMMANDS", absl::StrJoin(names, " ")}, {"FLAGS", cases}, {"CHOICES", choices}});
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

Prints a script that makes the shell complete nram's commands, their flags and values, mount
points and, after `nram run --`, programs.

)",
       R"(
example: source <(nram completion bash)
)"},
      Words::kAny, &Run);
}

}  // namespace nram
