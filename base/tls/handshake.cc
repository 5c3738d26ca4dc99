#include "base/tls/handshake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <glog/logging.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/tls/records.h"
#include "base/utf8.h"

namespace nram {
namespace {

// The longest record of a handshake, with and without keys (certificates are a few KiB).
constexpr size_t kHandshakeRecordMax = kRecordHeaderBytes + kRecordContentMax + 256;
// The most bytes read of a peer in all, and in one go: others have their turn, and a stranger no memory.
constexpr size_t kHandshakeBytesMax = 64 * 1024;
constexpr int kRecordsPerGo = 16;
constexpr size_t kNameBytesMax = 252;  // with "cn:", what access rules take
// Its protocol name keeps a server of something else, with a certificate of the same authority, from being taken for
// one of ours.
constexpr uint8_t kProtocol[] = {4, 'n', 'r', 'a', 'm'};

int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_bytes, const unsigned char* in,
                   unsigned int in_bytes, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_bytes, kProtocol, sizeof kProtocol, in, in_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// A server's certificate must permit serving: a client's certificate must not make a donor.
int VerifyServer(int ok, X509_STORE_CTX* store) {
  if (ok != 1 || X509_STORE_CTX_get_error_depth(store) != 0) return ok;
  X509* const certificate = X509_STORE_CTX_get_current_cert(store);
  const bool may_serve = (X509_get_extension_flags(certificate) & EXFLAG_XKUSAGE) != 0 &&
                         (X509_get_extended_key_usage(certificate) & XKU_SSL_SERVER) != 0;
  if (may_serve) return 1;
  X509_STORE_CTX_set_error(store, X509_V_ERR_INVALID_PURPOSE);
  return 0;
}

int VerifyClient(int ok, X509_STORE_CTX*) { return ok; }

// The only URI of SPIFFE. False: there are several.
bool FindUri(X509* certificate, std::string* uri) {
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  int found = 0;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const text = name->d.uniformResourceIdentifier;
    const std::string value(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)), ASN1_STRING_length(text));
    if (!absl::StartsWith(value, "spiffe://")) continue;
    *uri = value;
    ++found;
  }
  GENERAL_NAMES_free(names);
  return found <= 1;
}

// The only common name; "" if there is none, or several.
std::string FindName(X509* certificate) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0) return "";
  unsigned char* text = nullptr;
  const int bytes = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  const std::string name = bytes > 0 ? std::string(reinterpret_cast<char*>(text), bytes) : "";
  OPENSSL_free(text);
  return name;
}

bool IsFitName(const std::string& name) {
  return name.size() <= kNameBytesMax && IsPrintable(name) && name.find_first_of(" \t") == std::string::npos;
}

std::string NameOf(const X509* certificate) {
  char text[256];
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof text);
  return Printable(text, sizeof text);
}

}  // namespace

void TlsHandshake::FreeSsl::operator()(ssl_st* ssl) const { SSL_free(ssl); }

TlsHandshake::TlsHandshake(TlsContext* context, int fd, const std::string& host)
    : role_(context->role()), fd_(fd), context_(context->Get()), ssl_(SSL_new(context_.get())) {
  SSL* const ssl = ssl_.get();
  CHECK(ssl != nullptr);
  SSL_set_app_data(ssl, this);
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  if (role_ == TlsRole::kServer) {
    SSL_set_accept_state(ssl);
    SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &VerifyClient);
    SSL_CTX_set_alpn_select_cb(context_.get(), &SelectProtocol, nullptr);
    return;
  }
  CHECK(!host.empty()) << "a client must name the host that it has dialled";
  SSL_set_connect_state(ssl);
  SSL_set_verify(ssl, SSL_VERIFY_PEER, &VerifyServer);
  CHECK_EQ(SSL_set_alpn_protos(ssl, kProtocol, sizeof kProtocol), 0);
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(ssl);
  in6_addr numeric;
  const std::string address = host.substr(0, host.find('%'));  // without the scope of a link-local one
  if (inet_pton(AF_INET, address.c_str(), &numeric) == 1 || inet_pton(AF_INET6, address.c_str(), &numeric) == 1) {
    CHECK_EQ(X509_VERIFY_PARAM_set1_ip_asc(wanted, address.c_str()), 1);
  } else {
    X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    CHECK_EQ(X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size()), 1);
    SSL_set_tlsext_host_name(ssl, host.c_str());
  }
}

