#ifndef NRAM_CLIENT_POOL_SPAN_TABLE_H_
#define NRAM_CLIENT_POOL_SPAN_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "client/pool/placement.h"

namespace nram {

// A region's spans and where each is: 8 bytes a span and the table of blocks of 64; nothing but itself for a region of
// one span. Not thread-safe.
class SpanTable {
 public:
  // Not placed() if the span has never been set.
  SpanPlacement Find(uint64_t span) const {
    if (blocks_ == nullptr) return span == only_span_ ? only_ : SpanPlacement{};
    const auto it = blocks_->find(span / kSpansPerTableBlock);
    return it == blocks_->end() ? SpanPlacement{} : (*it->second)[span % kSpansPerTableBlock];
  }

  void Set(uint64_t span, const SpanPlacement& placement) {
    if (blocks_ == nullptr) {
      if (!only_.placed() || only_span_ == span) {
        only_span_ = span;
        only_ = placement;
        return;
      }
      blocks_ = std::make_unique<Blocks>();
      Slot(only_span_) = only_;
    }
    Slot(span) = placement;
  }

  // Bytes that the table takes beyond sizeof(SpanTable).
  size_t memory_bytes() const {
    if (blocks_ == nullptr) return 0;
    return sizeof(Blocks) + blocks_->size() * sizeof(Block) + blocks_->capacity() * (sizeof(Blocks::value_type) + 1);
  }

 private:
  static constexpr uint64_t kSpansPerTableBlock = 64;
  using Block = std::array<SpanPlacement, kSpansPerTableBlock>;
  using Blocks = absl::flat_hash_map<uint64_t, std::unique_ptr<Block>>;

  SpanPlacement& Slot(uint64_t span) {
    std::unique_ptr<Block>& block = (*blocks_)[span / kSpansPerTableBlock];
    if (block == nullptr) block = std::make_unique<Block>();
    return (*block)[span % kSpansPerTableBlock];
  }

  uint64_t only_span_ = 0;
  SpanPlacement only_;
  std::unique_ptr<Blocks> blocks_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SPAN_TABLE_H_
