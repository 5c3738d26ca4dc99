#include "base/http2/farewell.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace nram {
namespace {

std::string BigEndian(uint32_t number, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(number >> shift);
  return out;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view content) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(content.size()), 3), std::string(1, static_cast<char>(type)),
                      std::string(1, static_cast<char>(flags)), BigEndian(stream, 4), content);
}

// A string of HPACK (RFC 7541, section 5.2), without Huffman's code.
std::string HpackString(absl::string_view text) {
  constexpr size_t kPrefixMax = 127;
  std::string out;
  if (text.size() < kPrefixMax) {
    out += static_cast<char>(text.size());
  } else {
    out += static_cast<char>(kPrefixMax);
    size_t rest = text.size() - kPrefixMax;
    for (; rest >= 128; rest /= 128) out += static_cast<char>(rest % 128 + 128);
    out += static_cast<char>(rest);
  }
  return absl::StrCat(out, text);
}

// A field that is not put into the peer's table.
std::string Field(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'), HpackString(name), HpackString(value));
}

// As gRPC encodes its messages.
std::string PercentEncode(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      out += c;
    } else {
      absl::StrAppend(&out, "%", absl::BytesToHexString(absl::string_view(&c, 1)));
    }
  }
  return out;
}

std::string AnswerOf(const absl::Status& why) {
  constexpr char kStatus200 = static_cast<char>(0x88);  // ":status: 200" in HPACK's table
  const std::string headers =
      absl::StrCat(std::string(1, kStatus200), Field("content-type", "application/grpc"),
                   Field("grpc-status", absl::StrCat(static_cast<int>(why.code()))),
                   Field("grpc-message", PercentEncode(why.message().substr(0, Farewell::kMessageBytesMax))));
  return absl::StrCat(Frame(FrameType::kHeaders, kFlagEndStream | kFlagEndHeaders, 1, headers),
                      Frame(FrameType::kGoAway, 0, 0, BigEndian(1, 4) + BigEndian(0, 4)));
}

}  // namespace

Farewell::Farewell(const absl::Status& why) : answer_(AnswerOf(why)) {}

absl::Status Farewell::Take(absl::Span<const std::byte> bytes, std::string* out) {
  taken_bytes_ += bytes.size();
  if (taken_bytes_ > kBytesMax) return absl::InvalidArgumentError("the peer sends too much before its first call");
  bool acknowledges = false, answers = false;
  NRAM_RETURN_IF_ERROR(scanner_.Scan(bytes, [&](const FrameHeader& frame) {
    acknowledges = acknowledges || (frame.type == FrameType::kSettings && !frame.has(kFlagAck));
    answers = answers || (frame.type == FrameType::kHeaders && frame.stream == 1);
    return absl::OkStatus();
  }));
  if (scanner_.has_preface() && !has_greeted_) {
    has_greeted_ = true;
    absl::StrAppend(out, Frame(FrameType::kSettings, 0, 0, ""));
  }
  if (acknowledges && !has_acknowledged_) {
    has_acknowledged_ = true;
    absl::StrAppend(out, Frame(FrameType::kSettings, kFlagAck, 0, ""));
  }
  if (answers) {
    is_told_ = true;
    absl::StrAppend(out, answer_);
  }
  return absl::OkStatus();
}

}  // namespace nram
