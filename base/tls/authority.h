#ifndef NRAM_BASE_TLS_AUTHORITY_H_
#define NRAM_BASE_TLS_AUTHORITY_H_

// A small certificate authority, made by `nram keygen`, for operators without one.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

struct evp_pkey_st;
struct x509_st;

namespace nram {

// A certificate and its private key, as PEM.
struct CertificatePair {
  std::string certificate;
  std::string key;
};

struct CertificateWishes {
  std::string name;                // the common name
  bool serves = false;             // for servers, else for clients
  std::vector<std::string> hosts;  // of a server: names and numeric addresses
  std::string uri;                 // spiffe://..., or none
  int64_t begins_s = 0;            // seconds since 1970; 0: now, less five minutes for clocks that differ
  int64_t days = 365;
};

// Keys of P-256, and of Ed25519 where they are derived. Thread-safe after construction.
class Authority {
 public:
  static constexpr int64_t kDays = 3650;

  // A new one.
  static absl::StatusOr<Authority> Create(const std::string& name);
  // The authority of a secret and a purpose: the same key wherever it is made, so that machines that cannot meet have
  // one. Its key is HKDF-SHA-256 of the secret (RFC 5869). INVALID_ARGUMENT: the secret is shorter than
  // kSecretBytesMin.
  static constexpr size_t kSecretBytesMin = 32;
  static absl::StatusOr<Authority> Derive(const std::string& name, const std::string& secret,
                                          const std::string& purpose);
  // INVALID_ARGUMENT: that is no authority's certificate, or not its key.
  static absl::StatusOr<Authority> Read(const CertificatePair& pem);

  // Its own certificate and key.
  absl::StatusOr<CertificatePair> Write() const;
  // INVALID_ARGUMENT: a host, a name or a URI that cannot be one.
  absl::StatusOr<CertificatePair> Issue(const CertificateWishes& wishes) const;

 private:
  static absl::StatusOr<Authority> Make(const std::string& name, std::shared_ptr<evp_pkey_st> key);
  Authority(std::shared_ptr<evp_pkey_st> key, std::shared_ptr<x509_st> certificate)
      : key_(std::move(key)), certificate_(std::move(certificate)) {}

  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

// The name, hosts and URI of a certificate, so that one like it can be issued. INVALID_ARGUMENT: it is none.
absl::StatusOr<CertificateWishes> WishesOf(const std::string& certificate_pem);
// When a certificate ends, seconds since 1970. INVALID_ARGUMENT: it is none.
absl::StatusOr<int64_t> ExpiryOf(const std::string& certificate_pem);

}  // namespace nram

#endif  // NRAM_BASE_TLS_AUTHORITY_H_
