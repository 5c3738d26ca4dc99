#ifndef NRAM_BASE_ARGS_H_
#define NRAM_BASE_ARGS_H_

// Command lines: long flags only, "--name=value" or "--name value", "--name" and "--no-name" for switches. An unknown,
// repeated or ill-formed flag is refused with its name and what would be accepted. Libraries never read flags: main
// parses them into a plain Options.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nram {

// Not thread-safe. Targets must outlive Parse.
class ArgParser {
 public:
  // `program` stands in messages ("nram df"); they point the user to `program --help`.
  explicit ArgParser(std::string program) : program_(std::move(program)) {}

  void String(absl::string_view name, std::string* target);
  void Switch(absl::string_view name, bool* target);
  // Accepts lo..hi; the message names both.
  void Integer(absl::string_view name, int64_t lo, int64_t hi, int64_t* target);
  void ByteSize(absl::string_view name, uint64_t lo, uint64_t hi, uint64_t* target);
  // Any other form; `parse` returns INVALID_ARGUMENT saying what is accepted.
  void Custom(absl::string_view name, std::function<absl::Status(absl::string_view)> parse);
  // May be given several times; `parse` is called each time.
  void Repeated(absl::string_view name, std::function<absl::Status(absl::string_view)> parse);

  // Parses all that follows argv[0] (or `args`). Words that are not flags go to `positional`; "--" ends the flags.
  // INVALID_ARGUMENT on the first thing wrong. `--help` is noticed (see help()) and ends parsing with OK.
  absl::Status Parse(const std::vector<std::string>& args, std::vector<std::string>* positional);

  bool help() const { return help_; }
  // True if the flag stood on the command line.
  bool given(absl::string_view name) const { return given_.count(std::string(name)) > 0; }
  // For the tests that hold --help against the flags there are.
  std::vector<std::string> names() const;

 private:
  struct Flag {
    std::string name;
    bool is_switch;
    bool* switch_target;
    std::function<absl::Status(absl::string_view)> parse;
    bool repeated = false;
  };

  const Flag* Find(absl::string_view name) const;
  absl::Status Bad(absl::string_view what) const;
  absl::Status ParseFlag(absl::string_view arg, const std::vector<std::string>& args, size_t* index);

  std::string program_;
  std::vector<Flag> flags_;
  std::set<std::string> given_;
  bool help_ = false;
};

}  // namespace nram

#endif  // NRAM_BASE_ARGS_H_
