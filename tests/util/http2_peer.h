#ifndef NRAM_TESTS_UTIL_HTTP2_PEER_H_
#define NRAM_TESTS_UTIL_HTTP2_PEER_H_

// A gRPC client that misbehaves: it knows just enough HTTP/2 to make calls and not to take their answers.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/fd.h"
#include "gtest/gtest.h"

namespace nram {

class Http2Peer {
 public:
  // Connects and sends nothing.
  explicit Http2Peer(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  // Begins to speak. The server may send `window` bytes of each call's answer.
  void Greet(uint32_t window) {
    std::string settings;
    settings += std::string("\x00\x04", 2);  // SETTINGS_INITIAL_WINDOW_SIZE
    for (int shift = 24; shift >= 0; shift -= 8) settings += static_cast<char>(window >> shift);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, settings));
  }

  // Calls a method of nram.v1.Control with a request's bytes. If `sent` is smaller, sends only that many bytes of the
  // request, and no end.
  void Call(const std::string& method, const std::string& request, size_t sent = std::string::npos) {
    Send(NextCall(method, request, sent));
  }

  // Makes `calls` calls, `at_once` in each piece that it sends, whether or not they are answered. It takes the answers,
  // but acknowledges nothing. `bad_te`: each call has a header that gRPC refuses. Returns early if the server closes
  // the connection, or takes nothing for some seconds.
  void Flood(int calls, int at_once, bool bad_te) {
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    for (int made = 0; made < calls; made += at_once) {
      std::string piece;
      for (int i = 0; i < at_once; ++i) piece += NextCall("Hello", "", std::string::npos, bad_te);
      if (!Send(piece)) return;
      char answers[16'384];
      while (recv(fd_.get(), answers, sizeof answers, MSG_DONTWAIT) > 0) {
      }
    }
  }

 private:
  static constexpr size_t kFrameBytesMax = 16'384;  // the peers' limit, unless they announce another one

  std::string NextCall(const std::string& method, const std::string& request, size_t sent, bool bad_te = false) {
    const uint32_t stream = next_stream_;
    next_stream_ += 2;
    std::string headers;
    headers += Literal(":method", "POST") + Literal(":scheme", "http") + Literal(":authority", "test");
    headers += Literal(":path", "/nram.v1.Control/" + method);
    headers += Literal("te", "trailers") + Literal("content-type", "application/grpc");
    if (bad_te) headers += Literal("te", "nonsense");
    std::string message(1, '\0');
    for (int shift = 24; shift >= 0; shift -= 8) message += static_cast<char>(request.size() >> shift);
    message += request;
    const bool whole = sent >= message.size();
    std::string frames = Frame(1, /*END_HEADERS*/ 4, stream, headers);
    message.resize(std::min(message.size(), sent));
    for (size_t at = 0; at == 0 || at < message.size(); at += kFrameBytesMax) {
      const bool last = at + kFrameBytesMax >= message.size();
      frames += Frame(0, whole && last ? 1 : 0, stream, message.substr(at, kFrameBytesMax));
    }
    return frames;
  }

  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
    std::string frame;
    for (int shift = 16; shift >= 0; shift -= 8) frame += static_cast<char>(payload.size() >> shift);
    frame += static_cast<char>(type);
    frame += static_cast<char>(flags);
    for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(stream >> shift);
    return frame + payload;
  }
  // A header without compression, which the peer must not keep.
  static std::string Literal(const std::string& name, const std::string& value) {
    return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
  }
  // A connection that the server has closed takes nothing more.
  bool Send(const std::string& bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  UniqueFd fd_;
  bool connected_ = false;
  uint32_t next_stream_ = 1;
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_HTTP2_PEER_H_
