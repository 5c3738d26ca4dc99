#ifndef NRAM_BASE_TLS_HANDSHAKE_H_
#define NRAM_BASE_TLS_HANDSHAKE_H_

// The handshake of TLS 1.3, by OpenSSL, over a non-blocking socket. Then OpenSSL is done: records.h has the rest.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tls/context.h"
#include "base/tls/secret.h"

struct ssl_st;
struct x509_st;

namespace nram {

// The peer's identity, as its certificate states it, which an authority of ours has signed.
struct TlsPeer {
  std::string uri;   // of the certificate: spiffe://...; empty if it has none or several
  std::string name;  // its common name; printable
  // "spiffe://..." if there is one, else "cn:NAME".
  std::string identity() const { return uri.empty() ? "cn:" + name : uri; }
};

struct TlsSession {
  TrafficSecret to_send, to_receive;
  TlsPeer peer;
};

// Not thread-safe. Costs about a millisecond of the processor, and memory of OpenSSL's, which go with it.
class TlsHandshake {
 public:
  // `host`: of a client, the name or numeric address that it has dialled, which the server's certificate must have; not
  // empty. `context` and the descriptor outlive it.
  TlsHandshake(TlsContext* context, int fd, const std::string& host = "");
  ~TlsHandshake();

  enum class Step { kDone, kWantsInput, kWantsOutput };
  // Goes on without blocking. Reads no byte beyond the handshake. An error ends it: the message names the reason, and
  // an alert has told the peer, if the socket took it.
  absl::StatusOr<Step> Go();
  // After kDone, once.
  TlsSession Take();

 private:
  absl::StatusOr<Step> Flush();
  absl::StatusOr<bool> ReadRecord();  // false: not all of it has come
  absl::Status Refusal(int result);
  absl::Status CheckPeer();

  const TlsRole role_;
  const int fd_;
  const std::shared_ptr<ssl_ctx_st> context_;
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
  TrafficSecret client_secret_, server_secret_;
  bool has_client_secret_ = false;
  bool has_server_secret_ = false;
  TlsPeer peer_;
  std::vector<uint8_t> out_;  // not yet taken by the socket
  size_t sent_ = 0;
  std::vector<uint8_t> in_;  // a record that has not come whole
  size_t received_ = 0;      // in all

  static void OnKeyLine(const ssl_st* ssl, const char* line);
  friend class TlsContext;
};

}  // namespace nram

#endif  // NRAM_BASE_TLS_HANDSHAKE_H_
