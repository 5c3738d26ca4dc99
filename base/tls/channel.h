#ifndef NRAM_BASE_TLS_CHANNEL_H_
#define NRAM_BASE_TLS_CHANNEL_H_

// The bytes of one connection, plain or TLS. Both ends of both planes use it. It owns no descriptor.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "base/tls/handshake.h"
#include "base/tls/records.h"

namespace nram {

// Nothing blocks. One thread may send while another receives. Nothing allocates after construction.
class Channel {
 public:
  // `fd`: a non-blocking socket. `session`: of its handshake; null: plain.
  explicit Channel(int fd, const TlsSession* session = nullptr);
  ~Channel();
  Channel(const Channel&) = delete;

  int fd() const { return fd_; }
  bool is_tls() const { return tls_ != nullptr; }

  // Takes some of the pieces' bytes, in order, and returns how many; 0: the socket is full. Under TLS, bytes that were
  // taken may still be here, and the pieces are free all the same: while has_output(), call again when the socket can
  // be written, with nothing if there is nothing more. UNAVAILABLE: the connection is broken.
  absl::StatusOr<size_t> Send(absl::Span<const iovec> pieces);
  bool has_output() const { return tls_ != nullptr && tls_->out_begin != tls_->out_end; }

  struct Received {
    size_t bytes = 0;
    bool drained = false;  // there was no more
    bool ended = false;    // the peer has closed its end, and there is no more
  };
  // Fills the pieces (at least one), as far as data has arrived. UNAVAILABLE: the connection is broken; under TLS
  // also other errors: the data was changed on its way, or the peer refuses this end, and says why. kNo: under TLS,
  // only data that was received before.
  enum class Fill { kYes, kNo };
  absl::StatusOr<Received> Receive(absl::Span<const iovec> pieces, Fill fill = Fill::kYes);
  // Data has arrived that Receive has not returned, and the socket alone would not show it.
  bool has_input() const;

  // Memory of a channel with TLS.
  static size_t TlsBytes();

 private:
  // As much as is sent, or received, with one call of the kernel.
  static constexpr size_t kBufferBytes = 4 * kRecordBytesMax;

  struct Tls {
    explicit Tls(const TlsSession& session)
        : sealer(session.to_send),
          opener(session.to_receive),
          out(new std::byte[kBufferBytes]),
          in(new std::byte[kBufferBytes]),
          rest(Mapping::Anonymous(kRecordContentMax).value()) {
      rest.HideFromCoreDumps();
    }
    RecordSealer sealer;
    RecordOpener opener;
    // Sealed, and not taken by the socket.
    const std::unique_ptr<std::byte[]> out;
    size_t out_begin = 0, out_end = 0;
    // Received, and not opened.
    const std::unique_ptr<std::byte[]> in;
    size_t in_begin = 0, in_end = 0;
    // Opened, and not taken.
    const Mapping rest;
    size_t rest_begin = 0, rest_end = 0;
    absl::Status failed;  // to be told when all that came before was taken
  };

  // False: the socket is full.
  absl::StatusOr<bool> Flush();
  // Whether a whole record is there; its length.
  absl::StatusOr<bool> FindRecord(size_t* bytes) const;
  // Receives more records. `drained`, `ended`: as Received's.
  absl::Status ReceiveMore(Received* received);

  const int fd_;
  const std::unique_ptr<Tls> tls_;
};

}  // namespace nram

#endif  // NRAM_BASE_TLS_CHANNEL_H_
