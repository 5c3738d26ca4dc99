#ifndef NRAM_TOOLS_NRAM_PUBLISHED_H_
#define NRAM_TOOLS_NRAM_PUBLISHED_H_

// The common part of the commands about published versions.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/args.h"
#include "client/pool/pool.h"
#include "client/pool/publication.h"
#include "tools/nram/command.h"

namespace nram {

// The flags of a command that uses regions with a name.
struct NamedPoolFlags {
  std::string pool;
  std::string key_file;

  void Register(ArgParser* parser);
};

// Blocks for a few seconds at most.
absl::StatusOr<std::unique_ptr<Pool>> OpenNamedPool(const NamedPoolFlags& flags);
// Publication::Attach. NOT_FOUND names the name that the user gave. Blocks as that does.
absl::StatusOr<std::unique_ptr<Publication>> FindPublication(Pool* pool, const std::string& name, AttachMode mode);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_PUBLISHED_H_
