#include "tools/nram/bundle.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"

namespace nram {
namespace {

constexpr char kLeftOut[] = "(left out)";
constexpr size_t kRunMax = 40;  // ids have 16 digits, sums 32

bool IsDigit64(char c) { return absl::ascii_isalnum(c) || c == '+' || c == '='; }

// A run that looks like a key: long, and of digits and letters both.
bool IsKeyLike(absl::string_view run) {
  const bool has_digit = std::any_of(run.begin(), run.end(), [](char c) { return absl::ascii_isdigit(c); });
  const bool has_letter = std::any_of(run.begin(), run.end(), [](char c) { return absl::ascii_isalpha(c); });
  return run.size() > kRunMax && has_digit && has_letter;
}

std::string WithoutRuns(absl::string_view line) {
  std::string out;
  size_t i = 0;
  while (i < line.size()) {
    size_t end = i;
    while (end < line.size() && IsDigit64(line[end])) ++end;
    if (end == i) {
      out += line[i++];
      continue;
    }
    const absl::string_view run = line.substr(i, end - i);
    absl::StrAppend(&out, IsKeyLike(run) ? absl::string_view(kLeftOut) : run);
    i = end;
  }
  return out;
}

// "NAME=value" or "NAME: value" where the name says that the value is one.
bool NamesASecret(absl::string_view line, size_t* value) {
  const size_t at = line.find_first_of("=:");
  if (at == absl::string_view::npos) return false;
  const std::string name = absl::AsciiStrToLower(line.substr(0, at));
  *value = at + 1;
  if (absl::StrContains(name, "secret") || absl::StrContains(name, "password") || absl::StrContains(name, "token")) {
    return true;
  }
  // A key's file is named by many flags, and is none.
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(line.substr(at + 1));
  return absl::EndsWith(absl::StripAsciiWhitespace(name), "key") && !absl::StartsWith(rest, "/") && !rest.empty();
}

}  // namespace

std::string WithoutSecrets(absl::string_view text) {
  std::string out;
  bool in_pem = false;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool begins = absl::StrContains(line, "-----BEGIN ");
    if (begins && !in_pem) absl::StrAppend(&out, kLeftOut, "\n");
    in_pem = in_pem || begins;
    if (in_pem) {
      in_pem = !absl::StrContains(line, "-----END ");
      continue;
    }
    size_t value = 0;
    if (NamesASecret(line, &value)) {
      absl::StrAppend(&out, line.substr(0, value), " ", kLeftOut, "\n");
    } else {
      absl::StrAppend(&out, WithoutRuns(line), "\n");
    }
  }
  if (!out.empty()) out.pop_back();  // of the last piece, behind which no line ended
  return out;
}

std::string LastOf(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  absl::string_view end = text.substr(text.size() - bytes_max);
  const size_t line = end.find('\n');
  if (line != absl::string_view::npos) end.remove_prefix(line + 1);
  return absl::StrCat("(", text.size() - end.size(), " bytes before this are left out)\n", end);
}

bool MayBeSecret(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  for (const absl::string_view end : {".pem", ".key", ".crt", ".p12", ".csr"}) {
    if (absl::EndsWith(name, end)) return true;
  }
  return absl::StrContains(path, "/tls") || absl::StrContains(name, "key") || absl::StrContains(name, "secret");
}

absl::Status AddFile(const std::string& directory, const std::string& name, absl::string_view text) {
  const std::string path = absl::StrCat(directory, "/", name);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  return WriteFileAtomically(path, WithoutSecrets(text));
}

}  // namespace nram
