#ifndef NRAM_BASE_UNITS_H_
#define NRAM_BASE_UNITS_H_

// Sizes that every component agrees on, identifiers that must not be mixed up, and sizes as people write them.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

inline constexpr uint64_t kChunkBytes = 512;     // unit of transfer and storage
inline constexpr uint64_t kPageBytes = 4096;     // unit of indexing
inline constexpr uint64_t kSpanBytes = 1 << 20;  // unit of placement
inline constexpr uint64_t kChunksPerPage = kPageBytes / kChunkBytes;
inline constexpr uint64_t kPagesPerSpan = kSpanBytes / kPageBytes;
inline constexpr uint64_t kChunksPerSpan = kSpanBytes / kChunkBytes;
// A region addresses at most 2^62 bytes.
inline constexpr uint64_t kRegionBytesMax = uint64_t{1} << 62;
inline constexpr uint64_t kRegionChunksMax = kRegionBytesMax / kChunkBytes;

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// The multiple of `unit` at or below, at or above a number. `unit` must not be 0, nor the result exceed 64 bits.
constexpr uint64_t RoundDown(uint64_t number, uint64_t unit) { return number / unit * unit; }
constexpr uint64_t RoundUp(uint64_t number, uint64_t unit) { return RoundDown(number + unit - 1, unit); }

// One bit a chunk; bit 0 is the page's first 512 bytes.
using ChunkMask = uint8_t;
inline constexpr ChunkMask kAllChunks = 0xFF;

// Its creator chooses an identifier at random; it is unique in a pool. Zero is never valid. All ones is no region's: a
// list of regions could not go on behind it.
enum class RegionId : uint64_t {};
constexpr bool IsRegionId(uint64_t id) { return id != 0 && id != ~uint64_t{0}; }
enum class LeaseId : uint64_t {};
// Rises each time a region changes hands. A request with an older one is refused.
enum class Epoch : uint32_t {};
// Rises each time a copy of a span misses a write, so that this copy can tell that it is old. Every span has 0 so far.
enum class SpanGeneration : uint32_t {};
// A number of a region's version: counts up, may skip, is never used twice. 0: none; in a read, the present state.
enum class VersionNumber : uint32_t {};
inline constexpr VersionNumber kVersionNumberMax{0xFFFFFFFE};

template <typename Id>
constexpr auto Raw(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

// A run of chunks of one region: [first, first + count).
struct ChunkRange {
  uint64_t first = 0;
  uint64_t count = 0;

  constexpr uint64_t end() const { return first + count; }
  constexpr uint64_t bytes() const { return count * kChunkBytes; }
  constexpr uint64_t first_page() const { return first / kChunksPerPage; }
  // How many pages the run touches.
  constexpr uint64_t pages() const { return count == 0 ? 0 : (end() - 1) / kChunksPerPage - first_page() + 1; }
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

// The bits of `page` that lie in `range`.
constexpr ChunkMask MaskOfPage(const ChunkRange& range, uint64_t page) {
  const uint64_t page_first = page * kChunksPerPage;
  if (range.end() <= page_first) return 0;
  const uint64_t lo = range.first > page_first ? range.first - page_first : 0;
  const uint64_t hi = range.end() < page_first + kChunksPerPage ? range.end() - page_first : kChunksPerPage;
  return lo >= hi ? 0 : static_cast<ChunkMask>(((1u << hi) - 1) & ~((1u << lo) - 1));
}

// Reads "4096", "64K", "64KiB", "1.5G", "2TiB". K, M, G, T and P are powers of 1024, and "B" or "iB" may follow. "kB",
// "MB" and so on are refused, because some people mean powers of 1000. INVALID_ARGUMENT says why a text is refused.
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);

// "1.50 GiB", "512 B": three significant digits, for people.
std::string FormatByteSize(uint64_t bytes);

// "0x" and 16 hex digits, as `nram regions` prints identifiers. ParseId reads it back, also without the "0x".
std::string FormatId(uint64_t id);
absl::StatusOr<uint64_t> ParseId(absl::string_view text);

}  // namespace nram

#endif  // NRAM_BASE_UNITS_H_
