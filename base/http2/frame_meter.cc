#include "base/http2/frame_meter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer breaks HTTP/2: ", what));
}

// Lengths that RFC 9113 fixes.
bool HasRightLength(const FrameHeader& frame) {
  switch (frame.type) {
    case FrameType::kPriority:
      return frame.content_bytes == 5;
    case FrameType::kReset:
    case FrameType::kWindowUpdate:
      return frame.content_bytes == 4;
    case FrameType::kPing:
      return frame.content_bytes == 8;
    case FrameType::kSettings:
      return frame.content_bytes % 6 == 0 && frame.content_bytes <= FrameMeter::kSettingsBytesMax;
    default:
      return true;
  }
}

FrameMeter::Kind KindOf(FrameType type) {
  switch (type) {
    case FrameType::kHeaders:
      return FrameMeter::kStreams;
    case FrameType::kWindowUpdate:
      return FrameMeter::kWindows;
    case FrameType::kPing:
      return FrameMeter::kPings;
    case FrameType::kReset:
      return FrameMeter::kResets;
    case FrameType::kSettings:
      return FrameMeter::kSettings;
    case FrameType::kContinuation:
      return FrameMeter::kContinuations;
    case FrameType::kPriority:
      return FrameMeter::kPriorities;
    default:
      return FrameMeter::kOthers;
  }
}

}  // namespace

const FrameMeter::Rate& FrameMeter::RateOf(Kind kind) {
  // An honest gRPC peer: one or two HEADERS a call; a WINDOW_UPDATE for each 32 KiB or so; one PING under way at a
  // time; RST_STREAM of 16 calls that reach their deadlines, and then another connection.
  static constexpr Rate kRates[kKinds] = {
      {"HEADERS", 32'768, 16'384},
      {"WINDOW_UPDATE", 16'384, 8'192},
      {"PING", 256, 64},
      {"RST_STREAM", 64, 8},
      {"SETTINGS", 64, 4},
      {"empty DATA", 64, 4},
      {"CONTINUATION", 16, 1},
      {"PRIORITY", 16, 1},
      {"other", 16, 1},
  };
  return kRates[kind];
}

FrameMeter::FrameMeter(FrameScanner::Sender sender)
    : counts_streams_(sender == FrameScanner::Sender::kClient),
      scanner_(sender),
      // The peer may have asked for long frames.
      sent_scanner_(counts_streams_ ? FrameScanner::Sender::kServer : FrameScanner::Sender::kClient, 0xffffff) {}

absl::Status FrameMeter::Take(absl::Span<const std::byte> bytes, int64_t now_ns) {
  return scanner_.Scan(bytes, [&](const FrameHeader& frame) { return Judge(frame, now_ns); });
}

void FrameMeter::NoteSent(absl::Span<const std::byte> bytes) {
  if (!counts_streams_) return;
  const auto note = [this](const FrameHeader& frame) {
    const bool may_end = frame.type == FrameType::kHeaders || frame.type == FrameType::kData;
    if (frame.type == FrameType::kReset || (may_end && frame.has(kFlagEndStream))) EndStream(frame.stream);
    return absl::OkStatus();
  };
  sent_scanner_.Scan(bytes, note).IgnoreError();
}

absl::Status FrameMeter::Judge(const FrameHeader& frame, int64_t now_ns) {
  if (!HasRightLength(frame)) {
    return Bad(absl::StrCat("a frame of type ", static_cast<int>(frame.type), " has ", frame.content_bytes, " bytes"));
  }
  NRAM_RETURN_IF_ERROR(TakeBlock(frame));
  if (counts_streams_ && frame.type == FrameType::kHeaders) NRAM_RETURN_IF_ERROR(OpenStream(frame.stream));
  if (counts_streams_ && frame.type == FrameType::kReset) EndStream(frame.stream);
  if (frame.type != FrameType::kData) return Count(KindOf(frame.type), now_ns);
  if (frame.content_bytes > 0) return absl::OkStatus();
  // gRPC may end a stream by one.
  return Count(frame.has(kFlagEndStream) ? kStreams : kEmptyData, now_ns);
}

absl::Status FrameMeter::TakeBlock(const FrameHeader& frame) {
  const bool goes_on = frame.type == FrameType::kContinuation;
  if (goes_on != (block_stream_ != 0) || (goes_on && frame.stream != block_stream_)) {
    return Bad("CONTINUATION does not follow its HEADERS");
  }
  if (!goes_on && frame.type != FrameType::kHeaders) return absl::OkStatus();
  if (frame.stream == 0) return Bad("HEADERS without a stream");
  block_bytes_ = frame.content_bytes + (goes_on ? block_bytes_ : 0);
  block_continuations_ = goes_on ? block_continuations_ + 1 : 0;
  if (block_bytes_ > kBlockBytesMax || block_continuations_ > kBlockContinuationsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer sends a header block of more than ", kBlockBytesMax,
                                                     " bytes, or more than ", kBlockContinuationsMax,
                                                     " CONTINUATION frames"));
  }
  block_stream_ = frame.has(kFlagEndHeaders) ? 0 : frame.stream;
  return absl::OkStatus();
}

absl::Status FrameMeter::OpenStream(uint32_t stream) {
  if (stream % 2 == 0) return Bad("a client opens a stream with an even number");
  // Trailers, or HEADERS of a stream that has ended. gRPC opens none for them either: numbers only rise.
  if (stream <= last_stream_) return absl::OkStatus();
  last_stream_ = stream;
  if (open_count_ == kOpenStreamsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the peer has more than ", kOpenStreamsMax, " HTTP/2 streams open at once"));
  }
  open_[open_count_++] = stream;
  return absl::OkStatus();
}

void FrameMeter::EndStream(uint32_t stream) {
  const auto end = open_.begin() + static_cast<ptrdiff_t>(open_count_);
  const auto at = std::find(open_.begin(), end, stream);
  if (at == end) return;
  *at = open_[--open_count_];
}

absl::Status FrameMeter::Count(Kind kind, int64_t now_ns) {
  const Rate& rate = RateOf(kind);
  const int64_t each_ns = kNsPerSecond / rate.each_second;
  const int64_t full_ns = std::max(full_ns_[kind], now_ns) + each_ns;
  if (full_ns - now_ns > rate.at_once * each_ns) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer sends too many HTTP/2 frames: more than ", rate.at_once,
                                                     " ", rate.name, " at once, and ", rate.each_second,
                                                     " each second"));
  }
  full_ns_[kind] = full_ns;
  return absl::OkStatus();
}

}  // namespace nram
