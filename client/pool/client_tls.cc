#include "client/pool/client_tls.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/tls/tls_dir.h"

namespace nram {

absl::StatusOr<std::shared_ptr<TlsContext>> FindClientTls(absl::Span<const Endpoint> servers,
                                                          const std::string& given) {
  if (absl::c_all_of(servers, [](const Endpoint& server) { return server.is_unix(); })) return nullptr;
  const char* const named = given.empty() ? std::getenv(kTlsDirVariable) : given.c_str();
  const bool is_named = named != nullptr && *named != '\0';
  if (is_named && std::string(named) == kNoTls) return nullptr;
  // Daemons leave the directory that they were started in.
  std::error_code error;
  const std::string directory = is_named ? std::filesystem::absolute(named, error).string() : kTlsDirDefault;
  if (error) return absl::InvalidArgumentError(absl::StrCat("$NRAM_TLS_DIR: ", error.message()));
  const auto has = [&](const char* name) { return MayExist(absl::StrCat(directory, "/", name)); };
  // A donor's own directory may have a server's alone.
  if (!is_named && !has("client.pem") && !has("tls.crt")) return nullptr;
  absl::StatusOr<TlsFiles> files = TlsFiles::In(directory, TlsRole::kClient);
  absl::StatusOr<std::shared_ptr<TlsContext>> context =
      files.ok() ? TlsContext::Load(*files, TlsRole::kClient) : files.status();
  if (context.ok()) return context;
  return Annotate(context.status(), absl::StrCat("the certificates of ", directory));
}

}  // namespace nram