TlsHandshake::~TlsHandshake() = default;

void TlsHandshake::OnKeyLine(const ssl_st* ssl, const char* line) {
  auto* const self = static_cast<TlsHandshake*>(SSL_get_app_data(ssl));
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (self == nullptr || words.size() != 3) return;
  const bool is_clients = words[0] == "CLIENT_TRAFFIC_SECRET_0";
  if (!is_clients && words[0] != "SERVER_TRAFFIC_SECRET_0") return;
  std::string bytes = absl::HexStringToBytes(words[2]);
  TrafficSecret* const secret = is_clients ? &self->client_secret_ : &self->server_secret_;
  if (bytes.size() != secret->bytes.size()) return;
  memcpy(secret->bytes.data(), bytes.data(), bytes.size());
  OPENSSL_cleanse(bytes.data(), bytes.size());
  (is_clients ? self->has_client_secret_ : self->has_server_secret_) = true;
}

absl::StatusOr<TlsHandshake::Step> TlsHandshake::Flush() {
  BIO* const written = SSL_get_wbio(ssl_.get());
  if (const size_t pending = BIO_ctrl_pending(written); pending > 0) {
    const size_t had = out_.size();
    out_.resize(had + pending);
    CHECK_EQ(BIO_read(written, out_.data() + had, static_cast<int>(pending)), static_cast<int>(pending));
  }
  while (sent_ < out_.size()) {
    const ssize_t n = send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Step::kWantsOutput;
    if (n < 0) return absl::UnavailableError(absl::StrCat("TLS: ", strerror(errno)));
    sent_ += n;
  }
  out_.clear();
  sent_ = 0;
  return Step::kDone;
}

absl::StatusOr<bool> TlsHandshake::ReadRecord() {
  while (true) {
    size_t wanted = kRecordHeaderBytes;
    if (in_.size() >= kRecordHeaderBytes) wanted += static_cast<size_t>(in_[3]) << 8 | in_[4];
    if (wanted > kHandshakeRecordMax) return absl::InvalidArgumentError("the peer does not speak TLS");
    if (in_.size() >= kRecordHeaderBytes && in_.size() == wanted) return true;
    const size_t had = in_.size();
    in_.resize(wanted);
    const ssize_t n = recv(fd_, in_.data() + had, wanted - had, MSG_DONTWAIT);
    in_.resize(had + std::max<ssize_t>(n, 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) return absl::UnavailableError(absl::StrCat("TLS: ", strerror(errno)));
    if (n == 0) return absl::UnavailableError("the peer closed the connection instead of speaking TLS");
    if (in_[0] < 20 || in_[0] > 23 || (in_.size() > 1 && in_[1] != 3)) {
      return absl::UnauthenticatedError(role_ == TlsRole::kServer
                                            ? "the client does not speak TLS: give it --tls-dir=DIR"
                                            : "the server does not speak TLS: give it --tls-dir=DIR");
    }
  }
}

absl::StatusOr<TlsHandshake::Step> TlsHandshake::Go() {
  for (int records = 0;;) {
    NRAM_ASSIGN_OR_RETURN(const Step flushed, Flush());
    if (flushed != Step::kDone) return flushed;
    if (SSL_is_init_finished(ssl_.get())) return Step::kDone;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) {
      NRAM_RETURN_IF_ERROR(CheckPeer());
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), result);
    if (error != SSL_ERROR_WANT_READ) {
      const absl::Status refusal = Refusal(error);
      (void)Flush();  // the alert
      return refusal;
    }
    NRAM_ASSIGN_OR_RETURN(const Step told, Flush());
    if (told != Step::kDone) return told;
    if (records++ == kRecordsPerGo) return Step::kWantsInput;
    NRAM_ASSIGN_OR_RETURN(const bool whole, ReadRecord());
    if (!whole) return Step::kWantsInput;
    received_ += in_.size();
    if (received_ > kHandshakeBytesMax) return absl::UnauthenticatedError("no TLS 1.3: an endless handshake");
    CHECK_EQ(BIO_write(SSL_get_rbio(ssl_.get()), in_.data(), static_cast<int>(in_.size())),
             static_cast<int>(in_.size()));
    in_.clear();
  }
}

