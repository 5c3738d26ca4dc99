#include "members/member_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/state_dir.h"
#include "base/status.h"
#include "members/host_file.h"

namespace nram {
namespace {

std::string UsualDirectory() {
  if (const char* dir = std::getenv("XDG_CACHE_HOME"); dir != nullptr && *dir == '/') return absl::StrCat(dir, "/nram");
  if (geteuid() == 0) return "/var/cache/nram";
  if (const char* dir = std::getenv("HOME"); dir != nullptr && *dir == '/') return absl::StrCat(dir, "/.cache/nram");
  return LocalStateDir();
}

// Readable, and another one for each source.
std::string FileName(const std::string& source) {
  std::string name = source.substr(0, 100);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  }
  return absl::StrFormat("members-%s-%08x", name, Crc32c(0, source.data(), source.size()));
}

std::string FirstLine(const std::string& source) {
  return absl::StrCat("# nram knows these servers from ", source, "\n");
}

}  // namespace

MemberCache::MemberCache(const std::string& source, std::string directory)
    : source_(source),
      directory_(directory.empty() ? UsualDirectory() : std::move(directory)),
      path_(absl::StrCat(directory_, "/", FileName(source))) {}

absl::StatusOr<MemberCache::Known> MemberCache::Read() const {
  NRAM_RETURN_IF_ERROR(CheckStateDir(directory_));
  struct stat info {};
  if (lstat(path_.c_str(), &info) != 0) return ErrnoStatus(errno, path_);
  if (!S_ISREG(info.st_mode) || info.st_size > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " is not a cache file of nram"));
  }
  Known known;
  known.age_s = std::max<int64_t>(time(nullptr) - info.st_mtim.tv_sec, 0);
  if (known.age_s > kAgeMaxS) return absl::NotFoundError(absl::StrCat(path_, " is older than a week"));
  NRAM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_));
  if (!absl::StartsWith(text, FirstLine(source_))) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " belongs to another pool"));
  }
  NRAM_ASSIGN_OR_RETURN(known.servers, ParseHostFile(text, path_));
  return known;
}

absl::Status MemberCache::Write(const std::vector<Endpoint>& servers) const {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(directory_).parent_path(), error);
  NRAM_RETURN_IF_ERROR(MakeStateDir(directory_));
  std::string text = FirstLine(source_);
  for (const Endpoint& server : servers) absl::StrAppend(&text, server.ToString(), "\n");
  if (static_cast<int64_t>(text.size()) > kBytesMax) return absl::ResourceExhaustedError("too many servers to keep");
  return WriteFileAtomically(path_, text);
}

}  // namespace nram
