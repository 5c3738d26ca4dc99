#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/tls/authority.h"
#include "base/tls/channel.h"
#include "base/tls/context.h"
#include "base/tls/handshake.h"
#include "base/tls/records.h"
#include "base/tls/test_certificates.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

constexpr RecordType kTypes[] = {RecordType::kData, RecordType::kAlert, RecordType::kHandshake,
                                 RecordType::kChangeCipherSpec};

struct Wire {
  Wire() {
    int ends[2];
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  UniqueFd ours, theirs;
};

// A peer with the keys seals records of any kind, and an attacker in between changes them. The channel must deliver a
// beginning of the sent data.
void Records(FuzzInput* input) {
  TlsSession session;
  session.to_receive.bytes.fill(3);
  RecordSealer sealer(session.to_receive, /*records_per_key=*/1 + input->Byte() % 8);
  std::string sent, stream, former;
  while (!input->empty() && stream.size() < 60'000) {
    const uint8_t how = input->Byte();
    const RecordType type = how % 4 != 0 ? RecordType::kData : kTypes[how / 4 % 4];
    const absl::string_view content = input->Take(how % 16 == 5 ? 0 : input->Byte());
    const iovec piece{const_cast<char*>(content.data()), content.size()};
    PieceCursor from({&piece, 1});
    std::string out(content.size() + RecordSealer::kRoomBytes, '\0');
    out.resize(sealer.Seal(type, &from, content.size(), reinterpret_cast<std::byte*>(out.data())));
    if (type == RecordType::kData) sent.append(content.data(), content.size());
    const uint8_t harm = input->Byte();
    if (harm >= 240 && !out.empty()) {
      const size_t at = input->Byte() % out.size();
      if (harm < 244) out[at] = static_cast<char>(out[at] ^ (1 << harm % 8));
      if (harm == 244) out += out;
      if (harm == 245) out.resize(at);
      if (harm == 246) out = former;
      if (harm == 247) out.insert(at, std::string(input->Take(input->Byte())));
    }
    if (out.size() < 1'000) former = out;
    stream += out;
  }
  Wire wire;
  Channel channel(wire.ours.get(), &session);
  std::string got;
  size_t passed = 0;
  const size_t step = 1 + stream.size() / 7;
  while (true) {
    if (passed < stream.size()) {
      const ssize_t n = send(wire.theirs.get(), stream.data() + passed, std::min(step, stream.size() - passed), 0);
      if (n > 0) passed += static_cast<size_t>(n);
      if (passed == stream.size()) shutdown(wire.theirs.get(), SHUT_WR);
    }
    std::array<char, 700> some;
    const iovec pieces[] = {{some.data(), 100}, {some.data() + 100, 600}};
    const absl::StatusOr<Channel::Received> received = channel.Receive(pieces);
    if (!received.ok()) break;
    got.append(some.data(), received->bytes);
    CHECK(got.size() <= sent.size() && sent.compare(0, got.size(), got) == 0) << "bytes that nobody sent";
    if (received->ended || (stream.empty() && received->bytes == 0)) break;
  }
}

// A server's handshake with any bytes.
void Handshake(FuzzInput* input) {
  static TestCertificates* const certificates = new TestCertificates("fuzz_tls");
  static const auto context = new std::shared_ptr<TlsContext>(certificates->Load(TlsRole::kServer));
  Wire wire;
  TlsHandshake handshake(context->get(), wire.ours.get());
  while (!input->empty()) {
    const absl::string_view some = input->Take(1 + input->Byte());
    (void)!send(wire.theirs.get(), some.data(), some.size(), 0);
    const absl::StatusOr<TlsHandshake::Step> step = handshake.Go();
    if (!step.ok()) return;
    CHECK(*step != TlsHandshake::Step::kDone) << "a handshake with nobody";
  }
}

}  // namespace

void FuzzTls(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.Byte() % 4 == 0) {
    Handshake(&input);
  } else {
    Records(&input);
  }
}

}  // namespace nram
