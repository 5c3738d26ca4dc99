#include "memserver/connection.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {

ReplyBuffers::ReplyBuffers(size_t count) {
  memory_ = Mapping::Anonymous(count * kBufferBytes).value();
  memory_.HideFromCoreDumps();
  for (size_t i = count; i > 0; --i) free_.push_back(memory_.data() + (i - 1) * kBufferBytes);
}

std::byte* ReplyBuffers::Take() {
  if (free_.empty()) return nullptr;
  std::byte* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

Connection::Connection(UniqueFd fd, const TlsSession* tls, std::string peer, const SessionContext& context,
                       ReplyBuffers* buffers, int64_t now_ns)
    : fd_(std::move(fd)),
      channel_(fd_.get(), tls),
      peer_(std::move(peer)),
      buffers_(buffers),
      session_(context, /*takes_turns=*/true),
      now_ns_(now_ns),
      progress_ns_(now_ns),
      rest_ns_(now_ns) {}

Connection::~Connection() {
  if (reply_.data != nullptr) buffers_->Give(reply_.data);
}

absl::StatusOr<bool> Connection::OnHeader(const MessageHeader& header, const PayloadTables& tables, Landing* landing) {
  return session_.Begin(header, tables, reply_.room(), landing);
}

absl::Status Connection::OnMessage(const MessageHeader& header, absl::Span<const uint32_t> page_crcs) {
  rest_ns_ = now_ns_;
  NRAM_RETURN_IF_ERROR(session_.Execute(header, page_crcs, &reply_));
  if (header.op == Op::kHello && place_.has_value()) place_->NoteBound(session_.lease());
  return absl::OkStatus();
}

void Connection::NoteProgress() {
  // Before hello, the time counts from the connection's beginning, however many bytes it sends.
  if (session_.bound()) progress_ns_ = now_ns_;
}

void Connection::NoteRest() {
  NoteProgress();
  rest_ns_ = now_ns_;
}

absl::StatusOr<bool> Connection::Flush() {
  while (sent_ < reply_.used) {
    const iovec piece{reply_.data + sent_, reply_.used - sent_};
    NRAM_ASSIGN_OR_RETURN(const size_t taken, channel_.Send({&piece, 1}));
    if (taken == 0) return false;
    sent_ += taken;
    NoteProgress();
  }
  if (channel_.has_output()) {
    NRAM_RETURN_IF_ERROR(channel_.Send({}).status());
    if (channel_.has_output()) return false;
    NoteProgress();
  }
  if (sent_ > 0) rest_ns_ = now_ns_;
  sent_ = reply_.used = 0;
  return true;
}

absl::StatusOr<Connection::State> Connection::Pump(int64_t now_ns) {
  now_ns_ = now_ns;
  if (!has_output() && !reader_.mid_message()) rest_ns_ = now_ns;
  if (reply_.data == nullptr) {
    // Data to be sealed is sent from the buffer: no page waits in place for its record.
    reply_ = {buffers_->Take(), ReplyBuffers::kBufferBytes, 0, channel_.is_tls() ? nullptr : &channel_};
    if (reply_.data == nullptr) {
      NoteRest();
      return State::kStarved;
    }
  }
  State state = State::kMore;
  bool paused = false;
  for (int round = 0; round < kRoundsMax && state == State::kMore; ++round) {
    // Small replies wait for each other while there are more requests to read, so that they wake the peer once.
    if (sent_ > 0 || paused || reply_.used >= kFlushBytes) {
      NRAM_ASSIGN_OR_RETURN(const bool flushed, Flush());
      if (!flushed) return State::kWantsOut;
      paused = false;
    }
    if (session_.busy()) {
      NRAM_RETURN_IF_ERROR(session_.Continue(&reply_));
      NoteRest();
      if (session_.busy()) break;  // other connections have their turn
      continue;
    }
    NRAM_ASSIGN_OR_RETURN(const MessageReader::Progress progress, reader_.ReadFrom(&channel_, this));
    switch (progress) {
      case MessageReader::Progress::kRead:
        NoteProgress();
        break;
      case MessageReader::Progress::kDrained:
        NoteProgress();
        state = State::kIdle;
        break;
      case MessageReader::Progress::kWouldBlock:
        state = round == 0 ? State::kNothing : State::kIdle;
        break;
      case MessageReader::Progress::kPaused:
        // If there are replies to send, it has paused for room in the reply buffer, which the next Flush makes. If the
        // session is busy, it has paused for a request that is in the middle of its steps.
        if (reply_.used == 0 && !session_.busy()) {
          state = State::kStarved;
          session_.NoteWaits(now_ns);
        }
        paused = true;
        NoteRest();
        break;
      case MessageReader::Progress::kEnd:
        state = State::kEnded;
        break;
    }
  }
  if (session_.busy()) state = State::kMore;
  NRAM_ASSIGN_OR_RETURN(const bool flushed, Flush());
  if (!flushed) return state == State::kEnded ? state : State::kWantsOut;
  buffers_->Give(std::exchange(reply_.data, nullptr));
  reply_ = {};
  session_.Replied();
  return state;
}

absl::Status Connection::CheckStall(int64_t now_ns, int64_t limit_ns) const {
  const char* doing = has_output()            ? "taking replies"
                      : reader_.mid_message() ? "sending a message"
                      : !session_.bound()     ? "saying hello"
                      : session_.fenced()     ? "closing after a newer connection replaced it"
                      : !session_.live()      ? "closing after its lease ended"
                                              : nullptr;
  if (doing == nullptr) return absl::OkStatus();
  if (now_ns - progress_ns_ > limit_ns) {
    return absl::DeadlineExceededError(absl::StrCat("no progress in ", doing, " for ", limit_ns / kNsPerMs, " ms"));
  }
  const bool holds = has_output() || reader_.mid_message();
  if (holds && now_ns - rest_ns_ > kPaceFactor * limit_ns) {
    return absl::DeadlineExceededError(
        absl::StrCat("too slow in ", doing, ": not done in ", kPaceFactor * limit_ns / kNsPerMs, " ms"));
  }
  return absl::OkStatus();
}

}  // namespace nram
