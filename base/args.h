#ifndef NRAM_BASE_ARGS_H_
#define NRAM_BASE_ARGS_H_

// Command lines with long flags only: "--name=value" or "--name value", and "--name" and "--no-name" for switches. An
// unknown, repeated or ill-formed flag is refused; the message names the flag and says what would be accepted.
// Libraries never read flags: main parses them into a plain Options.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nram {

// The text about a flag in Table(); a flag without a text does not stand there.
struct FlagHelp {
  absl::string_view value;         // a word for it, as in "--pool=POOL"; "" for switches
  absl::string_view text;          // lines after the first follow a '\n'
  absl::string_view choices = {};  // the values, or the words among them, for completion: "auto on off"
};

// A flag, for completion.
struct FlagShape {
  std::string name;
  bool is_switch = false;
  std::string choices;  // as FlagHelp
};

// The word of `words` that a mistyped `word` probably means: with the fewest changed, missing, added or swapped
// characters, two at most, and fewer than half of it. "": none.
std::string NearestWord(absl::string_view word, const std::vector<std::string>& words);

// The flags of a program: one registration of each makes the program accept it, --help explain it (Table) and
// completion know it (shapes). Not thread-safe. Targets must outlive Parse; names and texts are copied.
class ArgParser {
 public:
  // `program` ("nram df") stands in messages, which point the user to `program --help`.
  explicit ArgParser(std::string program) : program_(std::move(program)) {}

  void String(absl::string_view name, std::string* target, const FlagHelp& help = {});
  void Switch(absl::string_view name, bool* target, const FlagHelp& help = {});
  // Stays empty if the flag is not given.
  void Switch(absl::string_view name, std::optional<bool>* target, const FlagHelp& help = {});
  // Accepts lo..hi; the message names both.
  void Integer(absl::string_view name, int64_t lo, int64_t hi, int64_t* target, const FlagHelp& help = {});
  void ByteSize(absl::string_view name, uint64_t lo, uint64_t hi, uint64_t* target, const FlagHelp& help = {});
  // A value of any other form. `parse` returns INVALID_ARGUMENT and names the accepted forms.
  void Custom(absl::string_view name, std::function<absl::Status(absl::string_view)> parse, const FlagHelp& help = {});
  // A flag that may be given several times; `parse` is called each time.
  void Repeated(absl::string_view name, std::function<absl::Status(absl::string_view)> parse,
                const FlagHelp& help = {});
  // Flags may be given twice; the last one counts. To be called after all are registered.
  void AllowRepeats();
  // Stands in Table() above the flags that are registered after it.
  void Heading(absl::string_view text);

  // Parses the words after argv[0]. Words that are not flags go to `positional`; "--" ends the flags. INVALID_ARGUMENT
  // on the first thing that is wrong. `--help` ends parsing with OK, and help() is true then.
  absl::Status Parse(const std::vector<std::string>& args, std::vector<std::string>* positional);

  // The same for a program's main. The result is the exit code if the program is to end now: 0 after `help` on standard
  // output, 2 after a message about a wrong flag on standard error.
  std::optional<int> ParseMain(int argc, char** argv, absl::string_view help, std::vector<std::string>* positional);

  const std::string& program() const { return program_; }
  bool help() const { return help_; }
  // True if the flag stood on the command line.
  bool given(absl::string_view name) const { return given_.count(std::string(name)) > 0; }
  // Of all flags but --help, for tests that hold a handwritten --help against them.
  std::vector<std::string> names() const;
  // The same, for completion.
  std::vector<FlagShape> shapes() const;
  // The flags that have a text, as they were registered, and --help: a line or more each, the text in column `width`.
  std::string Table(size_t width) const;

 private:
  struct Flag {
    std::string name;
    bool is_switch = false;
    std::function<void(bool)> set_switch;
    std::function<absl::Status(absl::string_view)> parse;
    bool repeated = false;
    std::string value;  // as FlagHelp
    std::string text;
    std::string choices;
  };
  struct Title {
    size_t before;  // the flag of this number
    std::string text;
  };

  const Flag* Find(absl::string_view name) const;
  absl::Status Bad(absl::string_view what) const;
  absl::Status ParseFlag(absl::string_view arg, const std::vector<std::string>& args, size_t* index);

  std::string program_;
  std::vector<Flag> flags_;
  std::vector<Title> titles_;
  std::set<std::string> given_;
  bool help_ = false;
};

}  // namespace nram

#endif  // NRAM_BASE_ARGS_H_
