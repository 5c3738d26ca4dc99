#include "client/pool/pool_spec.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host_memory.h"
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
  const bool is_file =
      absl::ConsumePrefix(&spec, "@") || (absl::StrContains(spec, '/') && !absl::StrContains(spec, "unix:"));
  if (is_file) {
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

std::string LocalStateDir() {
  if (const char* dir = std::getenv("NRAM_STATE_DIR"); dir != nullptr && *dir != '\0') return dir;
  if (geteuid() == 0) return "/run/nram";
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR"); dir != nullptr && *dir != '\0')
    return absl::StrCat(dir, "/nram");
  return absl::StrCat("/tmp/nram-", geteuid());
}

absl::StatusOr<std::string> ChoosePoolSpec(const std::string& flag) {
  if (!flag.empty()) return flag;
  if (const char* spec = std::getenv("NRAM_POOL"); spec != nullptr && *spec != '\0') return std::string(spec);
  for (const std::string& path : {LocalStateDir() + "/pool", std::string("/etc/nram/pool")}) {
    if (access(path.c_str(), R_OK) == 0) return "@" + path;
  }
  return absl::FailedPreconditionError(
      "no pool: start a local one with `nram up`, or name one with --pool=host:port,... or --pool=HOSTFILE, or in "
      "$NRAM_POOL");
}

}  // namespace nram
