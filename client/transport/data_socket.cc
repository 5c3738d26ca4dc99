#include "client/transport/data_socket.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr absl::string_view kSuffix = ".data";

}  // namespace

absl::StatusOr<uid_t> CheckDataSocket(const std::string& path) {
  const auto denied = [&](absl::string_view why) {
    return absl::PermissionDeniedError(absl::StrCat("the data socket ", Printable(path, 1000), " is not used: ", why));
  };
  if (!absl::StartsWith(path, "/") || !absl::EndsWith(path, kSuffix) || absl::StrContains(path, '\0')) {
    return denied("it is not named like a memory server's (/PATH.data)");
  }
  struct stat data, control;
  const auto not_found = [&] {
    return absl::NotFoundError(absl::StrCat(Printable(path, 1000), ": ", strerror(errno)));
  };
  if (lstat(path.c_str(), &data) != 0) return not_found();
  if (!S_ISSOCK(data.st_mode)) return denied("it is not a socket");
  const std::string beside(absl::StripSuffix(path, kSuffix));
  if (lstat(beside.c_str(), &control) != 0 || !S_ISSOCK(control.st_mode)) {
    return denied("there is no control socket beside it");
  }
  if (control.st_uid != data.st_uid) return denied("the control socket beside it belongs to another user");
  if (access(path.c_str(), R_OK | W_OK) != 0) return not_found();
  return data.st_uid;
}

std::string DataSocketBeside(const std::string& path) {
  char resolved[PATH_MAX];
  return absl::StrCat(realpath(path.c_str(), resolved) != nullptr ? resolved : path.c_str(), kSuffix);
}

absl::Status CheckListener(int fd, const std::string& path) {
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool is_known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && length == sizeof peer;
  if (is_known && (peer.uid == 0 || peer.uid == geteuid())) return absl::OkStatus();
  char resolved[PATH_MAX];
  std::string directory = realpath(path.c_str(), resolved) != nullptr ? resolved : path;
  directory.resize(directory.rfind('/') + 1);
  // Only root and the listener can have put the socket there: no other user can write on the whole way up; or, as in
  // /tmp, only to his own files.
  constexpr uid_t kOverflowUid = 65534;  // some user that this user namespace does not know
  bool is_owners = is_known && peer.uid != kOverflowUid && !directory.empty();
  for (std::string at = directory; is_owners; at.resize(at.rfind('/', at.size() - 2) + 1)) {
    struct stat info;
    is_owners = stat(at.c_str(), &info) == 0 && (info.st_uid == 0 || info.st_uid == peer.uid) &&
                ((info.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (at != directory && (info.st_mode & S_ISVTX) != 0));
    if (at == "/") break;
  }
  if (is_owners) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("user ", is_known ? absl::StrCat(peer.uid) : "unknown", " listens at ", Printable(path, 1000),
                   ", which is neither root nor this user, nor (for root) the only user with write access to ",
                   Printable(directory, 1000)));
}

absl::Status CheckPeer(int fd, uid_t owner) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == owner) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("user ", peer.uid, " listens at the data socket, which belongs to user ", owner));
}

}  // namespace nram
