#include "tools/nram/published.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"

namespace nram {

void NamedPoolFlags::Register(ArgParser* parser) {
  parser->String("pool", &pool, kPoolFlag);
  RegisterTlsDir(parser);
  parser->String("key-file", &key_file,
                 {"FILE", "the key file with which sealed pages were made (default:\n$NRAM_KEY_FILE)"});
}

absl::StatusOr<std::unique_ptr<Pool>> OpenNamedPool(const NamedPoolFlags& flags) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(flags.pool));
  NRAM_RETURN_IF_ERROR(UsePool(spec, &options));
  NRAM_ASSIGN_OR_RETURN(options.key_file, ChooseKeyFile(flags.key_file));
  NRAM_ASSIGN_OR_RETURN(options.seal, ChooseSeal(std::nullopt));
  options.ExpectCopies();
  return Pool::Open(std::move(options));
}

absl::StatusOr<std::unique_ptr<Publication>> FindPublication(Pool* pool, const std::string& name, AttachMode mode) {
  absl::StatusOr<std::unique_ptr<Publication>> found = Publication::Attach(pool, name, mode);
  if (!absl::IsNotFound(found.status())) return found;
  return absl::NotFoundError(absl::StrCat("nothing is published under the name \"", name, "\" in this pool"));
}

}  // namespace nram
