#ifndef NRAM_FSD_BLOCK_FILE_H_
#define NRAM_FSD_BLOCK_FILE_H_

// The seam between files and where their bytes are: the pool, this process's memory, or nowhere.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nram {

// One operation that is under way without a thread that waits for it. Used again and again; one operation at a time.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  // Called when it is over, on any thread, as the last thing; it must not block.
  void (*done)(BlockIo* io, const absl::Status& status) = nullptr;
  void* context = nullptr;
};

// The stored bytes of one file: sparse, up to 2^62, zeros where nothing was written. Offsets and lengths are multiples
// of 512. Thread-safe like Region, whose errors these are too (client/pool/region.h). Each operation blocks, for a
// bounded time.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  virtual absl::Status Read(uint64_t offset, absl::Span<std::byte> to) = 0;
  virtual absl::Status Write(uint64_t offset, absl::Span<const std::byte> from) = 0;
  // The same without waiting; io->done, which may have run already on return, has the result. At most 64 KiB. `io` is
  // of this file's store. False: it cannot be had without waiting, and nothing was begun.
  virtual bool StartRead(BlockIo* io, uint64_t offset, absl::Span<std::byte> to) {
    io->done(io, Read(offset, to));
    return true;
  }
  virtual bool StartWrite(BlockIo* io, uint64_t offset, absl::Span<const std::byte> from) {
    io->done(io, Write(offset, from));
    return true;
  }
  // Whether a write that was started and failed so may succeed as a Rewrite, which is told how it failed, and blocks.
  virtual bool RewriteMayHelp(const absl::Status& failed) const { return false; }
  virtual absl::Status Rewrite(uint64_t offset, absl::Span<const std::byte> from, const absl::Status& failed) {
    return Write(offset, from);
  }
  // Makes a hole and frees its memory.
  virtual absl::Status Trim(uint64_t offset, uint64_t length) = 0;
  // Later writes to the range do not fail for lack of room.
  virtual absl::Status Reserve(uint64_t offset, uint64_t length) = 0;
  // Gives back what is reserved in this file, up to so much, wherever it is.
  virtual void Unreserve(uint64_t bytes) {}
};

struct StoreCapacity {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// Thread-safe.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  // Takes no round trip.
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> Create() = 0;
  virtual std::unique_ptr<BlockIo> NewIo() { return std::make_unique<BlockIo>(); }
  // Frees all that these files, which nobody uses, have stored. Blocks until it is done or given up.
  virtual void Destroy(std::vector<std::unique_ptr<BlockFile>> files) = 0;
  // As of the last time that the servers were heard of.
  virtual StoreCapacity Capacity() const = 0;
};

// Pages in this process's memory, at most `bytes_max` of them: the ceiling that the pool is measured against.
std::unique_ptr<BlockStore> NewMemoryStore(uint64_t bytes_max);
// Forgets what is written and reads zeros: what FUSE itself costs.
std::unique_ptr<BlockStore> NewNullStore();

}  // namespace nram

#endif  // NRAM_FSD_BLOCK_FILE_H_
