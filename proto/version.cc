#include "proto/version.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace nram {
namespace {

std::string Name(const WireVersions& versions) {
  if (versions.lowest == versions.highest) return absl::StrCat("version ", versions.highest);
  return absl::StrCat("versions ", versions.lowest, " to ", versions.highest);
}

}  // namespace

uint32_t ChooseVersion(const WireVersions& ours, const WireVersions& theirs) {
  const uint32_t highest = std::min(ours.highest, theirs.highest);
  return ours.Has(highest) && theirs.Has(highest) ? highest : 0;
}

std::string NoCommonVersion(absl::string_view server, const WireVersions& servers, const WireVersions& clients) {
  const char* const too_old = servers.highest < clients.lowest   ? "the server is too old"
                              : clients.highest < servers.lowest ? "the client is too old"
                                                                 : "one of them is not nram";
  return absl::StrCat(server, " speaks ", Name(servers), " of the wire and the client ", Name(clients), ": ", too_old,
                      "; install the same release of nram on both machines");
}

}  // namespace nram
