#include "client/pool/pool_spec.h"

#include <glog/logging.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "client/pool/client_tls.h"

namespace nram {
namespace {

// Whether a pool is said by the path of a host file, and not by its servers; takes the "@" away.
bool IsHostFile(absl::string_view* spec) {
  if (IsMemberSpec(*spec)) return false;
  return absl::ConsumePrefix(spec, "@") || (absl::StrContains(*spec, '/') && !absl::StrContains(*spec, "unix:"));
}

}  // namespace

absl::StatusOr<FoundMembers> FindPool(absl::string_view spec) {
  if (IsMemberSpec(spec)) {
    NRAM_ASSIGN_OR_RETURN(std::shared_ptr<MemberSource> source, OpenMemberSource(spec));
    return FindMembers(std::move(source));
  }
  FoundMembers found;
  if (IsHostFile(&spec)) {
    const std::string path(spec);
    struct stat named {};
    const bool may_change = stat(path.c_str(), &named) == 0 && S_ISREG(named.st_mode);
    NRAM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    NRAM_ASSIGN_OR_RETURN(found.servers, ParseHostFile(text, path));
    if (may_change) found.source = NewHostFile(std::filesystem::absolute(path).string());
    found.name = path;
    return found;
  }
  struct stat named {};
  if (spec.find_first_of(",:") == absl::string_view::npos && stat(std::string(spec).c_str(), &named) == 0 &&
      S_ISREG(named.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("pool: \"", spec, "\" is a file here: write ./", spec,
                                                   " for the hosts in it, or ", spec, ":PORT for a host of that name"));
  }
  for (absl::string_view word : absl::StrSplit(spec, ',')) {
    NRAM_RETURN_IF_ERROR(Annotate(AddServer(absl::StripAsciiWhitespace(word), &found.servers), "pool"));
  }
  return found;
}

absl::StatusOr<std::vector<Endpoint>> ParsePoolSpec(absl::string_view spec) {
  NRAM_ASSIGN_OR_RETURN(FoundMembers found, FindPool(spec));
  return std::move(found.servers);
}

absl::Status UsePool(absl::string_view spec, PoolOptions* options) {
  NRAM_ASSIGN_OR_RETURN(FoundMembers found, FindPool(spec));
  if (found.from_cache) LOG(WARNING) << "the pool's servers: " << found.Describe();
  options->servers = std::move(found.servers);
  options->members = std::move(found.source);
  NRAM_ASSIGN_OR_RETURN(options->tls, FindClientTls(options->servers));
  return absl::OkStatus();
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
      "no pool: start a local one with `nram up`, or name one with --pool=host:port,..., --pool=HOSTFILE, "
      "--pool=dns:NAME or --pool=etcd:HOST/NAME, in $NRAM_POOL, or for all commands in /etc/nram/pool");
}

}  // namespace nram
