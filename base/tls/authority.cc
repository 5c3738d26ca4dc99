#include "base/tls/authority.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <time.h>

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr int64_t kSecondsPerDay = 86'400;
constexpr int64_t kClocksDifferS = 300;
constexpr size_t kCommonNameMax = 64;  // X.520's upper bound

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;
using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

absl::Status Failed(absl::string_view what) {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return absl::InvalidArgumentError(absl::StrCat(what, reason == nullptr ? "" : ": ", reason == nullptr ? "" : reason));
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(bytes)};
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  if (key == nullptr) return Failed("no key can be made");
  return key;
}

// Ed25519 has its own.
const EVP_MD* DigestFor(const EVP_PKEY* key) {
  return EVP_PKEY_get_id(key) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
}

absl::StatusOr<CertificatePair> Pem(X509* certificate, EVP_PKEY* key) {
  const Bio certificate_out(BIO_new(BIO_s_mem()), &BIO_free);
  const Bio key_out(BIO_new(BIO_s_secmem()), &BIO_free);
  if (PEM_write_bio_X509(certificate_out.get(), certificate) != 1 ||
      PEM_write_bio_PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("a certificate cannot be written");
  }
  return CertificatePair{Text(certificate_out.get()), Text(key_out.get())};
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& pem) {
  const Bio in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
  Certificate certificate(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), &X509_free);
  if (certificate == nullptr) return Failed("this is not a certificate");
  return certificate;
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509V3_set_ctx_nodb(&context);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// A certificate with a random serial number, and without extensions.
absl::StatusOr<Certificate> NewCertificate(EVP_PKEY* key, const std::string& name, int64_t begins_s, int64_t days) {
  if (name.empty() || name.size() > kCommonNameMax || !IsPrintable(name) ||
      name.find_first_of(" \t") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(name, kCommonNameMax), "\" cannot be a name: 1 to 64 printable bytes, no spaces"));
  }
  Certificate certificate(X509_new(), &X509_free);
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> serial(BN_new(), &BN_free);
  if (begins_s == 0) begins_s = time(nullptr) - kClocksDifferS;
  const int64_t ends_s = begins_s + days * kSecondsPerDay;
  X509_NAME* const subject = certificate == nullptr ? nullptr : X509_get_subject_name(certificate.get());
  const bool made = subject != nullptr && X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
                    BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
                    BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) != nullptr &&
                    ASN1_TIME_set(X509_getm_notBefore(certificate.get()), begins_s) != nullptr &&
                    ASN1_TIME_set(X509_getm_notAfter(certificate.get()), ends_s) != nullptr &&
                    X509_set_pubkey(certificate.get(), key) == 1 &&
                    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0) == 1;
  if (!made) return Failed("a certificate cannot be made");
  return certificate;
}

// One entry of a subject alternative name.
absl::StatusOr<std::string> AlternativeName(const std::string& host) {
  in6_addr numeric;
  if (inet_pton(AF_INET, host.c_str(), &numeric) == 1 || inet_pton(AF_INET6, host.c_str(), &numeric) == 1) {
    return absl::StrCat("IP:", host);
  }
  const char* const kOf = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._*";
  if (host.empty() || host.size() > 253 || host.find_first_not_of(kOf) != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(host, 255), "\" is neither a host's name nor a numeric address"));
  }
  return absl::StrCat("DNS:", host);
}

}  // namespace

absl::StatusOr<Authority> Authority::Create(const std::string& name) {
  NRAM_ASSIGN_OR_RETURN(Key key, NewKey());
  return Make(name, std::move(key));
}

absl::StatusOr<Authority> Authority::Derive(const std::string& name, const std::string& secret,
                                            const std::string& purpose) {
  if (secret.size() < kSecretBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("the secret has ", secret.size(), " bytes: expected ", kSecretBytesMin, " or more"));
  }
  std::array<unsigned char, 32> seed;
  size_t seed_bytes = seed.size();
  const auto* const bytes = reinterpret_cast<const unsigned char*>(secret.data());
  const std::string info = "nram authority " + purpose;
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> hkdf(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr),
                                                                         &EVP_PKEY_CTX_free);
  const bool derived = hkdf != nullptr && EVP_PKEY_derive_init(hkdf.get()) == 1 &&
                       EVP_PKEY_CTX_set_hkdf_md(hkdf.get(), EVP_sha256()) == 1 &&
                       EVP_PKEY_CTX_set1_hkdf_key(hkdf.get(), bytes, static_cast<int>(secret.size())) == 1 &&
                       EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), reinterpret_cast<const unsigned char*>(info.data()),
                                                   static_cast<int>(info.size())) == 1 &&
                       EVP_PKEY_derive(hkdf.get(), seed.data(), &seed_bytes) == 1 && seed_bytes == seed.size();
  if (!derived) return Failed("no key can be derived");
  Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()), &EVP_PKEY_free);
  OPENSSL_cleanse(seed.data(), seed.size());
  if (key == nullptr) return Failed("no key can be made");
  return Make(name, std::move(key));
}

