#include "base/args.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

// Changes of characters, and swaps of neighbours, that make one word of the other.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string NearestWord(absl::string_view word, const std::vector<std::string>& words) {
  std::string nearest;
  size_t least = 3;
  if (word.size() > 64) return nearest;
  for (const std::string& candidate : words) {
    const size_t distance = Distance(word, candidate);
    if (distance >= least || 2 * distance >= word.size()) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

void ArgParser::Custom(absl::string_view name, std::function<absl::Status(absl::string_view)> parse,
                       const FlagHelp& help) {
  flags_.push_back({.name = std::string(name),
                    .parse = std::move(parse),
                    .value = std::string(help.value),
                    .text = std::string(help.text),
                    .choices = std::string(help.choices)});
}

void ArgParser::Repeated(absl::string_view name, std::function<absl::Status(absl::string_view)> parse,
                         const FlagHelp& help) {
  Custom(name, std::move(parse), help);
  flags_.back().repeated = true;
}

void ArgParser::String(absl::string_view name, std::string* target, const FlagHelp& help) {
  const auto parse = [target](absl::string_view value) {
    if (value.empty()) return absl::InvalidArgumentError("it must not be empty");
    *target = std::string(value);
    return absl::OkStatus();
  };
  Custom(name, parse, help);
}

void ArgParser::Switch(absl::string_view name, bool* target, const FlagHelp& help) {
  Custom(name, nullptr, help);
  flags_.back().is_switch = true;
  flags_.back().set_switch = [target](bool on) { *target = on; };
}

void ArgParser::Switch(absl::string_view name, std::optional<bool>* target, const FlagHelp& help) {
  Custom(name, nullptr, help);
  flags_.back().is_switch = true;
  flags_.back().set_switch = [target](bool on) { *target = on; };
}

void ArgParser::Integer(absl::string_view name, int64_t lo, int64_t hi, int64_t* target, const FlagHelp& help) {
  const auto parse = [=](absl::string_view value) {
    int64_t parsed = 0;
    if (!absl::SimpleAtoi(value, &parsed) || parsed < lo || parsed > hi) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", value, "\" is not accepted: expected a whole number from ", lo, " to ", hi));
    }
    *target = parsed;
    return absl::OkStatus();
  };
  Custom(name, parse, help);
}

void ArgParser::ByteSize(absl::string_view name, uint64_t lo, uint64_t hi, uint64_t* target, const FlagHelp& help) {
  const auto parse = [=](absl::string_view value) -> absl::Status {
    NRAM_ASSIGN_OR_RETURN(const uint64_t parsed, ParseByteSize(value));
    if (parsed < lo || parsed > hi) {
      return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not accepted: expected a size from ",
                                                     FormatByteSize(lo), " to ", FormatByteSize(hi)));
    }
    *target = parsed;
    return absl::OkStatus();
  };
  Custom(name, parse, help);
}

void ArgParser::AllowRepeats() {
  for (Flag& flag : flags_) flag.repeated = true;
}

void ArgParser::Heading(absl::string_view text) { titles_.push_back({flags_.size(), std::string(text)}); }

const ArgParser::Flag* ArgParser::Find(absl::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status ArgParser::Bad(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(program_, ": ", what, "\nTry '", program_, " --help'."));
}

std::vector<std::string> ArgParser::names() const {
  std::vector<std::string> all;
  for (const Flag& flag : flags_) all.push_back(flag.name);
  return all;
}

std::vector<FlagShape> ArgParser::shapes() const {
  std::vector<FlagShape> all;
  for (const Flag& flag : flags_) all.push_back({flag.name, flag.is_switch, flag.choices});
  return all;
}

std::string ArgParser::Table(size_t width) const {
  std::string table;
  const auto add = [&](const std::string& name, const std::string& value, const std::string& text) {
    std::string line = absl::StrCat("  --", name, value.empty() ? "" : "=", value);
    line.resize(std::max(width, line.size() + 2), ' ');
    absl::StrAppend(&table, line, absl::StrReplaceAll(text, {{"\n", "\n" + std::string(width, ' ')}}), "\n");
  };
  for (size_t i = 0; i < flags_.size(); ++i) {
    for (const Title& title : titles_) {
      if (title.before == i) absl::StrAppend(&table, title.text, "\n");
    }
    if (!flags_[i].text.empty()) add(flags_[i].name, flags_[i].value, flags_[i].text);
  }
  add("help", "", "this text");
  return table;
}

absl::Status ArgParser::Parse(const std::vector<std::string>& args, std::vector<std::string>* positional) {
  bool flags_ended = false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (flags_ended || !absl::StartsWith(args[i], "-") || args[i] == "-") {
      positional->push_back(args[i]);
    } else if (args[i] == "--") {
      flags_ended = true;
    } else if (args[i] == "--help" || args[i] == "-h") {
      help_ = true;
      return absl::OkStatus();
    } else {
      NRAM_RETURN_IF_ERROR(ParseFlag(args[i], args, &i));
    }
  }
  return absl::OkStatus();
}

std::optional<int> ArgParser::ParseMain(int argc, char** argv, absl::string_view help,
                                        std::vector<std::string>* positional) {
  if (const absl::Status status = Parse({argv + 1, argv + argc}, positional); !status.ok()) {
    std::cerr << status.message() << std::endl;
    return 2;
  }
  if (!help_) return std::nullopt;
  std::cout << help << std::flush;
  return std::cout ? 0 : 1;  // a full disk
}

absl::Status ArgParser::ParseFlag(absl::string_view arg, const std::vector<std::string>& args, size_t* index) {
  const absl::string_view whole = arg;
  if (!absl::ConsumePrefix(&arg, "--")) return Bad(absl::StrCat("unknown flag ", whole, " (flags begin with --)"));
  const size_t equals = arg.find('=');
  const bool has_value = equals != absl::string_view::npos;
  absl::string_view name = arg.substr(0, equals);
  const Flag* flag = Find(name);
  bool negated = false;
  if (flag == nullptr && absl::ConsumePrefix(&name, "no-")) {
    flag = Find(name);
    negated = true;
    if (flag != nullptr && !flag->is_switch) flag = nullptr;
  }
  if (flag == nullptr) {
    const std::string near = NearestWord(arg.substr(0, equals), names());
    return Bad(absl::StrCat("unknown flag --", arg.substr(0, equals), near.empty() ? "" : "; did you mean --", near,
                            near.empty() ? "" : "?"));
  }
  if (!given_.insert(flag->name).second && !flag->repeated)
    return Bad(absl::StrCat("--", flag->name, " is given twice"));
  if (flag->is_switch) {
    if (has_value) return Bad(absl::StrCat("--", flag->name, " takes no value; write --", name, " or --no-", name));
    flag->set_switch(!negated);
    return absl::OkStatus();
  }
  absl::string_view value;
  if (has_value) {
    value = arg.substr(equals + 1);
  } else if (*index + 1 < args.size()) {
    value = args[++*index];
  } else {
    return Bad(absl::StrCat("--", name, " needs a value"));
  }
  const absl::Status status = flag->parse(value);
  return status.ok() ? status : Bad(absl::StrCat("--", name, ": ", status.message()));
}

}  // namespace nram
