#ifndef NRAM_PROTO_VERSION_H_
#define NRAM_PROTO_VERSION_H_

// The version of the wire that two ends speak with each other. Control's hello settles it for both planes.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/wire.h"

namespace nram {

// All versions from `lowest` to `highest`. By default, those of this end.
struct WireVersions {
  uint32_t lowest = kWireVersionLowest;
  uint32_t highest = kWireVersion;

  bool Has(uint32_t version) const { return lowest <= version && version <= highest; }
};

// The highest version that both speak; 0 if there is none.
uint32_t ChooseVersion(const WireVersions& ours, const WireVersions& theirs);

// Tells people why two ends have no version in common: which one is too old, and what to do. `server` names the server
// at the beginning of a sentence ("memory server 10.0.0.7:7070").
std::string NoCommonVersion(absl::string_view server, const WireVersions& servers, const WireVersions& clients);

}  // namespace nram

#endif  // NRAM_PROTO_VERSION_H_
