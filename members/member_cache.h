#ifndef NRAM_MEMBERS_MEMBER_CACHE_H_
#define NRAM_MEMBERS_MEMBER_CACHE_H_

// The last word of a source, in a file: for a process that starts while the source is away.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/endpoint.h"

namespace nram {

// Thread-safe. Calls block as files do.
class MemberCache {
 public:
  static constexpr int64_t kAgeMaxS = 7 * 24 * 3'600;
  static constexpr int64_t kBytesMax = 1 << 20;

  // `source`: the source's name. `directory`: "" for the usual one: $XDG_CACHE_HOME/nram, /var/cache/nram for root,
  // $HOME/.cache/nram, else the state directory.
  explicit MemberCache(const std::string& source, std::string directory = "");

  struct Known {
    std::vector<Endpoint> servers;
    int64_t age_s = 0;
  };
  // NOT_FOUND: there is nothing, or it is too old. PERMISSION_DENIED: others may write there.
  absl::StatusOr<Known> Read() const;
  // Replaces the file's content. The file's age begins anew.
  absl::Status Write(const std::vector<Endpoint>& servers) const;

  const std::string& path() const { return path_; }

 private:
  const std::string source_;
  const std::string directory_;
  const std::string path_;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_MEMBER_CACHE_H_
