#include "tests/sim/publish_model.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nram::sim {
namespace {

using Chunk = std::array<uint64_t, kChunkBytes / sizeof(uint64_t)>;

// A change and a chunk determine all of its bytes.
Chunk BytesOf(PublishModel::Value value, uint64_t chunk) {
  Chunk words{};
  if (value == 0) return words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = value + (chunk << 32 ^ i * 0x9E3779B97F4A7C15u) * (i != 0);
  return words;
}

// None: parts of different changes, or of another chunk.
std::optional<PublishModel::Value> ValueOf(uint64_t chunk, const std::byte* bytes) {
  Chunk words;
  memcpy(words.data(), bytes, kChunkBytes);
  if (words != BytesOf(words[0], chunk)) return std::nullopt;
  return words[0];
}

void AddTo(std::vector<PublishModel::Value>* values, PublishModel::Value value) {
  if (!absl::c_linear_search(*values, value)) values->push_back(value);
}

// Looks at the bytes that were read of one chunk.
std::string See(PublishModel::Cell* cell, uint64_t chunk, const std::byte* bytes) {
  const auto value = ValueOf(chunk, bytes);
  const std::string where = absl::StrCat("chunk ", chunk % kChunksPerPage, " of page ", chunk / kChunksPerPage);
  if (!value.has_value()) return absl::StrCat(where, " has bytes of different changes");
  if (cell->any || absl::c_linear_search(cell->may, *value)) {
    *cell = {{*value}, false};
    return "";
  }
  std::string may;
  for (const PublishModel::Value one : cell->may) absl::StrAppend(&may, may.empty() ? "" : " or ", one);
  return absl::StrCat(where, " has ", *value, ", and may have ", may);
}

}  // namespace

PublishModel::Head& PublishModel::At(uint64_t chunk) {
  const auto [it, is_new] = head_.try_emplace(chunk);
  if (is_new) it->second.settled = {{0}, may_be_any_};
  return it->second;
}

void PublishModel::Fill(Value value, ChunkRange range, absl::Span<std::byte> out) {
  for (uint64_t i = 0; i < range.count; ++i) {
    const Chunk words = BytesOf(value, range.first + i);
    memcpy(out.data() + i * kChunkBytes, words.data(), kChunkBytes);
  }
}

void PublishModel::BeginChange(uint64_t owner, ChunkRange range, Value value) {
  if (owner != owner_) return;
  for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
    if (chunk / kChunksPerPage % kPagesPerSpan >= kHotPages) continue;
    AddTo(&At(chunk).under_way, value);
    if (!sealing_.has_value()) continue;
    Cell& cell = sealing_->try_emplace(chunk, Cell{{0}, may_be_any_}).first->second;
    AddTo(&cell.may, value);
  }
}

void PublishModel::EndChange(uint64_t owner, ChunkRange range, Value value, bool ok) {
  if (owner != owner_) return;  // it is among the possible values
  for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
    if (chunk / kChunksPerPage % kPagesPerSpan >= kHotPages) continue;
    Head& head = At(chunk);
    std::erase(head.under_way, value);
    if (ok) {
      head.settled = {{value}, false};
    } else {
      AddTo(&head.settled.may, value);
    }
  }
}

void PublishModel::TakeOver(uint64_t owner, bool loses) {
  CHECK_NE(owner, owner_);
  owner_ = owner;
  sealing_.reset();
  may_be_any_ = may_be_any_ || loses;
  for (auto& [chunk, head] : head_) {
    head.settled.any = head.settled.any || loses;
    for (const Value value : std::exchange(head.under_way, {})) AddTo(&head.settled.may, value);
  }
}

void PublishModel::BeginSeal(uint64_t owner) {
  if (owner != owner_) return;
  sealing_.emplace();
  for (uint64_t chunk = 0; may_be_any_ && chunk < kPages * kChunksPerPage; ++chunk) (void)At(chunk);
  for (const auto& [chunk, head] : head_) {
    Cell cell = head.settled;
    for (const Value value : head.under_way) AddTo(&cell.may, value);
    sealing_->emplace(chunk, std::move(cell));
  }
}

PublishModel::State PublishModel::EndSeal(uint64_t owner) {
  if (owner != owner_) return {};
  State state = sealing_.has_value() ? *std::move(sealing_) : State();
  sealing_.reset();
  return state;
}

std::string PublishModel::ReadHead(ChunkRange range, absl::Span<const std::byte> in) {
  std::string wrong;
  for (uint64_t i = 0; i < range.count && wrong.empty(); ++i) {
    const uint64_t chunk = range.first + i;
    const bool is_hot = chunk / kChunksPerPage % kPagesPerSpan < kHotPages;
    Cell hole{{0}, may_be_any_};
    wrong = See(is_hot ? &At(chunk).settled : &hole, chunk, in.data() + i * kChunkBytes);
  }
  return wrong;
}

std::string PublishModel::Read(State* state, ChunkRange range, absl::Span<const std::byte> in) {
  std::string wrong;
  for (uint64_t i = 0; i < range.count && wrong.empty(); ++i) {
    const uint64_t chunk = range.first + i;
    const auto it = state->find(chunk);
    Cell hole{{0}, false};
    wrong = See(it == state->end() ? &hole : &it->second, chunk, in.data() + i * kChunkBytes);
  }
  return wrong;
}

bool PublishModel::SurelyDiffers(const State& a, const State& b, uint64_t page) {
  static const Cell hole{{0}, false};
  for (uint64_t chunk = page * kChunksPerPage; chunk < (page + 1) * kChunksPerPage; ++chunk) {
    const auto in_a = a.find(chunk);
    const auto in_b = b.find(chunk);
    const Cell& before = in_a == a.end() ? hole : in_a->second;
    const Cell& after = in_b == b.end() ? hole : in_b->second;
    const auto is_sure = [](const Cell& cell) { return !cell.any && cell.may.size() == 1; };
    if (is_sure(before) && is_sure(after) && before.may != after.may) return true;
  }
  return false;
}

std::string PublishModel::CheckUnused(const VersionPlace& place) const {
  for (const auto& [uid, published] : published_) {
    if (published.place.region != place.region || published.place.number != place.number) continue;
    const std::vector<uint64_t>& lives = published.place.incarnations;
    const auto has_it = [&](uint64_t life) { return absl::c_linear_search(lives, life); };
    if (published.forgotten && absl::c_none_of(place.incarnations, has_it)) continue;
    return absl::StrCat("version ", Raw(place.number), " of the region is there twice: publication ", published.number,
                        " of owner ", published.owner, " has it already");
  }
  return "";
}

uint64_t PublishModel::AddPublished(Published published) {
  published_.emplace(next_uid_, std::move(published));
  return next_uid_++;
}

PublishModel::Published* PublishModel::Find(uint64_t uid) {
  const auto it = published_.find(uid);
  return it == published_.end() ? nullptr : &it->second;
}

void PublishModel::NoteCommitted(uint64_t uid) {
  Published* const published = Find(uid);
  published->committed = true;
  if (!published->forgotten) newest_committed_ = std::max(newest_committed_, published->number);
}

void PublishModel::NoteForgotten(uint64_t uid) {
  Find(uid)->forgotten = true;
  newest_committed_ = 0;
  for (const auto& [other, published] : published_) {
    if (published.committed && !published.forgotten) {
      newest_committed_ = std::max(newest_committed_, published.number);
    }
  }
}

void PublishModel::NoteRecordsLost() {
  for (auto& [uid, published] : published_) published.forgotten = true;
  newest_committed_ = 0;
}

}  // namespace nram::sim
