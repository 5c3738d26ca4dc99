#include "base/tls/context.h"

#include <glog/logging.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <time.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/tls/handshake.h"

namespace nram {
namespace {

constexpr int64_t kLookNs = kNsPerSecond;
constexpr int64_t kLoadAgainNs = 10 * kNsPerSecond;  // files that could not be used
constexpr int64_t kNoticeAgainS = 86'400;
constexpr int kCertificatesBytesMax = 16 * 1024;  // of a peer

constexpr char kExpired[] = " has expired, so clients refuse it: make a new one with `nram keygen` and copy it";

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

// The first error of this thread, which says more than those that followed from it. Then the queue is empty.
std::string OpenSslError() {
  const unsigned long error = ERR_peek_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "it cannot be used" : absl::StrCat("not a complete PEM file of this kind (", reason, ")");
}

// Whether this thread's first error is that a key is not the certificate's.
bool IsForeignKey() {
  const unsigned long error = ERR_peek_error();
  return ERR_GET_LIB(error) == ERR_LIB_X509 && ERR_GET_REASON(error) == X509_R_KEY_VALUES_MISMATCH;
}

absl::Status Unusable(const std::string& path, absl::string_view why) {
  if (access(path.c_str(), R_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat(path, ": this user must be able to read it"));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

int64_t SecondsOf(const ASN1_TIME* time) {
  tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

}  // namespace

absl::Status CheckKeyMode(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if ((info.st_mode & S_IRWXO) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": other users may read this private key; forbid that: chmod o= ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<TlsFiles> TlsFiles::In(const std::string& directory, TlsRole role) {
  const std::string name = role == TlsRole::kServer ? "server" : "client";
  const std::string at = absl::StrCat(directory, "/");
  const TlsFiles ours{at + "ca.pem", absl::StrCat(at, name, ".pem"), absl::StrCat(at, name, ".key")};
  const TlsFiles theirs{at + "ca.crt", at + "tls.crt", at + "tls.key"};
  if (!Exists(ours.certificate) && Exists(theirs.certificate)) return theirs;
  for (const std::string& path : {ours.authorities, ours.certificate, ours.key}) {
    if (!Exists(path)) {
      return absl::NotFoundError(
          absl::StrCat(path, " is missing: `nram keygen` makes it (or ca.crt, tls.crt, tls.key)"));
    }
  }
  return ours;
}

TlsContext::~TlsContext() = default;

TlsContext::Stamp TlsContext::StampOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_mtim.tv_sec * kNsPerSecond + info.st_mtim.tv_nsec, info.st_size};
}

TlsContext::Stamps TlsContext::Look() const {
  return {StampOf(files_.authorities), StampOf(files_.certificate), StampOf(files_.key)};
}

absl::StatusOr<TlsContext::Loaded> TlsContext::LoadFiles(const TlsFiles& files, TlsRole role) {
  NRAM_RETURN_IF_ERROR(CheckKeyMode(files.key));
  // Threads may still use it while the process exits.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(role == TlsRole::kServer ? TLS_server_method() : TLS_client_method()),
                                   &SSL_CTX_free);
  SSL_CTX* const made = context.get();
  CHECK(made != nullptr && SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_ciphersuites(made, "TLS_AES_256_GCM_SHA384") == 1)
      << "OpenSSL has no TLS 1.3: " << OpenSslError();
  if (SSL_CTX_use_certificate_chain_file(made, files.certificate.c_str()) != 1) {
    return Unusable(files.certificate, OpenSslError());
  }
  if (SSL_CTX_use_PrivateKey_file(made, files.key.c_str(), SSL_FILETYPE_PEM) != 1 && !IsForeignKey()) {
    return Unusable(files.key, OpenSslError());
  }
  if (SSL_CTX_check_private_key(made) != 1) {
    ERR_clear_error();
    return Unusable(files.key, absl::StrCat("this key does not belong to ", files.certificate));
  }
  if (SSL_CTX_load_verify_file(made, files.authorities.c_str()) != 1) {
    return Unusable(files.authorities, OpenSslError());
  }
  // Session state that both ends keep beyond a handshake would admit a client without a look at its certificate.
  SSL_CTX_set_num_tickets(made, 0);
  SSL_CTX_set_max_cert_list(made, kCertificatesBytesMax);
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_keylog_callback(made, &TlsHandshake::OnKeyLine);
  const int64_t expires_s = SecondsOf(X509_get0_notAfter(SSL_CTX_get0_certificate(made)));
  // A client with such a certificate hears of it from the server; a server hears nothing.
  if (role == TlsRole::kServer && expires_s <= time(nullptr)) {
    return absl::FailedPreconditionError(absl::StrCat(files.certificate, kExpired));
  }
  return Loaded{context, expires_s};
}

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files, TlsRole role) {
  std::shared_ptr<TlsContext> context(new TlsContext(files, role));
  MutexLock lock(&context->mu_);
  context->seen_ = context->Look();
  NRAM_ASSIGN_OR_RETURN(context->loaded_, LoadFiles(files, role));
  context->looked_ns_ = MonotonicNs();
  return context;
}

std::shared_ptr<ssl_ctx_st> TlsContext::Get() {
  const int64_t now_ns = MonotonicNs();
  Stamps seen;
  bool is_again = false;  // files that could not be used may be usable by now
  {
    MutexLock lock(&mu_);
    if (now_ns < looked_ns_ + kLookNs) return loaded_.context;
    looked_ns_ = now_ns;  // other threads use the loaded certificates meanwhile
    seen = seen_;
    is_again = failed_ns_ != 0 && now_ns >= failed_ns_ + kLoadAgainNs;
  }
  if (TakeExpiryNotice(time(nullptr))) LOG(ERROR) << files_.certificate << kExpired;
  const Stamps stamps = Look();
  const bool is_same = stamps == seen;
  if (is_same && !is_again) {
    MutexLock lock(&mu_);
    return loaded_.context;
  }
  absl::StatusOr<Loaded> loaded = LoadFiles(files_, role_);
  MutexLock lock(&mu_);
  seen_ = stamps;
  failed_ns_ = loaded.ok() ? 0 : now_ns;
  if (loaded.ok()) {
    loaded_ = *std::move(loaded);
    LOG(INFO) << "certificates loaded again from " << files_.certificate;
  } else if (!is_same) {
    LOG(ERROR) << "the changed certificates cannot be used, so the former ones remain in use: "
               << loaded.status().message();
  }
  return loaded_.context;
}

bool TlsContext::TakeExpiryNotice(int64_t now_s) {
  MutexLock lock(&mu_);
  if (role_ != TlsRole::kServer || now_s < loaded_.expires_s || now_s < noticed_s_ + kNoticeAgainS) return false;
  noticed_s_ = now_s;
  return true;
}

int64_t TlsContext::expires_s() const {
  MutexLock lock(&mu_);
  return loaded_.expires_s;
}

}  // namespace nram
