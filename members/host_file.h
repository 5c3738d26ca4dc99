#ifndef NRAM_MEMBERS_HOST_FILE_H_
#define NRAM_MEMBERS_HOST_FILE_H_

// A file that names the servers, one a line; '#' begins a comment.

#include <sys/stat.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "members/member_source.h"

namespace nram {

// One more server. INVALID_ARGUMENT: the word is none, the server is there already, or there are too many.
absl::Status AddServer(absl::string_view word, std::vector<Endpoint>* servers);

// The text of a host file; `path` stands in messages. INVALID_ARGUMENT names the line that is wrong.
absl::StatusOr<std::vector<Endpoint>> ParseHostFile(absl::string_view text, absl::string_view path);

// Reads the file again when it has changed. A file that is wrong as a whole, or gone, is an error of Look.
std::unique_ptr<MemberSource> NewHostFile(std::string path);

}  // namespace nram

#endif  // NRAM_MEMBERS_HOST_FILE_H_
