#include "proto/message_reader.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32c.h"
#include "base/plant.h"
#include "base/status.h"

namespace nram {

size_t Landing::bytes() const {
  size_t sum = 0;
  for (const iovec& piece : pieces()) sum += piece.iov_len;
  return sum;
}

void Landing::Add(std::byte* data, size_t bytes) {
  if (count_ > 0) {
    iovec& last = pieces_[count_ - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
      last.iov_len += bytes;
      return;
    }
  }
  CHECK_LT(count_, kPiecesMax);
  pieces_[count_++] = {data, bytes};
}

MessageReader::MessageReader(size_t buffer_bytes)
    : buffer_bytes_(buffer_bytes), buffer_(Mapping::Anonymous(buffer_bytes).value()) {
  CHECK_GE(buffer_bytes, kBufferBytesMin);
  buffer_.HideFromCoreDumps();
}

absl::StatusOr<MessageReader::Progress> MessageReader::ReadFrom(Channel* channel, Handler* handler,
                                                                Channel::Fill fill) {
  NRAM_ASSIGN_OR_RETURN(const bool ready, Dispatch(handler));
  if (!ready) return Progress::kPaused;
  MakeRoom();
  // The payload's bytes go straight to where they land, the bytes after them into the buffer.
  iovec pieces[Landing::kPiecesMax + 1];
  size_t count = 0;
  size_t direct = 0;
  if (in_payload_ && !dropping_) {
    const auto landing = landing_.pieces();
    for (size_t i = landing_piece_; i < landing.size(); ++i) {
      const size_t skip = i == landing_piece_ ? landing_offset_ : 0;
      pieces[count++] = {static_cast<std::byte*>(landing[i].iov_base) + skip, landing[i].iov_len - skip};
      direct += landing[i].iov_len - skip;
    }
  }
  // A large message often follows a large one. So only the next header is read ahead, and the next payload can land
  // where it belongs.
  size_t ahead = buffer_bytes_ - end_;
  if (header_.payload_bytes >= kLargePayloadBytes && !dropping_) ahead = std::min(ahead, kSmallReadAheadBytes);
  pieces[count++] = {buffer_.data() + end_, ahead};
  NRAM_ASSIGN_OR_RETURN(const Channel::Received received, channel->Receive({pieces, count}, fill));
  if (received.bytes == 0) {
    if (!received.ended) return Progress::kWouldBlock;
    if (mid_message()) return absl::UnavailableError("the peer closed the connection within a message");
    return Progress::kEnd;
  }
  const size_t landed = std::min(received.bytes, direct);
  if (landed > 0) AccountLanded(landed);
  end_ += received.bytes - landed;
  NRAM_ASSIGN_OR_RETURN(const bool all, Dispatch(handler));
  if (!all) return Progress::kPaused;
  return received.drained ? Progress::kDrained : Progress::kRead;
}

absl::StatusOr<bool> MessageReader::Feed(absl::Span<const std::byte> bytes, size_t* taken, Handler* handler) {
  *taken = 0;
  while (*taken < bytes.size()) {
    NRAM_ASSIGN_OR_RETURN(const bool ready, Dispatch(handler));
    if (!ready) return false;
    MakeRoom();
    const size_t step = std::min(bytes.size() - *taken, buffer_bytes_ - end_);
    memcpy(buffer_.data() + end_, bytes.data() + *taken, step);
    end_ += step;
    *taken += step;
  }
  return Dispatch(handler);
}

void MessageReader::MakeRoom() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    // Unless the handler pauses, less than a header and its tables is left here.
    memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

absl::StatusOr<bool> MessageReader::Dispatch(Handler* handler) {
  while (true) {
    if (in_payload_) {
      TakeFromBuffer();
      if (payload_left_ > 0) return true;
      NRAM_RETURN_IF_ERROR(FinishMessage(handler));
      continue;
    }
    if (end_ - begin_ < kMessageHeaderBytes) return true;
    const std::byte* at = buffer_.data() + begin_;
    NRAM_RETURN_IF_ERROR(DecodeHeader(at, &header_));
    const size_t table_bytes = header_.table_bytes();
    if (end_ - begin_ < kMessageHeaderBytes + table_bytes) return true;
    const absl::Span<const uint8_t> tables(reinterpret_cast<const uint8_t*>(at + kMessageHeaderBytes), table_bytes);
    if (table_bytes > 0) NRAM_RETURN_IF_ERROR(CheckTables(header_, tables));
    const absl::Span<const ChunkMask> masks = tables.subspan(0, header_.mask_bytes());
    const absl::Span<const PageSeal> seals(reinterpret_cast<const PageSeal*>(tables.data() + masks.size()),
                                           header_.seal_bytes() / sizeof(PageSeal));
    landing_.clear();
    NRAM_ASSIGN_OR_RETURN(const bool accepted, handler->OnHeader(header_, {masks, seals}, &landing_));
    if (!accepted) return false;
    payload_left_ = header_.payload_bytes - table_bytes;
    dropping_ = landing_.empty();
    CHECK(dropping_ || landing_.bytes() == payload_left_);
    landing_piece_ = landing_offset_ = 0;
    memcpy(encoded_.data(), at, kMessageHeaderBytes);
    if (header_.payload_bytes > 0) {
      const ChunkRange range = header_.range();
      const uint64_t first_page = range.first_page();
      for (size_t i = 0; i < range.pages(); ++i) {
        masks_[i] = masks.empty() ? MaskOfPage(range, first_page + i) : masks[i];
        page_crcs_[i] = 0;
      }
      tables_crc_ = table_bytes > 0 ? Crc32c(0, tables.data(), table_bytes) : 0;
      page_ = 0;
      page_left_ = std::popcount(masks_[0]) * kChunkBytes;
    }
    begin_ += kMessageHeaderBytes + table_bytes;
    in_payload_ = true;
  }
}

void MessageReader::TakeFromBuffer() {
  while (payload_left_ > 0 && begin_ < end_) {
    size_t step = std::min(payload_left_, end_ - begin_);
    const std::byte* from = buffer_.data() + begin_;
    if (!dropping_) {
      const iovec& piece = landing_.pieces()[landing_piece_];
      step = std::min(step, piece.iov_len - landing_offset_);
      memcpy(static_cast<std::byte*>(piece.iov_base) + landing_offset_, from, step);
      landing_offset_ += step;
      if (landing_offset_ == piece.iov_len) {
        ++landing_piece_;
        landing_offset_ = 0;
      }
    }
    Checksum(from, step);
    begin_ += step;
  }
}

void MessageReader::AccountLanded(size_t bytes) {
  while (bytes > 0) {
    const iovec& piece = landing_.pieces()[landing_piece_];
    const size_t step = std::min(bytes, piece.iov_len - landing_offset_);
    Checksum(static_cast<std::byte*>(piece.iov_base) + landing_offset_, step);
    bytes -= step;
    landing_offset_ += step;
    if (landing_offset_ == piece.iov_len) {
      ++landing_piece_;
      landing_offset_ = 0;
    }
  }
}

void MessageReader::Checksum(const std::byte* data, size_t bytes) {
  payload_left_ -= bytes;
  while (bytes > 0) {
    while (page_left_ == 0) page_left_ = std::popcount(masks_[++page_]) * kChunkBytes;
    const size_t step = std::min(bytes, page_left_);
    page_crcs_[page_] = Crc32c(page_crcs_[page_], data, step);
    page_left_ -= step;
    data += step;
    bytes -= step;
  }
}

absl::Status MessageReader::FinishMessage(Handler* handler) {
  in_payload_ = false;
  const bool has_payload = header_.payload_bytes > 0;
  const absl::Span<const uint32_t> page_crcs(page_crcs_.data(), has_payload ? header_.range().pages() : 0);
  const uint32_t crc = has_payload ? PayloadCrcAfterTables(tables_crc_, page_crcs) : 0;
  if (!MatchesChecksum(encoded_.data(), crc) && !NRAM_PLANTED(checksum_not_checked)) {
    handler->OnCorrupt(header_);
    return absl::DataLossError("wrong checksum");
  }
  return handler->OnMessage(header_, page_crcs);
}

}  // namespace nram
