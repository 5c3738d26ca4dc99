#include "client/pool/client_tls.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/tls/tls_dir.h"

namespace nram {

absl::StatusOr<std::shared_ptr<TlsContext>> FindClientTls(absl::Span<const Endpoint> servers) {
  if (absl::c_all_of(servers, [](const Endpoint& server) { return server.is_unix(); })) return nullptr;
  const char* const named = std::getenv(kTlsDirVariable);
  const bool is_named = named != nullptr && *named != '\0';
  const std::string directory = is_named ? named : kTlsDirDefault;
  const auto has = [&](const char* name) { return access(absl::StrCat(directory, "/", name).c_str(), F_OK) == 0; };
  // A donor's own directory may have a server's alone.
  if (!is_named && !has("client.pem") && !has("tls.crt")) return nullptr;
  absl::StatusOr<TlsFiles> files = TlsFiles::In(directory, TlsRole::kClient);
  absl::StatusOr<std::shared_ptr<TlsContext>> context =
      files.ok() ? TlsContext::Load(*files, TlsRole::kClient) : files.status();
  if (context.ok()) return context;
  return Annotate(context.status(), absl::StrCat("the certificates of ", is_named ? "$NRAM_TLS_DIR" : directory));
}

}  // namespace nram
