#include "members/host_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "members/pause.h"

namespace nram {
namespace {

class HostFile final : public MemberSource {
 public:
  explicit HostFile(std::string path) : path_(std::move(path)), name_(absl::StrCat("@", path_)) {}

  absl::StatusOr<std::vector<Member>> Look(int64_t) override {
    struct stat now {};
    if (stat(path_.c_str(), &now) != 0) return ErrnoStatus(errno, path_);
    if (!S_ISREG(now.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path_, " is not a regular file"));
    if (seen_ && IsSame(now)) return members_;
    seen_ = now;
    members_ = Read();
    return members_;
  }
  int64_t period_ms() const override { return 500; }
  void AwaitNext() override { pause_.Wait(period_ms()); }
  void Stop() override { pause_.Stop(); }
  const std::string& name() const override { return name_; }
  bool may_be_remote() const override { return false; }

 private:
  bool IsSame(const struct stat& now) const {
    return now.st_ino == seen_->st_ino && now.st_dev == seen_->st_dev && now.st_size == seen_->st_size &&
           now.st_mtim.tv_sec == seen_->st_mtim.tv_sec && now.st_mtim.tv_nsec == seen_->st_mtim.tv_nsec;
  }
  absl::StatusOr<std::vector<Member>> Read() const {
    NRAM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_));
    NRAM_ASSIGN_OR_RETURN(const std::vector<Endpoint> servers, ParseHostFile(text, path_));
    std::vector<Member> members;
    for (const Endpoint& server : servers) members.push_back({server});
    return members;
  }

  const std::string path_;
  const std::string name_;
  std::optional<struct stat> seen_;
  absl::StatusOr<std::vector<Member>> members_ = absl::UnavailableError("not read yet");
  Pause pause_;
};

}  // namespace

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
    return absl::InvalidArgumentError(absl::StrCat(path, " names no server; write one host:port on each line"));
  return servers;
}

std::unique_ptr<MemberSource> NewHostFile(std::string path) { return std::make_unique<HostFile>(std::move(path)); }

}  // namespace nram