absl::StatusOr<Authority> Authority::Make(const std::string& name, Key key) {
  NRAM_ASSIGN_OR_RETURN(const Certificate certificate, NewCertificate(key.get(), name, 0, kDays));
  X509* const made = certificate.get();
  const bool signed_now = X509_set_issuer_name(made, X509_get_subject_name(made)) == 1 &&
                          AddExtension(made, made, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                          AddExtension(made, made, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                          AddExtension(made, made, NID_subject_key_identifier, "hash") &&
                          X509_sign(made, key.get(), DigestFor(key.get())) > 0;
  if (!signed_now) return Failed("an authority cannot be made");
  return Authority(key, certificate);
}

absl::StatusOr<Authority> Authority::Read(const CertificatePair& pem) {
  NRAM_ASSIGN_OR_RETURN(Certificate certificate, ReadCertificate(pem.certificate));
  const Bio key_in(BIO_new_mem_buf(pem.key.data(), static_cast<int>(pem.key.size())), &BIO_free);
  Key key(PEM_read_bio_PrivateKey(key_in.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
  if (key == nullptr) return Failed("this is not a private key");
  if (X509_check_ca(certificate.get()) < 1) return absl::InvalidArgumentError("the certificate is not an authority's");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) return Failed("the key is not of the certificate");
  return Authority(key, certificate);
}

absl::StatusOr<CertificatePair> Authority::Write() const { return Pem(certificate_.get(), key_.get()); }

absl::StatusOr<CertificatePair> Authority::Issue(const CertificateWishes& wishes) const {
  NRAM_ASSIGN_OR_RETURN(const Key key, NewKey());
  NRAM_ASSIGN_OR_RETURN(const Certificate certificate,
                        NewCertificate(key.get(), wishes.name, wishes.begins_s, wishes.days));
  std::vector<std::string> names;
  for (const std::string& host : wishes.hosts) {
    NRAM_ASSIGN_OR_RETURN(std::string name, AlternativeName(host));
    names.push_back(std::move(name));
  }
  if (!wishes.uri.empty()) {
    if (!absl::StartsWith(wishes.uri, "spiffe://") || wishes.uri.find_first_of(", \t") != std::string::npos ||
        !IsPrintable(wishes.uri)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", wishes.uri, "\" is not a SPIFFE URI (spiffe://...)"));
    }
    names.push_back(absl::StrCat("URI:", wishes.uri));
  }
  X509* const made = certificate.get();
  X509* const issuer = certificate_.get();
  const bool signed_now =
      X509_set_issuer_name(made, X509_get_subject_name(issuer)) == 1 &&
      AddExtension(made, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
      AddExtension(made, issuer, NID_key_usage, "critical,digitalSignature") &&
      AddExtension(made, issuer, NID_ext_key_usage, wishes.serves ? "serverAuth" : "clientAuth") &&
      AddExtension(made, issuer, NID_subject_key_identifier, "hash") &&
      AddExtension(made, issuer, NID_authority_key_identifier, "keyid") &&
      (names.empty() || AddExtension(made, issuer, NID_subject_alt_name, absl::StrJoin(names, ","))) &&
      X509_sign(made, key_.get(), DigestFor(key_.get())) > 0;
  if (!signed_now) return Failed("a certificate cannot be signed");
  return Pem(made, key.get());
}

absl::StatusOr<CertificateWishes> WishesOf(const std::string& certificate_pem) {
  NRAM_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(certificate_pem));
  CertificateWishes wishes;
  char name[kCommonNameMax + 1] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof name);
  wishes.name = name;
  wishes.serves = (X509_get_extension_flags(certificate.get()) & EXFLAG_XKUSAGE) != 0 &&
                  (X509_get_extended_key_usage(certificate.get()) & XKU_SSL_SERVER) != 0;
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    int kind = 0;
    const auto* const text =
        static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind));
    const auto* const data = reinterpret_cast<const char*>(ASN1_STRING_get0_data(text));
    const std::string value(data, ASN1_STRING_length(text));
    char address[INET6_ADDRSTRLEN] = "";
    if (kind == GEN_DNS) wishes.hosts.push_back(value);
    if (kind == GEN_URI) wishes.uri = value;
    if (kind == GEN_IPADD &&
        inet_ntop(value.size() == 4 ? AF_INET : AF_INET6, data, address, sizeof address) != nullptr) {
      wishes.hosts.emplace_back(address);
    }
  }
  GENERAL_NAMES_free(names);
  return wishes;
}

absl::StatusOr<int64_t> ExpiryOf(const std::string& certificate_pem) {
  NRAM_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(certificate_pem));
  tm parts{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &parts) != 1) return Failed("it has no valid expiry date");
  return timegm(&parts);
}

}  // namespace nram
