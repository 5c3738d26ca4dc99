#include "base/tls/channel.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {
namespace {

absl::Status Broken(const char* what) { return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno))); }

bool IsForLater(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

Channel::Channel(int fd, const TlsSession* session)
    : fd_(fd), tls_(session == nullptr ? nullptr : std::make_unique<Tls>(*session)) {}

Channel::~Channel() = default;

size_t Channel::TlsBytes() { return sizeof(Tls) + 2 * kBufferBytes + kRecordContentMax + 8192; }

absl::StatusOr<size_t> Channel::Send(absl::Span<const iovec> pieces) {
  if (tls_ == nullptr) {
    ssize_t n = 0;
    if (pieces.size() == 1) {
      n = send(fd_, pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(pieces.data());
      message.msg_iovlen = pieces.size();
      n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (n >= 0) return static_cast<size_t>(n);
    if (IsForLater(errno)) return 0;
    return Broken("send");
  }
  NRAM_ASSIGN_OR_RETURN(const bool flushed, Flush());
  if (!flushed) return 0;
  PieceCursor from(pieces);
  size_t taken = 0;
  while (!from.at_end() && kBufferBytes - tls_->out_end >= kRecordBytesMax + RecordSealer::kRoomBytes) {
    const size_t content = from.Left(kRecordContentMax);
    const size_t sealed = tls_->sealer.Seal(RecordType::kData, &from, content, tls_->out.get() + tls_->out_end);
    if (sealed == 0) return absl::UnavailableError("the keys of this TLS connection are used up");
    tls_->out_end += sealed;
    taken += content;
  }
  NRAM_RETURN_IF_ERROR(Flush().status());
  return taken;
}

absl::StatusOr<bool> Channel::Flush() {
  while (has_output()) {
    const ssize_t n =
        send(fd_, tls_->out.get() + tls_->out_begin, tls_->out_end - tls_->out_begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) return Broken("send");
    tls_->out_begin += n;
  }
  tls_->out_begin = tls_->out_end = 0;
  return true;
}

absl::StatusOr<bool> Channel::FindRecord(size_t* bytes) const {
  const size_t have = tls_->in_end - tls_->in_begin;
  if (have < kRecordHeaderBytes) return false;
  NRAM_RETURN_IF_ERROR(RecordOpener::ReadHeader(tls_->in.get() + tls_->in_begin, bytes));
  return have >= *bytes;
}

bool Channel::has_input() const {
  if (tls_ == nullptr) return false;
  if (tls_->rest_begin != tls_->rest_end || !tls_->failed.ok()) return true;
  size_t bytes = 0;
  const absl::StatusOr<bool> whole = FindRecord(&bytes);
  return !whole.ok() || *whole;
}

absl::Status Channel::ReceiveMore(Received* received) {
  if (tls_->in_begin > 0) {
    memmove(tls_->in.get(), tls_->in.get() + tls_->in_begin, tls_->in_end - tls_->in_begin);
    tls_->in_end -= tls_->in_begin;
    tls_->in_begin = 0;
  }
  const size_t room = kBufferBytes - tls_->in_end;
  const ssize_t n = recv(fd_, tls_->in.get() + tls_->in_end, room, MSG_DONTWAIT);
  if (n < 0 && !IsForLater(errno)) return Broken("receive");
  // Less than there was room for: asking again would cost a call to be told that there is nothing.
  received->drained = n != 0 && n < static_cast<ssize_t>(room);
  if (n == 0) {
    // A peer that ends in good order says so in a record. A cut that looks like it would pass for an end.
    if (tls_->in_end > 0) return absl::UnavailableError("the connection was closed within a TLS record");
    received->ended = true;
  }
  tls_->in_end += std::max<ssize_t>(n, 0);
  return absl::OkStatus();
}

absl::StatusOr<Channel::Received> Channel::Receive(absl::Span<const iovec> pieces, Fill fill) {
  Received received;
  if (tls_ == nullptr) {
    ssize_t n = 0;
    size_t room = pieces[0].iov_len;
    for (size_t i = 1; i < pieces.size(); ++i) room += pieces[i].iov_len;
    if (pieces.size() == 1) {
      n = recv(fd_, pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT);
    } else {
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(pieces.data());
      message.msg_iovlen = pieces.size();
      n = recvmsg(fd_, &message, MSG_DONTWAIT);
    }
    if (n < 0 && !IsForLater(errno)) return Broken("receive");
    received.bytes = std::max<ssize_t>(n, 0);
    received.drained = received.bytes < room;
    received.ended = n == 0;
    return received;
  }
  for (PieceCursor to(pieces); tls_->failed.ok();) {
    if (to.at_end()) {
      received.drained = false;  // more may be here
      break;
    }
    if (const size_t left = tls_->rest_end - tls_->rest_begin; left > 0) {
      const size_t step = std::min(left, to.bytes());
      memcpy(to.data(), tls_->rest.data() + tls_->rest_begin, step);
      to.Advance(step);
      tls_->rest_begin += step;
      received.bytes += step;
      continue;
    }
    size_t record_bytes = 0;
    NRAM_ASSIGN_OR_RETURN(const bool whole, FindRecord(&record_bytes));
    if (!whole && (fill == Fill::kNo || received.drained || received.ended)) {
      received.drained = !received.ended;
      break;
    }
    if (!whole) {
      NRAM_RETURN_IF_ERROR(ReceiveMore(&received));
      continue;
    }
    const absl::Span<const std::byte> record(tls_->in.get() + tls_->in_begin, record_bytes);
    size_t rest_bytes = 0;
    const absl::StatusOr<size_t> landed = tls_->opener.Open(record, &to, tls_->rest.data(), &rest_bytes);
    if (!landed.ok()) {
      tls_->failed = landed.status();
      received.drained = false;  // the next call returns the error
      break;
    }
    tls_->in_begin += record_bytes;
    tls_->rest_begin = 0;
    tls_->rest_end = rest_bytes;
    received.bytes += *landed;
  }
  if (received.bytes == 0 && !tls_->failed.ok()) return tls_->failed;
  return received;
}

}  // namespace nram
