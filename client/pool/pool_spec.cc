#include "client/pool/pool_spec.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/state_dir.h"
#include "base/status.h"

namespace nram {
namespace {

absl::Status AddServer(absl::string_view word, std::vector<Endpoint>* servers) {
  NRAM_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(word, kDefaultServerPort));
  if (std::find(servers->begin(), servers->end(), endpoint) != servers->end()) {
    return absl::InvalidArgumentError(absl::StrCat(endpoint.ToString(), " is named twice"));
  }
  if (servers->size() >= kPoolServersMax) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kPoolServersMax, " servers"));
  }
  servers->push_back(std::move(endpoint));
  return absl::OkStatus();
}

// Whether a pool is said by the path of a host file, and not by its servers; takes the "@" away.
bool IsHostFile(absl::string_view* spec) {
  return absl::ConsumePrefix(spec, "@") || (absl::StrContains(*spec, '/') && !absl::StrContains(*spec, "unix:"));
}

}  // namespace

absl::StatusOr<std::vector<Endpoint>> ParseHostFile(absl::string_view text, absl::string_view path) {
  std::vector<Endpoint> servers;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    NRAM_RETURN_IF_ERROR(Annotate(AddServer(line, &servers), absl::StrCat(path, " line ", number)));
  }
  if (servers.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, " names no server; write one host:port a line"));
  return servers;
}

absl::StatusOr<std::vector<Endpoint>> ParsePoolSpec(absl::string_view spec) {
  if (IsHostFile(&spec)) {
    const std::string path(spec);
    NRAM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    return ParseHostFile(text, path);
  }
  std::vector<Endpoint> servers;
  for (absl::string_view word : absl::StrSplit(spec, ',')) {
    NRAM_RETURN_IF_ERROR(Annotate(AddServer(absl::StripAsciiWhitespace(word), &servers), "pool"));
  }
  return servers;
}

absl::StatusOr<std::string> ChoosePoolSpec(const std::string& flag) {
  const char* const variable = std::getenv("NRAM_POOL");
  const std::string spec = !flag.empty() ? flag : variable != nullptr ? variable : "";
  if (!spec.empty()) {
    absl::string_view path = spec;
    if (!IsHostFile(&path) || absl::StartsWith(path, "/")) return spec;
    // A daemon leaves the directory that it was started in.
    char here[PATH_MAX];
    return getcwd(here, sizeof here) == nullptr ? spec : absl::StrCat("@", here, "/", path);
  }
  const std::string local = LocalStateDir() + "/pool";
  if (access(local.c_str(), R_OK) == 0) {
    NRAM_RETURN_IF_ERROR(CheckStateDir());
    return "@" + local;
  }
  if (access("/etc/nram/pool", R_OK) == 0) return "@/etc/nram/pool";
  return absl::FailedPreconditionError(
      "no pool: start a local one with `nram up`, or name one with --pool=host:port,... or --pool=HOSTFILE, in "
      "$NRAM_POOL, or for all commands in /etc/nram/pool");
}

}  // namespace nram
