#include "tools/nram/published.h"

#include <optional>
#include <utility>

#include "base/status.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"

namespace nram {

void NamedPoolFlags::Register(ArgParser* parser) {
  parser->String("pool", &pool, kPoolFlag);
  RegisterTlsDir(parser);
  parser->String("key-file", &key_file,
                 {"FILE", "of sealed pages, the file that they were made with (default:\n$NRAM_KEY_FILE)"});
}

absl::StatusOr<std::unique_ptr<Pool>> OpenNamedPool(const NamedPoolFlags& flags) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(const std::string spec, ChoosePoolSpec(flags.pool));
  NRAM_ASSIGN_OR_RETURN(options.servers, ParsePoolSpec(spec));
  NRAM_ASSIGN_OR_RETURN(options.tls, FindClientTls(options.servers));
  NRAM_ASSIGN_OR_RETURN(options.key_file, ChooseKeyFile(flags.key_file));
  NRAM_ASSIGN_OR_RETURN(options.seal, ChooseSeal(std::nullopt));
  options.ExpectCopies();
  return Pool::Open(std::move(options));
}

}  // namespace nram
