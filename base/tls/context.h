#ifndef NRAM_BASE_TLS_CONTEXT_H_
#define NRAM_BASE_TLS_CONTEXT_H_

// Certificates, as OpenSSL uses them. The same for both planes.

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"

struct ssl_ctx_st;

namespace nram {

enum class TlsRole { kServer, kClient };

// Files of PEM.
struct TlsFiles {
  std::string authorities;  // one certificate or several: an old authority's and its successor's
  std::string certificate;  // this end's, and those between it and the authority
  std::string key;          // only the owner and root may read it

  // Those in a directory: ca.pem, and server.pem with server.key or client.pem with client.key; or, as cert-manager
  // writes them, ca.crt, tls.crt and tls.key. NOT_FOUND names the missing file.
  static absl::StatusOr<TlsFiles> In(const std::string& directory, TlsRole role);
};

// PERMISSION_DENIED: other users may read the private key; the message says how to forbid that.
absl::Status CheckKeyMode(const std::string& path);

// Thread-safe. Looks at the files before a handshake, once a second at most, and loads them anew when they have
// changed. Files that do not fit are not used: the last good certificates stay, and the log names the error once.
class TlsContext {
 public:
  // INVALID_ARGUMENT, PERMISSION_DENIED: a file cannot be used; the message names it and says why.
  // FAILED_PRECONDITION: a server's own certificate has ended, so that every client would refuse it.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Load(const TlsFiles& files, TlsRole role);
  ~TlsContext();

  TlsRole role() const { return role_; }
  const TlsFiles& files() const { return files_; }
  // For one handshake. May read files. Logs once a day that a server's certificate has ended.
  std::shared_ptr<ssl_ctx_st> Get();
  // When the certificate ends, seconds since 1970.
  int64_t expires_s() const;
  // Whether the log is to say at this time that a server's certificate has ended: once a day.
  bool TakeExpiryNotice(int64_t now_s);

 private:
  struct Stamp {
    ino_t inode = 0;
    int64_t changed_ns = 0;
    off_t bytes = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  struct Stamps {
    Stamp authorities, certificate, key;
    friend bool operator==(const Stamps&, const Stamps&) = default;
  };
  struct Loaded {
    std::shared_ptr<ssl_ctx_st> context;
    int64_t expires_s = 0;
  };

  TlsContext(const TlsFiles& files, TlsRole role) : files_(files), role_(role) {}
  static Stamp StampOf(const std::string& path);
  Stamps Look() const;
  static absl::StatusOr<Loaded> LoadFiles(const TlsFiles& files, TlsRole role);

  const TlsFiles files_;
  const TlsRole role_;
  mutable Mutex mu_;
  Loaded loaded_ ABSL_GUARDED_BY(mu_);
  Stamps seen_ ABSL_GUARDED_BY(mu_);
  int64_t looked_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t failed_ns_ ABSL_GUARDED_BY(mu_) = 0;  // when the last load failed; 0: it did not
  int64_t noticed_s_ ABSL_GUARDED_BY(mu_) = 0;  // when the log said last that the certificate has ended
};

}  // namespace nram

#endif  // NRAM_BASE_TLS_CONTEXT_H_