absl::Status TlsHandshake::Refusal(int error) {
  const long verified = SSL_get_verify_result(ssl_.get());
  const unsigned long why = ERR_peek_last_error();
  ERR_clear_error();
  const absl::string_view whose = role_ == TlsRole::kServer ? "the client" : "the server";
  if (verified != X509_V_OK) {
    const char* text = X509_verify_cert_error_string(verified);
    switch (verified) {
      case X509_V_ERR_INVALID_PURPOSE:
        text = role_ == TlsRole::kServer ? "it is not for clients (extended key usage)"
                                         : "it is not for servers (extended key usage \"server auth\")";
        break;
      case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
      case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        text = "no authority in this side's ca.pem has signed it";
        break;
      case X509_V_ERR_HOSTNAME_MISMATCH:
      case X509_V_ERR_IP_ADDRESS_MISMATCH:
        text = "it is for another host, not for the dialled one (nram keygen --host=...)";
        break;
      default:
        break;
    }
    return absl::UnauthenticatedError(absl::StrCat(whose, "'s certificate is not accepted: ", text));
  }
  if (ERR_GET_REASON(why) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return absl::UnauthenticatedError("the client has sent no certificate");
  }
  if (ERR_GET_REASON(why) >= SSL_AD_REASON_OFFSET) {
    return absl::UnauthenticatedError(AlertText(static_cast<uint8_t>(ERR_GET_REASON(why) - SSL_AD_REASON_OFFSET)));
  }
  const char* const reason = why == 0 ? nullptr : ERR_reason_error_string(why);
  return absl::UnauthenticatedError(
      absl::StrCat("no TLS 1.3 with ", whose, ": ", reason == nullptr ? absl::StrCat("error ", error) : reason));
}

absl::Status TlsHandshake::CheckPeer() {
  X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr || !has_client_secret_ || !has_server_secret_) {
    return absl::InternalError("OpenSSL ended a handshake without a certificate, or without secrets");
  }
  const unsigned char* protocol = nullptr;
  unsigned int protocol_bytes = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &protocol_bytes);
  if (protocol_bytes != sizeof kProtocol - 1 || memcmp(protocol, kProtocol + 1, protocol_bytes) != 0) {
    return absl::UnauthenticatedError("the peer speaks TLS, but not the protocol of nram");
  }
  if (!FindUri(certificate, &peer_.uri) || !IsFitName(peer_.uri)) {
    return absl::UnauthenticatedError(absl::StrCat("the certificate of ", NameOf(certificate),
                                                   " has several SPIFFE URIs, or one that is too long"));
  }
  peer_.name = FindName(certificate);
  if (!IsFitName(peer_.name)) peer_.name.clear();
  if (peer_.uri.empty() && peer_.name.empty()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "the certificate of ", NameOf(certificate),
        " has no identity: it needs a URI (spiffe://...) or one common name of at most 252 bytes without spaces"));
  }
  return absl::OkStatus();
}

TlsSession TlsHandshake::Take() {
  TlsSession session;
  const bool serves = role_ == TlsRole::kServer;
  session.to_send = serves ? server_secret_ : client_secret_;
  session.to_receive = serves ? client_secret_ : server_secret_;
  session.peer = peer_;
  ssl_.reset();
  return session;
}

}  // namespace nram
